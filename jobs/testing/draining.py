"""Runs jobs in the test's thread and, if it has one, in its transaction: the engine's own claim, handler and end."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from uuid import uuid4

from asgiref.sync import async_to_sync
from django.db import connections, transaction

from jobs import actors, services
from jobs.engine import ending, lanes
from jobs.engine.claim import Claim, Claimer, Serves
from jobs.engine.context import CaptureLogs, Context
from jobs.engine.execution import run, run_async
from jobs.engine.executors import retry_facts
from jobs.engine.selection import limits
from jobs.engine.worker.progress_writer import write_progress
from jobs.engine.worker.running_jobs import RunningJob, make_context
from jobs.models import Job
from jobs.outcomes import Completed, Failed, Outcome, Skipped
from jobs.registry import registry

NAME = "testing"
LEASE_SEC = 3600.0
ACTOR = actors.worker(NAME)


class JobFailed(AssertionError):
    """A job failed that was expected to end well. Its message is the handler's traceback."""

    def __init__(self, job: Job, error: str) -> None:
        super().__init__(f"{job.job_type} {job.pk} failed:\n{error}")
        self.job = job


def drain(*, raise_failures: bool = False, most: int = 10_000) -> list[Job]:
    """Run all that is ready, in dispatch order, and what becomes ready by that. The jobs that ran, as they ended.

    What waits for its time goes on waiting: see `time_travel`.
    """
    limits.sync()
    claimer = Claimer(NAME, Serves(tuple(registry.local_names())), life=f"{NAME}@{uuid4()}")
    ran: list[Job] = []
    with _logs_captured():
        while len(ran) < most and (claim := _next(claimer)) is not None:
            ran.append(_run(claim, raise_failures))
    return ran


@contextmanager
def inline(*, raise_failures: bool = False) -> Iterator[list[Job]]:
    """Within the block a job that is enqueued runs before `enqueue` returns. The list has the jobs that ran."""
    ran: list[Job] = []
    busy: list[bool] = []

    def run_now() -> None:
        if not busy:  # a handler that enqueues: the loop that runs it takes that, too
            busy.append(True)
            try:
                ran.extend(drain(raise_failures=raise_failures))
            finally:
                busy.clear()

    before = services.submit_spec, services._submit_specs
    services.submit_spec, services._submit_specs = _then(before[0], run_now), _then(before[1], run_now)
    try:
        yield ran
        run_now()  # what came in by other doors: groups, retries, schedules
    finally:
        services.submit_spec, services._submit_specs = before


def context(**given: Any) -> Context:
    """A `ctx` to call a handler with, directly: `generate(context(), topic="sea")`."""
    return Context(**{"job_id": uuid4(), "params": {}, **given})


def _then(submit: Callable[..., Any], follow: Callable[[], None]) -> Any:
    def submitted(*args: Any, **kwargs: Any) -> Any:
        result = submit(*args, **kwargs)
        follow()
        if isinstance(result, services.SubmitResult):
            result.job.refresh_from_db()
        return result

    return submitted


def _next(claimer: Claimer) -> Claim | None:
    while lanes.wake_due():
        pass
    while lanes.promote():
        pass
    taken = claimer.claim([0], lease_sec=LEASE_SEC)
    return taken[0] if taken else None


def _run(claim: Claim, raise_failures: bool) -> Job:
    running = RunningJob(claim, make_context(claim), deadline=float("inf"))
    outcome = _guarded(running)
    write_progress(running)
    _record(running, outcome)
    job = Job.objects.get(pk=claim.id)
    if raise_failures and isinstance(outcome, Failed):
        raise JobFailed(job, outcome.error)
    return job


def _guarded(running: RunningJob) -> Outcome:
    """In a test's transactions a handler that fails must not break the rest of it: its writes are taken back."""
    using = [each.alias for each in connections.all(initialized_only=True) if each.in_atomic_block]
    with ExitStack() as savepoints:
        for alias in using:
            savepoints.enter_context(transaction.atomic(using=alias))
        outcome = _call(running)
        if isinstance(outcome, Failed):
            for alias in using:
                transaction.set_rollback(True, using=alias)
    return outcome


def _call(running: RunningJob) -> Outcome:
    claim = running.claim
    if registry.get(claim.job_type).is_async:
        return async_to_sync(run_async)(claim.job_type, running.ctx, retry_facts(running))
    return run(claim.job_type, running.ctx, retry_facts(running))


def _record(running: RunningJob, outcome: Outcome) -> None:
    claim = running.claim
    if isinstance(outcome, Completed | Skipped | Failed):
        ending.finish([ending.End(claim.id, claim.lease_token, outcome, claim.group_id)], actor=ACTOR)
    else:
        ending.hand_back(claim.id, claim.lease_token, actor=ACTOR, reason="stopped in a test")


@contextmanager
def _logs_captured() -> Iterator[None]:
    capture, loggers = CaptureLogs(), (logging.getLogger(), logging.getLogger("jobs.run"))
    for each in loggers:
        each.addHandler(capture)
    try:
        yield
    finally:
        for each in loggers:
            each.removeHandler(capture)
