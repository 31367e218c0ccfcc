"""The jobs in this worker's slots: running and stuck ones. Shared by its threads. Times are monotonic."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any
from uuid import UUID

from django.db.models import F

from jobs import db
from jobs.engine.claim import Claim, round_to_batch_size
from jobs.engine.executors.run import Context, PendingReports
from jobs.log_formats import job_fields
from jobs.models import Job, JobLog
from jobs.outages import is_rejection
from jobs.states import StopMode

logger = logging.getLogger("jobs.engine.worker")
SLOT_NUMBERS = 64  # for each slot: see `RunningJobs.pick_slots`


@dataclass(eq=False)
class RunningJob:
    """A claimed job and the state of its handler."""

    claim: Claim
    ctx: Context
    deadline: float  # the lease is certain to be ours until then
    started_at: float | None = None  # when its handler was called; a claimed job may wait for its process first
    interrupt: Callable[[], None] = lambda: None  # makes a handler that can be interrupted stop
    kill: Callable[[], None] | None = None  # ends a handler by force, where that is possible
    stop_requested_at: float | None = None
    timed_out: bool = False
    lost: bool = False
    returned: bool = False  # the handler has returned; its result is about to be recorded
    stuck: bool = False  # the handler ignores a stop request, and keeps its slot until it returns
    start_cancelled: bool = False
    id: UUID = field(init=False)
    slot: int = field(init=False)
    write_lock: threading.Lock = field(default_factory=threading.Lock)
    start_lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.id = self.claim.id
        self.slot = int(self.claim.lease_owner.rpartition("#")[2] or 0)

    @cached_property
    def name(self) -> str:
        """Return id, type and attempt for log lines; formatted once."""
        attempt = f", attempt {self.claim.attempt}" if self.claim.attempt > 1 else ""
        return f"{self.claim.id} ({self.claim.job_type}{attempt})"

    @cached_property
    def log_fields(self) -> dict[str, Any]:
        """Return the `extra` of log records about this job."""
        return job_fields(self.claim.id, self.claim.job_type)

    def try_start(self) -> bool:
        """Record the start of the handler, unless it was cancelled; return whether the handler may be called."""
        with self.start_lock:
            if not self.start_cancelled:
                self.started_at = time.monotonic()
            return not self.start_cancelled

    def cancel_start(self) -> bool:
        """Keep the handler from being called; return whether this call was the first and in time."""
        with self.start_lock:
            is_first = self.started_at is None and not self.start_cancelled
            self.start_cancelled |= is_first
            return is_first

    def request_stop(self, mode: StopMode | None) -> None:
        """Request the handler to stop. A second request only changes the mode."""
        is_first = self.stop_requested_at is None
        if is_first:
            self.stop_requested_at = time.monotonic()
        self.ctx.request_stop(mode)
        if is_first:
            self.interrupt()

    def mark_lost(self) -> None:
        """Stop the handler and drop its result: its lease is gone, or can no longer be proven to be ours."""
        self.lost = True
        self.request_stop(None)
        if self.kill is not None:
            self.kill()

    def write_progress(self) -> None:
        """Write the new reports of the handler, if the lease is still ours; else stop the handler."""
        with self.write_lock:
            if self.lost or not self.ctx.writes:
                return
            writes = self.ctx.take_writes()
            try:
                is_ours = self._write(writes)
            except Exception as error:
                if is_rejection(error):  # a later attempt would fail, too, and block the results of all jobs
                    logger.exception("job %s: the database rejected its reports", self.name, extra=self.log_fields)
                    return
                self.ctx.restore_writes(writes)
                raise
            if not is_ours:
                self.mark_lost()

    def _write(self, writes: PendingReports) -> bool:
        """Write these reports; return False, and write nothing, if the lease is lost."""
        fields: dict[str, Any] = {}
        if writes.progress is not None:
            fields["progress"], fields["progress_message"] = writes.progress
        if writes.checkpoint is not None:
            fields["checkpoint"] = writes.checkpoint[0]
        if writes.tokens is not None:
            fields["tokens_used"] = writes.tokens
        with db.atomic():
            row = Job.objects.filter(pk=self.id, lease_token=self.claim.lease_token)
            # Without a field to write, the row is still updated: its lock keeps other workers from claiming it.
            if not row.update(**fields or {"tokens_used": F("tokens_used")}):
                return False
            JobLog.objects.bulk_create(
                [JobLog(job_id=self.id, level=level[:16], message=message) for level, message in writes.lines]
            )
        return True

    def is_unresponsive(self, now: float, grace_sec: float) -> bool:
        """Return whether it timed out, ignores its stop request for longer than this, and cannot be killed."""
        requested_at = self.stop_requested_at
        return self.timed_out and self.kill is None and requested_at is not None and now - requested_at > grace_sec


def make_context(claim: Claim, on_write: Callable[[], None] = lambda: None) -> Context:
    """Build the `ctx` of the claimed job's handler."""
    return Context(
        job_id=claim.id,
        job_type=claim.job_type,
        params=claim.params,
        attempt=claim.attempt,
        fence=claim.fence,
        resume_from=claim.checkpoint,
        artifacts=claim.artifacts,
        token_limit=claim.token_limit,
        tokens_used=claim.tokens_used,
        resource=claim.resource,
        group_id=claim.group_id,
        context=claim.context,
        traceparent=claim.traceparent,
        on_write=on_write,
    )


