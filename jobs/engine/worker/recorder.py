"""Record what handlers returned in one batch, or each alone where one is rejected; free slots after the commit."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple
from uuid import UUID

from django.db import DatabaseError

from jobs.actors import Actor
from jobs.engine import ending
from jobs.engine.connections import is_rejection
from jobs.engine.ending import End, Verdict
from jobs.engine.execution import decide_retry
from jobs.engine.executors import retry_facts
from jobs.engine.worker.progress_writer import write_progress
from jobs.engine.worker.running_jobs import RunningJob, RunningJobs, name_jobs
from jobs.outcomes import Completed, Failed, Outcome, Skipped, Stopped
from jobs.salvage import salvage_text
from jobs.states import Cause

logger = logging.getLogger("jobs.engine.worker")
LOG_COALESCE_SEC = 1.0  # jobs whose leases were lost share log lines: an outage loses all of them
LINE_EACH = 4  # ends and claims of up to so many jobs get a line each; a line costs as much as a job's SQL


class Finished(NamedTuple):
    job: RunningJob
    result: End


class Recorder:
    def __init__(
        self, running: RunningJobs, *, worker: str, actor: Actor, on_release: Callable[[RunningJob], None]
    ) -> None:
        self.running = running
        self.worker = worker
        self.actor = actor
        self.on_release = on_release
        self._returned: dict[RunningJob, Outcome] = {}  # not recorded yet
        self._lost_jobs: list[RunningJob] = []  # not logged yet
        self._lost_logged_at = 0.0

    def __len__(self) -> int:
        return len(self._returned)

    def add(self, job: RunningJob, outcome: Outcome) -> None:
        self._returned[job] = outcome

    @property
    def has_targets(self) -> bool:
        """Whether some result is of a job with a target, whose next one may become ready."""
        return any(job.claim.target is not None for job in self._returned)

    def flush_progress(self) -> None:
        """Write the last progress of returned handlers, before any transaction of ours: SQLite has one writer."""
        for job in self._returned:
            if not self.running.is_stuck(job):
                write_progress(job)

    def collect(self) -> list[Finished]:
        """Return the results to record in one batch. Stops are recorded alone; results without a lease are dropped."""
        return [finished for job in list(self._returned) if (finished := self._collect(job)) is not None]

    def release(self, batch: Sequence[Finished], verdicts: dict[UUID, Verdict]) -> None:
        """Free the slots of jobs whose results are committed."""
        _log_ends([finished for finished in batch if verdicts[finished.job.id] != Verdict.LOST])
        for job, _ in batch:
            self._release(job, verdicts[job.id])

    def record_individually(self) -> None:
        """The batch was rejected: record each result alone, and fail the one that the database rejects."""
        for job, outcome in list(self._returned.items()):
            try:
                finished = self._collect(job)
                if finished is not None:
                    self.release([finished], ending.finish([finished.result], actor=self.actor))
            except DatabaseError as rejection:
                if not is_rejection(rejection):
                    raise
                logger.exception("job %s: the database rejects its result; it fails", job.id)
                error = f"its end ({type(outcome).__name__}) could not be recorded: {rejection}"
                self._returned[job] = Failed(salvage_text(error, 2000), "the database refused its end")

    def abandon(self, job: RunningJob) -> None:
        """Fail a job whose handler ignores its stop. Its thread cannot be ended: its slot is stuck until it returns."""
        logger.error("job %s ignores its stop; its slot is stuck", job.id)
        ending.finish([_result(job, _timeout(job))], actor=self.actor)
        job.mark_lost()
        self.running.mark_stuck(job)

    def log_lost_jobs(self, *, now: float | None = None) -> None:
        """Log results that were dropped for a lost lease; with `now`, at most one line in LOG_COALESCE_SEC."""
        if self._lost_jobs and (now is None or now >= self._lost_logged_at + LOG_COALESCE_SEC):
            names = name_jobs(self._lost_jobs)
            logger.warning("after their leases were lost, the ends of %s were not recorded", names)
            self._lost_jobs.clear()
            self._lost_logged_at = time.monotonic()

    @property
    def has_lost_jobs(self) -> bool:
        return bool(self._lost_jobs)

    def _collect(self, job: RunningJob) -> Finished | None:
        outcome = self._returned[job]
        if self.running.is_stuck(job):
            self._reclaim_slot(job)
        elif job.lost:
            self._release(job, Verdict.LOST)
        else:
            outcome = _apply_timeout(job, outcome)
            if isinstance(outcome, Completed | Skipped | Failed):
                return Finished(job, _result(job, outcome))
            self._record_stop(job, outcome)
        return None

    def _record_stop(self, job: RunningJob, outcome: Stopped) -> None:
        """Record `stop` for a handler that obeyed a request, `hand_back` for one whose worker goes away."""
        token, verdict, verb = job.claim.lease_token, Verdict.LOST, "stopped"
        if job.ctx.stop_mode is not None:
            verdict = ending.stop(job.id, token, actor=self.actor, artifacts=outcome.artifacts)
        if verdict == Verdict.LOST:  # or the request was taken back meanwhile
            reason, verb = f"worker {self.worker} shut down", "handed back"
            verdict = ending.hand_back(job.id, token, actor=self.actor, reason=reason, artifacts=outcome.artifacts)
        if verdict != Verdict.LOST:
            logger.info("job %s ended: %s", job.name, verb)
        self._release(job, verdict)

    def _reclaim_slot(self, job: RunningJob) -> None:
        logger.warning("job %s returned at last; its slot is free again", job.id)
        self.running.reclaim_slot(job)
        self._drop(job)

    def _release(self, job: RunningJob, verdict: Verdict) -> None:
        if verdict == Verdict.LOST:
            self._lost_jobs.append(job)
        self.running.remove(job)
        self._drop(job)

    def _drop(self, job: RunningJob) -> None:
        self._returned.pop(job, None)
        self.on_release(job)


def _result(job: RunningJob, outcome: Completed | Skipped | Failed) -> End:
    return End(job.id, job.claim.lease_token, outcome, job.claim.group_id)


def _apply_timeout(job: RunningJob, outcome: Outcome) -> Outcome:
    """A handler that stopped because its time was up has failed."""
    if not job.timed_out or isinstance(outcome, Completed | Skipped):
        return outcome
    delay = decide_retry(job.claim.job_type, **retry_facts(job), cause=Cause.TIMEOUT, error=None)
    return replace(_timeout(job), retry_in=delay)


def _timeout(job: RunningJob) -> Failed:
    error = f"timeout: ran longer than {job.claim.max_runtime_sec:g} s"
    return Failed(error=error, reason="timeout", cause=Cause.TIMEOUT)


def _log_ends(batch: Sequence[Finished]) -> None:
    """Log a line for each failure and for each of a few ends; many ends share one."""
    ended: dict[str, list[RunningJob]] = {}
    for job, result in batch:
        if isinstance(result.outcome, Failed):
            delay = result.outcome.retry_in
            retry = "not retried" if delay is None else f"retried in {delay:g} s"
            logger.warning("job %s failed, %s: %s", job.name, retry, result.outcome.reason)
        else:
            ended.setdefault(type(result.outcome).__name__.lower(), []).append(job)
    for outcome, jobs in ended.items():
        log_jobs(jobs, f"%d jobs ended: {outcome}: %s", f"job %s ended: {outcome}")


def log_jobs(jobs: Sequence[RunningJob], together: str, alone: str) -> None:
    """Log `alone` (name) for each of a few jobs; `together` (number, names) for more of them, and each at DEBUG."""
    if len(jobs) > LINE_EACH and logger.isEnabledFor(logging.INFO):
        logger.info(together, len(jobs), ", ".join([job.name for job in jobs]))
    level = logging.INFO if len(jobs) <= LINE_EACH else logging.DEBUG
    if logger.isEnabledFor(level):
        for job in jobs:
            logger.log(level, alone, job.name)
