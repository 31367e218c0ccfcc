"""Claim jobs for a worker: by a plain claim, or by a selection round.

A plain claim is one statement: no limit is in force and only the queue's order decides. Any other claim is a
`SelectionRound` in its own transaction, which waits for the locks of the limits and then counts: in the same
statement the count would be older than the lock, and limits would be exceeded.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from jobs import db, notifications, signals
from jobs.engine import groups, selection
from jobs.engine.maintenance import deadlines
from jobs.engine.selection import SelectionRound, limits
from jobs.engine.sql.candidates import Filter, find_across_flows
from jobs.engine.sql.claim import Claim, LeaseRequest, build_served_params, claim_chosen, claim_next
from jobs.models import Job
from jobs.policies.concurrency import Limit

__all__ = ["Claim", "Claimer", "ServedJobs", "has_unserved_jobs", "round_to_batch_size"]

BATCH_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 25, 50, 100, 200, 500)


@dataclass(frozen=True)
class ServedJobs:
    """The jobs that a worker serves. `types` are those it has handlers for, or fewer by its options."""

    types: tuple[str, ...]
    resources: tuple[str, ...] | None = None
    tenant: str | None = None
    excluded_resources: tuple[str, ...] = ()
    skip_unserved: bool = False  # unserved jobs may be first in the queue: do not scan over them one by one

    def to_filter(self) -> Filter:
        """Return the SQL condition for jobs that this worker serves."""
        wanted = _build_in_filter("job_type", self.types)
        if self.resources is not None:
            wanted &= _build_in_filter("resource", self.resources)
        if self.excluded_resources:
            excluded = _build_in_filter("resource", self.excluded_resources)
            wanted &= Filter(f"NOT ({excluded.sql})", excluded.params)
        return wanted if self.tenant is None else wanted & Filter("tenant = %s", [self.tenant])


class Claimer:
    """Claims jobs for one worker. Whether limits are in force is cached to save a query; no claim relies on it."""

    def __init__(self, worker: str, served_jobs: ServedJobs, process_key: str | None = None) -> None:
        self.worker = worker
        self.process_key = worker if process_key is None else process_key  # owns the leases
        self.set_served_jobs(served_jobs)
        self.is_saturated = False  # in the last claim, a limit was full or a job was not admitted
        self.has_denied = False  # in the last claim, a job was not admitted
        self.next_start_at: float | None = None  # monotonic: when a rate that prevented starts lets the next job start
        self._has_limits = True
        self._cost_in_use = 0  # at the last selection round

    def set_served_jobs(self, served_jobs: ServedJobs) -> None:
        """Claim these jobs from now on."""
        self.served_jobs = served_jobs
        self.served_params = build_served_params(served_jobs.types, served_jobs.resources, served_jobs.tenant)
        is_filtered = served_jobs.skip_unserved or bool(served_jobs.excluded_resources)
        self._may_be_plain = bool(served_jobs.types) and not is_filtered and selection.is_plain()

    @property
    def is_plain(self) -> bool:
        """Return whether a plain claim is likely to work: no limit was in force at the last claim."""
        return self._may_be_plain and not self._has_limits

    def claim(self, slots: Sequence[int], *, lease_sec: float) -> list[Claim]:
        """Claim up to one job per slot number, in dispatch order, within all limits."""
        slots = slots[: round_to_batch_size(len(slots))]
        if not slots or not self.served_jobs.types:
            return []
        lease_request = LeaseRequest(self.worker, self.process_key, lease_sec)
        claims: list[Claim] = []
        if self.is_plain:
            claims = self._claim_plain(slots, lease_request)
        if not claims and (not self.is_plain or limits.has_limits_in_force()):
            claims = self._claim_selected(slots, lease_request)
        record_starts(claims)
        return claims

    def _claim_plain(self, slots: Sequence[int], lease_request: LeaseRequest) -> list[Claim]:
        with db.atomic_on_sqlite() as connection:
            claims = claim_next(connection, self.served_params, lease_request, slots)
        self.is_saturated = self.has_denied = False
        self.next_start_at = None
        return claims

    def _claim_selected(self, slots: Sequence[int], lease_request: LeaseRequest) -> list[Claim]:
        with db.atomic() as connection:
            selection_round = SelectionRound(connection, self.served_jobs.to_filter())
            began_at = time.monotonic()
            self._has_limits = bool(selection_round.limits)
            startable = selection_round.count_startable(len(slots)) if self._may_be_plain else None
            if startable is not None:  # any of the first ready jobs can start: they need not be read first
                first = slots[: round_to_batch_size(startable)]
                served = self.served_params
                claims = claim_next(connection, served, lease_request, first, limits_locked=True) if first else []
            else:
                chosen = selection_round.choose(len(slots))
                if not selection.is_plain():
                    chosen = _lock_ready(chosen)
                    selection_round.record_decisions(chosen)
                claims = claim_chosen(connection, chosen, lease_request, slots) if chosen else []
            selection_round.take_tokens(claims)
            wait_sec = selection_round.seconds_to_start(self._serves)
            self.next_start_at = None if wait_sec is None else began_at + wait_sec
            # Other workers may use the capacity that became free.
            if selection_round.cost_in_use < self._cost_in_use and not claims:
                notifications.notify(notifications.READY)
            self._cost_in_use = selection_round.cost_in_use
            self.is_saturated = selection_round.is_saturated or (startable is not None and 0 < startable < len(slots))
            self.has_denied = selection_round.has_denied
        return claims

    def _serves(self, limit: Limit) -> bool:
        """Return whether a limit may apply to jobs of this worker."""
        served = {"job_type": self.served_jobs.types, "resource": self.served_jobs.resources}
        served["tenant"] = None if self.served_jobs.tenant is None else (self.served_jobs.tenant,)
        keys = served.get(limit.scope)
        is_excluded = limit.scope == "resource" and limit.key in self.served_jobs.excluded_resources
        return not is_excluded and (keys is None or limit.key in keys)


def record_starts(claims: Sequence[Claim]) -> None:
    """Mark the groups of claimed jobs as started, and send the signals after the commit."""
    if group_ids := {claim.group_id for claim in claims if claim.group_id is not None}:
        groups.mark_started(group_ids)
    if claims:
        started = (signals.StartedJob(claim.id, claim.job_type, claim.tenant) for claim in claims)
        signals.send_after_commit(started=started)


def round_to_batch_size(free: int) -> int:
    """Round down to one of a few sizes: the server plans a literal LIMIT well, and keeps each statement prepared."""
    return max((size for size in BATCH_SIZES if size <= free), default=0)


def has_unserved_jobs(served_jobs: ServedJobs) -> bool:
    """Return whether ready jobs that this worker does not serve are queued: a plain claim would scan over them."""
    served = _build_in_filter("job_type", served_jobs.types)
    return bool(find_across_flows(db.connection(), 1, Filter(f"NOT ({served.sql})", served.params)))


def _lock_ready(job_ids: Sequence[UUID]) -> list[UUID]:
    ready = Job.objects.ready().filter(deadlines.can_be_claimed(), pk__in=job_ids).in_dispatch_order()
    return list(ready.select_for_update(skip_locked=True).values_list("pk", flat=True)) if job_ids else []


def _build_in_filter(column: str, values: Sequence[str]) -> Filter:
    return Filter(f"{column} IN ({', '.join(['%s'] * len(values))})", values)
