"""Leases that are not a job's: kept by heartbeats, ended by their holder, or by whoever finds that it is gone.

An expired lease counts until somebody has ended it: its holder may be renewing it at this very moment, and only the
row's lock can tell.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet
from django.db.models.functions import Now

from jobs import db
from jobs.conf import conf
from jobs.engine import notifications
from jobs.engine.process_identity import Identity, Life, beat_fields, seconds_since
from jobs.engine.transitions import from_now
from jobs.ids import flow_id
from jobs.models import Lease, LeaseKind
from jobs.policies.admission import Candidate
from jobs.policies.concurrency import InUse, Limit

logger = logging.getLogger("jobs.engine.slots.leases")
EXPIRED = "lease expired"
FLOW = ("tenant", "job_type", "resource", "addon_id")  # of a candidate and of its lease alike, and so are:
COSTS = ("cost_units", "priority", "expected_duration_sec")
ROOM = "room"  # for direct calls that wait: there may be a slot now

notifications.hear(ROOM, lambda: None)  # workers listen to the same channel, and have no use for it


def live() -> QuerySet[Lease]:
    return Lease.objects.filter(ended_at__isnull=True)


def renewed() -> dict[str, Any]:
    """What a lease says when it has just been heard of."""
    return {"expires_at": from_now(conf.LEASE_SEC), "heartbeat_at": Now(), **beat_fields()}


def lease_for(candidate: Candidate, kind: LeaseKind, owner: str) -> Lease:
    """Build a lease that is not stored yet."""
    fields = {name: getattr(candidate, name) for name in (*FLOW, *COSTS)}
    return Lease(
        kind=kind,
        flow_id=flow_id(*(fields[name] for name in FLOW)),
        constraints=dict.fromkeys(sorted(candidate.constraints), True),
        owner=owner[:300],
        **fields,
    )


def candidate_of(lease: Lease) -> Candidate:
    fields = {name: getattr(lease, name) for name in (*FLOW, *COSTS)}
    return Candidate(constraints=frozenset(lease.constraints), **fields)


def store(lease: Lease, **fields: Any) -> Lease:
    """Insert it as one that has just been heard of; as it is in the database then."""
    for name, value in {**renewed(), **fields}.items():
        setattr(lease, name, value)
    lease.save(using=db.alias(), force_insert=True)
    return Lease.objects.get(pk=lease.pk)


def beat(ids: Sequence[UUID]) -> tuple[set[UUID], set[UUID]]:
    """Renew these leases. Returns those that were, and those that are over; the rest is in somebody's hand just now."""
    with db.atomic():
        rows = live().filter(pk__in=ids).order_by("pk").select_for_update(no_key=True, skip_locked=True)
        kept = set(rows.values_list("pk", flat=True))
        live().filter(pk__in=kept).update(**renewed())
    missing = set(ids) - kept
    return kept, missing - set(live().filter(pk__in=missing).values_list("pk", flat=True)) if missing else set()


def end(lease_id: UUID, outcome: str) -> bool:
    """Say how it ended, once; wakes who waits for what it held. Whether it was still live."""
    with db.atomic():
        ended = bool(live().filter(pk=lease_id).update(ended_at=Now(), outcome=outcome))
        if ended:
            _announce()
    return ended


def end_dead() -> int:
    """End leases that nobody renews any more; a denial that has run its time is forgotten. Returns how many ended."""
    suspects = _dead(live())
    if not suspects:
        return 0
    with db.atomic():
        free = live().filter(pk__in=[row.pk for row in suspects]).order_by("pk")
        dead = _dead(free.select_for_update(no_key=True, skip_locked=True))  # it may have been renewed since we looked
        forgotten = {row.pk for row in dead if row.kind == LeaseKind.ADMISSION and row.granted_at is None}
        live().filter(pk__in=forgotten).delete()
        ended = [row for row in dead if row.pk not in forgotten]
        live().filter(pk__in=[row.pk for row in ended]).update(ended_at=Now(), outcome=EXPIRED)
        if ended:
            _announce()
    for row in ended:
        facts = (row.pk, row.kind, row.job_type, row.owner)
        logger.warning("lease %s (%s, %s) of %s is over: nobody renews it", *facts)
    return len(ended)


def _dead(leases: QuerySet[Lease]) -> list[Lease]:
    over = Q(expires_at__lt=Now()) | ~Q(process="")
    return [row for row in leases.filter(over).annotate(now=Now()) if _is_dead(row)]


def call_next(limits: Sequence[Limit], in_use: InUse) -> None:
    """Tell direct calls that wait if there is room: who found the limits shut for the queue has counted anyway."""
    reserved = [limit for limit in limits if limit.reserved]
    if reserved and all(limit.max is None or in_use.of(limit) < limit.max for limit in reserved):
        notifications.notify(ROOM)


def _is_dead(lease: Lease) -> bool:
    """Expired, or its process is proven gone. SQLite's clock may jump: there a steady clock must agree."""
    process = Identity.of_owner(lease.process)
    if process is not None and process.life() == Life.GONE:
        return True
    if lease.expires_at >= lease.now:  # type: ignore[attr-defined]
        return False
    beaten = seconds_since(lease.beat_clock) if lease.granted_at is not None or lease.process else None
    return beaten is None or beaten > conf.LEASE_SEC


def _announce() -> None:
    notifications.notify(notifications.READY)
    notifications.notify(ROOM)
