"""End runs whose worker is gone: expired leases, and jobs of processes of this host that no longer exist.

Looks at leases and processes, not at the rows of workers. Safe to run anywhere, any number at once: every end re-tests
its condition under the row's lock.
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
from django.db.models import Count, Q
from django.db.models.functions import Now

from jobs import db
from jobs.conf import conf
from jobs.engine import finish
from jobs.engine.executors.run import decide_retry
from jobs.engine.remote import starts
from jobs.log_formats import job_fields
from jobs.models import Job, JobGroup
from jobs.models.job import JobQuerySet
from jobs.outages import OUTAGE_ERRORS
from jobs.process_identity import Liveness, ProcessIdentity, seconds_since_beat
from jobs.states import CRASH_RECOVERY_REASON, LEASE_EXPIRED_REASON, TIMEOUT_REASON, Cause
from jobs.time_text import format_time

logger = logging.getLogger("jobs.engine.maintenance.recovery")
BATCH_SIZE = 200
SEEN_RETENTION_SEC = 86_400


@dataclass(frozen=True)
class FirstSeen:
    """An expired lease as it was first seen; `since` is our own steady clock."""

    token: UUID | None
    heartbeat_at: object
    since: float


class LeaseReaper:
    """Ends runs whose lease has expired. Keep one per process: on SQLite its memory guards against clock jumps."""

    def __init__(self) -> None:
        self._first_seen: dict[UUID, FirstSeen] = {}
        self._last_round: float | None = None
        self._skipped_round = False
        self._nothing_runs = False

    def pause_sec(self) -> float:
        """Return the pause until the next round. A lease that begins after an idle round lasts longer than this."""
        return max(conf.RECOVERY_SEC, conf.LEASE_SEC / 2) if self._nothing_runs else conf.RECOVERY_SEC

    def run_round(self) -> int:
        """End runs whose lease has expired, or whose process is gone. Return how many."""
        now = time.monotonic()
        gap = now - self._last_round if self._last_round is not None else 0.0
        self._last_round = now
        was_suspended = gap > conf.LEASE_SEC
        self._skipped_round = was_suspended and not self._skipped_round
        if self._skipped_round:  # suspend or SIGSTOP, and maybe of every worker: let them renew their leases first
            logger.warning("recovery did not run for %.0f s; it skips one round, so that leases can be renewed", gap)
            return 0
        counts = Job.objects.running().aggregate(
            running=Count("pk"),
            expired=Count("pk", filter=_is_expired()),
            remote=Count("pk", filter=Q(remote=True)),
        )
        self._nothing_runs = not counts["running"]
        if self._nothing_runs:
            return 0
        # First: the cause is known of a dead process whose lease has expired as well.
        dead_count = recover_dead_processes()
        expired = list(_expired_jobs()[: BATCH_SIZE * 50]) if counts["expired"] else []
        if db.clock_may_jump():
            expired = [job for job in expired if self._is_surely_expired(job, now)]
        self._first_seen = {pk: seen for pk, seen in self._first_seen.items() if now - seen.since < SEEN_RETENTION_SEC}
        overdue_count = end_overdue_jobs(starts.find_overdue_jobs()) if counts["remote"] else 0
        return dead_count + overdue_count + _end_jobs(expired, _expired_jobs, Cause.LEASE_EXPIRED, LEASE_EXPIRED_REASON)

    def _is_surely_expired(self, job: Job, now: float) -> bool:
        """Return whether the lease has expired by a steady clock, or its process is gone.

        The database's clock is the host's here, and may jump.
        """
        owner = ProcessIdentity.parse_owner(job.lease_owner or "")
        if owner is not None and owner.liveness() == Liveness.GONE:
            return True
        seconds = seconds_since_beat(job.beat_clock)
        if seconds is not None:
            return seconds > conf.LEASE_SEC + conf.GRACE_SEC
        seen = self._first_seen.get(job.pk)
        if seen is None or (seen.token, seen.heartbeat_at) != (job.lease_token, job.heartbeat_at):
            self._first_seen[job.pk] = FirstSeen(job.lease_token, job.heartbeat_at, now)
            return False
        return now - seen.since >= conf.LEASE_SEC


def recover_dead_processes(identity: ProcessIdentity | None = None) -> int:
    """End at once the runs of processes that are proven to be gone. Return how many.

    Provable are processes of this host since its boot, in this pid namespace. Those of an earlier boot are taken for
    gone only if they have the name of this worker, `identity`: another host may have the same host name.
    """
    here = identity or ProcessIdentity.current()
    provable = Q(lease_owner__contains=f"@{here.host}:{here.boot_id}:{here.namespace}:")
    if identity is not None:
        provable |= Q(lease_owner__startswith=f"{identity.name}@{identity.host}:")
    leases = Job.objects.running().filter(provable, remote=False).values_list("lease_owner", flat=True)
    owners = {lease_owner: ProcessIdentity.parse_owner(lease_owner or "") for lease_owner in leases}
    gone = {owner for owner in set(owners.values()) if owner is not None and owner.liveness() == Liveness.GONE}
    abandoned = [lease_owner for lease_owner, owner in owners.items() if owner in gone]

    def select_abandoned() -> JobQuerySet:
        return Job.objects.running().filter(lease_owner__in=abandoned)

    jobs = list(select_abandoned()) if abandoned else []
    return _end_jobs(jobs, select_abandoned, Cause.CRASH_RECOVERY, CRASH_RECOVERY_REASON)


def end_overdue_jobs(overdue: Sequence[Job]) -> int:
    """End remote jobs that have run longer than their max_runtime_sec. Return how many."""
    tokens = [job.lease_token for job in overdue]

    def select_overdue() -> JobQuerySet:  # a lease that was overdue once always will be
        return Job.objects.running().filter(lease_token__in=tokens)

    return _end_jobs(overdue, select_overdue, Cause.TIMEOUT, TIMEOUT_REASON)


def decide_retry_delay(job: Job, cause: Cause, delay_sec: float | None = None) -> float | None:
    """Return the seconds until the retry of a job that ended without an exception of its own; None for none.

    `delay_sec` is the delay that its remote worker has named.
    """
    return decide_retry(job, cause=cause, error=None, delay_sec=delay_sec)


def _is_expired() -> Q:
    return Q(lease_expires_at__lt=Now() - timedelta(seconds=conf.GRACE_SEC))


def _expired_jobs() -> JobQuerySet:
    return Job.objects.running().filter(_is_expired())


def _end_jobs(jobs: Sequence[Job], select: Callable[[], JobQuerySet], cause: Cause, error: str) -> int:
    """End those of these jobs that `select` still returns; a job whose end fails does not stop the others."""
    batched = [job.pk for job in jobs if job.group_id is None and not job.cancel_requested]
    single = [(job.pk, job.group_id) for job in jobs if job.group_id is not None or job.cancel_requested]
    count = 0
    for start in range(0, len(batched), BATCH_SIZE):
        job_ids = batched[start : start + BATCH_SIZE]
        try:
            is_batchable = Q(pk__in=job_ids, group__isnull=True, cancel_requested=False)
            count += _end_locked(select().filter(is_batchable), None, cause, error)
        except OUTAGE_ERRORS:
            raise
        except DatabaseError:
            logger.exception("a batch of %d jobs could not be recovered; recovering one by one", len(job_ids))
            single += [(job_id, None) for job_id in job_ids]
    for job_id, group_id in single:
        try:
            count += _end_locked(select().filter(pk=job_id), group_id, cause, error)
        except OUTAGE_ERRORS:
            raise
        except DatabaseError:
            logger.exception("job %s could not be recovered; the next round tries again", job_id)
    return count


def _end_locked(jobs: JobQuerySet, group_id: UUID | None, cause: Cause, error: str) -> int:
    """End these jobs, except those that another transaction has locked; members under the lock of their group."""
    with db.atomic():
        if group_id is not None:
            JobGroup.objects.select_for_update(no_key=True).get(pk=group_id)
        locked = list(jobs.select_for_update(skip_locked=True))
        return finish.expire(
            locked,
            cause=cause,
            error=error,
            describe=lambda job: _log_holder(job, error),
            retry_in=lambda job: decide_retry_delay(job, cause),
        )


def _log_holder(job: Job, error: str) -> dict[str, Any]:
    """Log which worker held the job, and why it ends; return the facts about the worker for the event."""
    if (start := starts.find_starts([job]).get(job.pk)) is not None:
        holder = {"worker": start.holder.worker, "host": start.host, "pid": start.pid}
    elif (owner := ProcessIdentity.parse_owner(job.lease_owner or "")) is not None:
        holder = {"worker": owner.name, "host": owner.host, "pid": owner.pid}
    else:
        holder = {"worker": job.lease_owner, "host": None, "pid": None}
    last_beat_at = format_time(job.heartbeat_at)
    logger.warning(
        "job %s (%s) of worker %s (host %s, pid %s, last heartbeat %s) is recovered: %s",
        *(job.pk, job.job_type, *holder.values(), last_beat_at, error),
        extra=job_fields(job.pk, job.job_type),
    )
    return {**holder, "last_beat_at": last_beat_at, "lease_expires_at": format_time(job.lease_expires_at)}
