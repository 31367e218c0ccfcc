"""The heartbeat renews the worker's leases and reads stop requests; the watchdog enforces deadlines.

Each has a thread of its own: a heartbeat may hang in the network for ever, and handlers must be stopped before their
leases run out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta

from jobs import clock, db, process_identity
from jobs.conf import conf
from jobs.db import set_short_timeouts
from jobs.engine.sql.claim import renew_leases
from jobs.engine.worker.running_jobs import RunningJob, RunningJobs, name_jobs
from jobs.models import Job
from jobs.outages import OutageGuard, break_hung_connections
from jobs.states import StopMode

logger = logging.getLogger("jobs.engine.heartbeat")
STOP_GRACE_SEC = 5.0  # how long a handler gets to stop before its slot counts as stuck
STOP_POLL_SEC = 2.0  # how often to read stop requests, however rare heartbeats are


class Heartbeat(threading.Thread):
    """Renews leases until `end`, which the worker calls after its last handler has returned."""

    def __init__(self, running: RunningJobs, *, on_beat: Callable[[], None] = lambda: None) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self.running = running
        self.on_beat = on_beat
        self._wake = threading.Event()
        self._end = threading.Event()
        self._outage = OutageGuard(logger, "heartbeats")
        self._renewed_at = 0.0

    def run(self) -> None:
        pause = min(conf.HEARTBEAT_SEC, STOP_POLL_SEC)
        while not self._end.is_set():
            self._wake.wait(pause)
            self._wake.clear()
            with self._outage.survive():
                set_short_timeouts(conf.LEASE_SEC / 3)
                self._beat()
        db.connection().close()

    def wake(self) -> None:
        """Read stop requests now."""
        self._wake.set()

    def end(self) -> None:
        self._end.set()
        self._wake.set()

    def _beat(self) -> None:
        jobs = list(self.running)
        if time.monotonic() - self._renewed_at >= conf.HEARTBEAT_SEC * 0.9:
            self._renew(jobs)
            self.on_beat()
        elif jobs:
            self._read_stop_requests(jobs)

    def _renew(self, jobs: list[RunningJob]) -> None:
        """Renew the leases of these jobs, except of those whose handlers were stopped because it might come too late.

        The database may answer late, or execute the statement late: neither may renew the lease of a stopped handler,
        which would keep its job from being recovered.
        """
        sent_at = time.monotonic()
        if jobs:
            with db.atomic() as connection:
                database_time = clock.now()  # on SQLite the transaction has the lock, and the statement does not wait
                sent_at = time.monotonic()
                held = [job for job in jobs if not job.lost and (job.returned or sent_at < job.deadline)]
                left_sec = min((job.deadline - sent_at for job in held if not job.returned), default=conf.LEASE_SEC)
                renewed = renew_leases(
                    connection,
                    [(job.id, job.claim.lease_token) for job in held],
                    conf.LEASE_SEC,
                    process_identity.read_beat_clock(),
                    not_after=database_time + timedelta(seconds=left_sec),
                )
            for job in held:
                if job.id in renewed:
                    job.deadline = sent_at + conf.LEASE_SEC - lease_margin_sec()
                    _apply_stop_request(job, *renewed[job.id])
            self._check_unrenewed([job for job in held if job.id not in renewed])
            logger.debug("renewed %d of %d leases", len(renewed), len(jobs))
        self._renewed_at = sent_at

    def _check_unrenewed(self, unrenewed: list[RunningJob]) -> None:
        """Stop handlers whose lease is lost. Other rows were locked, or this worker has just recorded their result."""
        tokens = _read_tokens(unrenewed)
        lost = [job for job in unrenewed if tokens.get(job.id) != job.claim.lease_token and not job.returned]
        if lost:
            logger.warning("lost the leases of %s; stopping their handlers", name_jobs(lost))
        for job in lost:
            job.mark_lost()

    def _read_stop_requests(self, jobs: list[RunningJob]) -> None:
        rows = Job.objects.filter(pk__in=[job.id for job in jobs], cancel_requested=True)
        requests = {pk: (token, mode) for pk, token, mode in rows.values_list("pk", "lease_token", "cancel_mode")}
        for job in jobs:
            token, mode = requests.get(job.id, (None, ""))
            if token == job.claim.lease_token:
                _apply_stop_request(job, True, mode)


class Watchdog(threading.Thread):
    """Enforces deadlines by the steady clock: of leases, of runtimes, and of stop requests that are ignored."""

    def __init__(
        self,
        running: RunningJobs,
        *,
        on_timeout: Callable[[RunningJob], None],
        on_unresponsive: Callable[[], None] = lambda: None,
    ) -> None:
        super().__init__(name="watchdog", daemon=True)
        self.running = running
        self.on_timeout = on_timeout
        self.on_unresponsive = on_unresponsive
        self._end = threading.Event()

    def run(self) -> None:
        while not self._end.wait(min(0.2, conf.LEASE_SEC / 20)):
            break_hung_connections(conf.LEASE_SEC)
            now = time.monotonic()
            self._stop_overdue(now)
            for job in self.running:
                self._check_deadlines(job, now)

    def end(self) -> None:
        self._end.set()

    def _stop_overdue(self, now: float) -> None:
        """Stop handlers whose leases may run out, except those that have returned."""
        overdue = [job for job in self.running if now > job.deadline and not (job.lost or job.returned)]
        if overdue:
            logger.warning(
                "the leases of %s may run out before they are renewed; stopping their handlers", name_jobs(overdue)
            )
        for job in overdue:
            job.mark_lost()

    def _check_deadlines(self, job: RunningJob, now: float) -> None:
        limit, started_at = job.claim.max_runtime_sec, job.started_at
        is_over = limit is not None and started_at is not None and now - started_at > limit
        if is_over and not (job.timed_out or job.lost):
            job.timed_out = True
            self.on_timeout(job)
        if job.is_unresponsive(now, STOP_GRACE_SEC):
            self.on_unresponsive()
        grace, requested_at = conf.CANCEL_TIMEOUT_SEC, job.stop_requested_at
        if grace is not None and job.kill is not None and requested_at and now - requested_at > grace:
            job.kill()


def lease_margin_sec() -> float:
    """Return how many seconds before the end of its lease a handler is stopped."""
    return max(conf.LEASE_SEC * 0.1, min(1.0, conf.LEASE_SEC / 4))


def _apply_stop_request(job: RunningJob, is_requested: bool, mode: str) -> None:
    if is_requested and job.ctx.stop_mode != mode:
        logger.info("job %s: stop requested (%s)", job.name, mode, extra=job.log_fields)
        job.request_stop(StopMode(mode))


def _read_tokens(jobs: list[RunningJob]) -> dict[object, object]:
    if not jobs:
        return {}
    rows = Job.objects.filter(pk__in=[job.id for job in jobs])
    return dict(rows.values_list("pk", "lease_token"))
