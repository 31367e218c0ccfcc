"""Record results of handlers in one batch, or each alone where one is rejected; free slots after the commit."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple
from uuid import UUID

from django.db import DatabaseError

from jobs.actors import Actor
from jobs.engine import finish
from jobs.engine.executors.run import decide_retry
from jobs.engine.finish import FinishStatus, JobResult
from jobs.engine.worker.running_jobs import RunningJob, RunningJobs, name_jobs
from jobs.log_formats import batch_fields
from jobs.outages import is_rejection
from jobs.outcomes import Completed, Failed, Outcome, Skipped, Snoozed, Stopped
from jobs.states import REJECTED_RESULT_REASON, TIMEOUT_REASON, Cause

logger = logging.getLogger("jobs.engine.worker")
LOG_COALESCE_SEC = 1.0  # jobs whose leases were lost share log lines: an outage loses all of them
SINGLE_LINES_LIMIT = 4  # up to so many jobs get a log line each; a line costs as much as a job's SQL


class ReturnedJob(NamedTuple):
    """A job whose handler has returned, with the result to record."""

    job: RunningJob
    result: JobResult


class Recorder:
    """Records results and frees slots; collects the jobs whose results were dropped, for the log."""

    def __init__(self, running: RunningJobs, *, worker: str, actor: Actor, on_release: Callable[[], None]) -> None:
        self.running = running
        self.worker = worker
        self.actor = actor
        self.on_release = on_release
        self.returned: dict[RunningJob, Outcome] = {}  # not recorded yet
        self.lost_jobs: list[RunningJob] = []  # not logged yet
        self._lost_logged_at = 0.0

    def collect_results(self, jobs: Sequence[RunningJob] | None = None) -> list[ReturnedJob]:
        """Return the results (of these jobs, or of all) to record in one batch.

        Stops and snoozes are recorded alone; results without a lease are dropped. The last progress of each handler is
        written before the transaction that records the results: SQLite has one writer.
        """
        batch: list[ReturnedJob] = []
        for job in list(self.returned) if jobs is None else jobs:
            outcome = self.returned[job]
            if not job.stuck:
                job.write_progress()  # or waits for the progress writer, which may be writing the last of it
            if job.stuck:
                logger.warning("job %s: its handler has returned; its slot is free", job.name, extra=job.log_fields)
                self._release(job, FinishStatus.DONE)
            elif job.lost:
                self._release(job, FinishStatus.LOST)
            else:
                if job.timed_out and not isinstance(outcome, Completed | Skipped):
                    outcome = _build_timeout(job, retry=True)  # the handler stopped because of its timeout
                if isinstance(outcome, Stopped):
                    self._record_stop(job, outcome)
                elif isinstance(outcome, Snoozed):
                    self._release(job, finish.snooze(job.id, job.claim.lease_token, outcome, actor=self.actor))
                else:
                    result = JobResult(job.id, job.claim.lease_token, outcome, job.claim.group_id)
                    batch.append(ReturnedJob(job, result))
        return batch

    def release_slots(self, batch: Sequence[ReturnedJob], statuses: dict[UUID, FinishStatus]) -> None:
        """Free the slots of jobs whose results are committed, and log them.

        Each failure gets a log line; other results do if they are few, else they share one.
        """
        jobs_by_outcome: dict[str, list[RunningJob]] = {}
        for job, result in batch:
            status = statuses[job.id]
            if status != FinishStatus.LOST and isinstance(result.outcome, Failed):
                delay = result.outcome.retry_in
                retry = "not retried" if delay is None else f"retried in {round(delay, 1):g} s"
                reason = result.outcome.reason
                logger.warning("job %s failed, %s: %s", job.name, retry, reason, extra=job.log_fields)
            elif status != FinishStatus.LOST:
                jobs_by_outcome.setdefault(type(result.outcome).__name__.lower(), []).append(job)
            self._release(job, status)
        if logger.isEnabledFor(logging.INFO):
            for outcome, jobs in jobs_by_outcome.items():
                log_jobs(jobs, f"%d jobs finished: {outcome}: %s", f"job %s finished: {outcome}")

    def record_individually(self) -> None:
        """Record each result of a rejected batch alone, and fail the job whose result the database rejects."""
        for job, outcome in list(self.returned.items()):
            try:
                for returned in self.collect_results([job]):
                    self.release_slots([returned], finish.finish([returned.result], actor=self.actor))
            except DatabaseError as rejection:
                if not is_rejection(rejection):
                    raise
                logger.exception("job %s: the database rejected its result", job.name, extra=job.log_fields)
                error = f"the result ({type(outcome).__name__}) could not be recorded: {rejection}"
                self.returned[job] = Failed(job.ctx.clean_text(error, 2000), REJECTED_RESULT_REASON)

    def abandon_job(self, job: RunningJob) -> None:
        """Fail a job whose handler ignores its stop request. Thread and slot are stuck until the handler returns."""
        logger.error("job %s failed: its handler ignores its stop; its slot is stuck", job.name, extra=job.log_fields)
        result = JobResult(job.id, job.claim.lease_token, _build_timeout(job, retry=False), job.claim.group_id)
        finish.finish([result], actor=self.actor)
        job.mark_lost()
        self.running.mark_stuck(job)

    def log_lost_jobs(self, *, now: float | None = None) -> None:
        """Log results that were dropped for a lost lease; with `now`, at most one line in LOG_COALESCE_SEC."""
        if self.lost_jobs and (now is None or now >= self._lost_logged_at + LOG_COALESCE_SEC):
            names = name_jobs(self.lost_jobs)
            logger.warning("the results of %s were not recorded: their leases were lost", names)
            self.lost_jobs.clear()
            self._lost_logged_at = time.monotonic()

    def _record_stop(self, job: RunningJob, outcome: Stopped) -> None:
        """Record `stop` for a handler that obeyed a stop request, `hand_back` for one whose worker shuts down."""
        token, status = job.claim.lease_token, FinishStatus.LOST
        if job.ctx.stop_mode is not None:
            status = finish.stop(job.id, token, actor=self.actor, artifacts=outcome.artifacts)
        if status == FinishStatus.LOST:  # no stop request, or it was withdrawn meanwhile
            reason = f"worker {self.worker} shut down"
            status = finish.hand_back(job.id, token, actor=self.actor, reason=reason, artifacts=outcome.artifacts)
        self._release(job, status)

    def _release(self, job: RunningJob, status: FinishStatus) -> None:
        if status == FinishStatus.LOST:
            self.lost_jobs.append(job)
        self.running.remove(job)
        self.returned.pop(job, None)
        self.on_release()


def _build_timeout(job: RunningJob, *, retry: bool) -> Failed:
    error = f"timeout: ran longer than {job.claim.max_runtime_sec:g} s"
    failed = Failed(error=error, reason=TIMEOUT_REASON, cause=Cause.TIMEOUT)
    if not retry:
        return failed
    delay = decide_retry(job.claim, cause=Cause.TIMEOUT, error=None)
    return replace(failed, retry_in=delay)


def log_jobs(jobs: Sequence[RunningJob], batch_message: str, job_message: str) -> None:
    """Log `job_message` (name) for each of a few jobs; for more, `batch_message` (count, names), and each at DEBUG."""
    if len(jobs) > SINGLE_LINES_LIMIT:
        names = ", ".join([job.name for job in jobs])
        fields = batch_fields((job.id, job.claim.job_type) for job in jobs)
        logger.info(batch_message, len(jobs), names, extra=fields)
    level = logging.INFO if len(jobs) <= SINGLE_LINES_LIMIT else logging.DEBUG
    if logger.isEnabledFor(level):
        for job in jobs:
            logger.log(level, job_message, job.name, extra=job.log_fields)
