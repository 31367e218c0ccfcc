"""Ends runs whose holder is gone: expired leases, and what a former life of a worker left behind.

Looks at leases alone. Safe to run anywhere, any number at once: every end re-tests its condition under the row's lock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db import DatabaseError
from django.db.models import Q
from django.db.models.functions import Now

from jobs import db
from jobs.conf import conf
from jobs.engine import finish
from jobs.engine.database import MISSING
from jobs.engine.executors.run import decide_retry
from jobs.engine.process_identity import Identity, Life, seconds_since
from jobs.engine.remote import starts
from jobs.models import Job, JobGroup
from jobs.models.job import JobQuerySet
from jobs.states import Cause

logger = logging.getLogger("jobs.engine.maintenance.recovery")
BATCH = 200
FORGET_SEC = 86_400
EXPIRED, CRASHED = "lease expired", "Scheduler crash recovery"  # what a rescued job is said to have died of


@dataclass(frozen=True)
class Sighting:
    """What an expired lease looked like when it was first seen, by our own steady clock."""

    token: UUID | None
    beat: object
    since: float


class Sweeper:
    """Expires leases that are over. Keep one per process: on SQLite its memory guards against clock jumps."""

    def __init__(self) -> None:
        self._seen: dict[UUID, Sighting] = {}
        self._swept: float | None = None
        self._spared = False
        self._quiet = False

    def pause_sec(self) -> float:
        """Until the next round. What is claimed after we saw nothing running keeps its lease for longer than this."""
        return max(conf.RECOVERY_SEC, conf.LEASE_SEC / 2) if self._quiet else conf.RECOVERY_SEC

    def sweep(self) -> int:
        """One round. Returns how many jobs it ended."""
        now = time.monotonic()
        gap = now - self._swept if self._swept is not None else 0.0
        self._swept = now
        slept, self._spared = gap > conf.LEASE_SEC, gap > conf.LEASE_SEC and not self._spared
        if slept and self._spared:  # suspend or SIGSTOP, and maybe of everyone: let the others beat first
            logger.warning("nothing was swept for %.0f s; leases get one more round", gap)
            return 0
        self._quiet = not Job.objects.running().exists()
        if self._quiet:
            return 0
        candidates = list(_expired()[: BATCH * 50])
        if db.clock_may_jump():
            candidates = [job for job in candidates if self._is_surely_over(job, now)]
        self._seen = {pk: seen for pk, seen in self._seen.items() if now - seen.since < FORGET_SEC}
        late = end_overdue(starts.find_overdue_jobs())
        return late + _end(candidates, _expired, Cause.LEASE_EXPIRED, EXPIRED)

    def _is_surely_over(self, job: Job, now: float) -> bool:
        """The database's clock is the host's and may jump; believe a steady clock, or a dead process, instead."""
        owner = Identity.of_owner(job.lease_owner or "")
        if owner is not None and owner.life() == Life.GONE:
            return True
        beaten = seconds_since(job.beat_clock)
        if beaten is not None:
            return beaten > conf.LEASE_SEC + conf.GRACE_SEC
        seen = self._seen.get(job.pk)
        if seen is None or (seen.token, seen.beat) != (job.lease_token, job.heartbeat_at):
            self._seen[job.pk] = Sighting(job.lease_token, job.heartbeat_at, now)
            return False
        return now - seen.since >= conf.LEASE_SEC


def recover_former_life(me: Identity) -> int:
    """A worker came back under its name: end at once what its dead predecessors on this host held."""
    gone = []
    for job in Job.objects.running().filter(lease_owner__startswith=f"{me.name}@"):
        owner = Identity.of_owner(job.lease_owner or "")
        if owner is not None and (owner.name, owner.host) == (me.name, me.host) and owner.life() == Life.GONE:
            gone.append(job)

    def still() -> JobQuerySet:
        return Job.objects.running().filter(lease_owner__in=[job.lease_owner for job in gone])

    return _end(gone, still, Cause.CRASH_RECOVERY, CRASHED)


def end_overdue(late: Sequence[Job]) -> int:
    """Void the leases of remote workers under which a job has run for longer than it may."""
    leases = [job.lease_token for job in late]

    def still() -> JobQuerySet:  # a lease that was overdue once always will be
        return Job.objects.running().filter(lease_token__in=leases)

    return _end(late, still, Cause.TIMEOUT, "timeout")


def _expired() -> JobQuerySet:
    over = Now() - timedelta(seconds=conf.GRACE_SEC)
    return Job.objects.running().filter(lease_expires_at__lt=over)


def _end(found: Sequence[Job], still: Callable[[], JobQuerySet], cause: Cause, error: str) -> int:
    """End the found jobs that are still in that condition; a job whose end fails does not keep the others waiting."""
    plain = [job.pk for job in found if job.group_id is None and not job.cancel_requested]
    single = [(job.pk, job.group_id) for job in found if job.group_id is not None or job.cancel_requested]
    ended = 0
    for start in range(0, len(plain), BATCH):
        ids = plain[start : start + BATCH]
        try:
            plain_still = Q(pk__in=ids, group__isnull=True, cancel_requested=False)
            ended += _end_locked(still().filter(plain_still), None, cause, error)
        except MISSING:
            raise
        except DatabaseError:
            logger.exception("a batch of %d jobs could not be recovered together; trying one by one", len(ids))
            single += [(job_id, None) for job_id in ids]
    for job_id, group_id in single:
        try:
            ended += _end_locked(still().filter(pk=job_id), group_id, cause, error)
        except MISSING:
            raise
        except DatabaseError:
            logger.exception("job %s could not be recovered; it is tried again each round", job_id)
    return ended


def _end_locked(jobs: JobQuerySet, group_id: UUID | None, cause: Cause, error: str) -> int:
    """End these jobs, except those that another transaction has locked; members under the lock of their group."""
    with db.atomic():
        if group_id is not None:
            JobGroup.objects.select_for_update(no_key=True).get(pk=group_id)
        locked = list(jobs.select_for_update(skip_locked=True))
        return finish.expire(
            locked, cause=cause, error=error, tell=_describe_holder, retry_in=lambda job: retry_in(job, cause)
        )


def retry_in(job: Job, cause: Cause) -> float | None:
    """Seconds until the retry of a job that ended without an exception of its own; None for none."""
    return decide_retry(
        job.job_type,
        attempt=job.attempt,
        max_retries=job.max_retries,
        retry_policy=job.retry_policy,
        cause=cause,
        error=None,
    )


def _describe_holder(job: Job) -> dict[str, Any]:
    """Log who held the job; return it for the event."""
    if (start := starts.find_starts([job]).get(job.pk)) is not None:
        holder = {"worker": start.holder.worker, "host": start.host, "pid": start.pid}
    elif (owner := Identity.of_owner(job.lease_owner or "")) is not None:
        holder = {"worker": owner.name, "host": owner.host, "pid": owner.pid}
    else:
        holder = {"worker": job.lease_owner, "host": None, "pid": None}
    last_beat_at = job.heartbeat_at.isoformat() if job.heartbeat_at else None
    logger.warning(
        "job %s (%s): lease of worker %s (host %s, pid %s, last beat %s) is over; recovering",
        *(job.pk, job.job_type, *holder.values(), last_beat_at),
    )
    expires_at = job.lease_expires_at.isoformat() if job.lease_expires_at else None
    return {**holder, "last_beat_at": last_beat_at, "lease_expires_at": expires_at}