def name_jobs(jobs: Sequence[RunningJob], limit: int = 10) -> str:
    """Name jobs for one log line: their number and the first ids."""
    ids = ", ".join(str(job.id) for job in jobs[:limit])
    extra = f" and {len(jobs) - limit} more" if len(jobs) > limit else ""
    return f"{len(jobs)} job{'s' if len(jobs) > 1 else ''} ({ids}{extra})"


class RunningJobs:
    """The jobs in the slots of one worker. Safe to use from several threads."""

    def __init__(self, slots: int = 1) -> None:
        self.slots = slots
        self._running: dict[UUID, RunningJob] = {}
        self._stuck: set[RunningJob] = set()  # each keeps its slot until its handler returns
        self._lock = threading.Lock()
        self._last_slot = 0

    def add(self, job: RunningJob) -> None:
        with self._lock:
            self._running[job.id] = job

    def remove(self, job: RunningJob) -> None:
        """Free the slot of a job whose result is recorded, or whose stuck handler has returned."""
        with self._lock:
            if self._running.get(job.id) is job:
                del self._running[job.id]
            self._stuck.discard(job)

    def mark_stuck(self, job: RunningJob) -> None:
        """Count the job's slot as stuck: its handler ignores its stop request."""
        self.remove(job)
        with self._lock:
            job.stuck = True
            self._stuck.add(job)

    def __iter__(self) -> Iterator[RunningJob]:
        with self._lock:
            return iter(list(self._running.values()))

    def __len__(self) -> int:
        return len(self._running)

    @property
    def stuck_slots(self) -> int:
        return len(self._stuck)

    @property
    def free_slots(self) -> int:
        return self.slots - len(self._running) - len(self._stuck)

    @property
    def ids(self) -> list[UUID]:
        """Return the ids of jobs whose handlers have not returned or whose results are not recorded."""
        with self._lock:
            return [job.id for job in (*self._running.values(), *self._stuck)]

    def pick_slots(self, free: int) -> list[int]:
        """Pick unused slot numbers for the next claim, as many as one claim takes.

        From a wide pool: an index scan passes all dead entries of a reused lease owner.
        """
        count = round_to_batch_size(free)
        with self._lock:
            used = {job.slot for job in (*self._running.values(), *self._stuck)}
        numbers: list[int] = []
        while len(numbers) < count:
            self._last_slot = (self._last_slot + 1) % (SLOT_NUMBERS * self.slots)
            if self._last_slot not in used:
                numbers.append(self._last_slot)
        return numbers
