"""Run handlers without a worker process: their context, and a worker in the caller's thread for tests."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple
from uuid import uuid4

from asgiref.sync import async_to_sync
from django.db import connections, transaction

from jobs import actors
from jobs.engine import finish, groups, promoter
from jobs.engine.claim import Claim, Claimer, ServedJobs
from jobs.engine.executors.run import Context as Context
from jobs.engine.executors.run import JobLogHandler, decide_retry, run, run_async
from jobs.engine.executors.run import format_traceback as format_traceback
from jobs.engine.selection import limits
from jobs.engine.worker.running_jobs import RunningJob, make_context
from jobs.models import Job
from jobs.outcomes import Completed, Failed, Outcome, Skipped, Snoozed
from jobs.registry import registry
from jobs.states import Cause


class InlineResult(NamedTuple):
    """A job that an InlineWorker ran, as it is afterwards, and the outcome of its handler."""

    job: Job
    outcome: Outcome


class InlineWorker:
    """Runs jobs in the caller's thread and transaction, with the claim and the finish of the engine."""

    def __init__(self, name: str, *, lease_sec: float) -> None:
        self._actor = actors.make_worker_actor(name)
        self._lease_sec = lease_sec
        limits.sync_limits()
        served_jobs = ServedJobs(tuple(registry.local_names()))
        self._claimer = Claimer(name, served_jobs, process_key=f"{name}@{uuid4()}")

    def run_next(self) -> InlineResult | None:
        """Run the next ready job; return None if there is none."""
        promote_due_jobs()
        while promoter.promote():
            pass
        claims = self._claimer.claim([0], lease_sec=self._lease_sec)
        return self._run(claims[0]) if claims else None

    def _run(self, claim: Claim) -> InlineResult:
        running = RunningJob(claim, make_context(claim), deadline=float("inf"))
        # A handler that fails must not break the caller's transactions: its writes are rolled back to a savepoint.
        open_connections = connections.all(initialized_only=True)
        aliases = [connection.alias for connection in open_connections if connection.in_atomic_block]
        with ExitStack() as savepoints:
            for alias in aliases:
                savepoints.enter_context(transaction.atomic(using=alias))
            call: Callable[..., Outcome] = async_to_sync(run_async) if registry.get(claim.job_type).is_async else run
            outcome = call(claim, running.ctx)
            if isinstance(outcome, Failed):
                for alias in aliases:
                    transaction.set_rollback(True, using=alias)
        running.write_progress()
        if isinstance(outcome, Completed | Skipped | Failed):
            result = finish.JobResult(claim.id, claim.lease_token, outcome, claim.group_id)
            finish.finish([result], actor=self._actor)
            if claim.group_id is not None:
                groups.run_actions(claim.group_id)
        elif isinstance(outcome, Snoozed):
            finish.snooze(claim.id, claim.lease_token, outcome, actor=self._actor)
        else:
            finish.hand_back(claim.id, claim.lease_token, actor=self._actor, reason="stopped in a test")
        return InlineResult(Job.objects.get(pk=claim.id), outcome)


@contextmanager
def capture_logs() -> Iterator[None]:
    """Add the log lines of handlers to their jobs, as a worker does."""
    capture, loggers = JobLogHandler(), (logging.getLogger(), logging.getLogger("jobs.run"))
    capture.install(*loggers)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(capture)


def promote_due_jobs() -> None:
    """Make all jobs ready whose start time has come."""
    while promoter.promote_due():
        pass


def has_retry(job: Job, error: BaseException) -> bool:
    """Return whether the retry policy would retry the job after this error."""
    return decide_retry(job, cause=Cause.ERROR, error=error) is not None
