"""Slot leases: leases that are not a job's. Heartbeats renew them; their holder ends them, or maintenance does.

An expired lease counts until it is ended: its holder may be renewing it at this very moment, and only the row's lock
can tell.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet
from django.db.models.functions import Now
from django.utils.translation import gettext as _

from jobs import db, notifications
from jobs.conf import conf
from jobs.errors import CallEnded
from jobs.ids import derive_flow_id
from jobs.models import Lease, LeaseKind
from jobs.models.expressions import from_now
from jobs.policies.admission import Candidate
from jobs.policies.concurrency import InUse, Limit
from jobs.process_identity import Liveness, ProcessIdentity, beat_fields, seconds_since_beat

logger = logging.getLogger("jobs.engine.slots.leases")
EXPIRED = "lease expired"
FLOW_FIELDS = ("tenant", "job_type", "resource", "addon_id")  # the same names in a candidate and in its lease
COST_FIELDS = ("cost_units", "priority", "expected_duration_sec")
SLOT_FREE = "room"  # the notification for waiting direct calls: a slot may be free

notifications.on_notification(SLOT_FREE, lambda: None)  # workers listen to the same channel, and have no use for it


def live_leases() -> QuerySet[Lease]:
    """Return the leases that have not been ended, expired ones included."""
    return Lease.objects.filter(ended_at__isnull=True)


def renewal_fields() -> dict[str, Any]:
    """Return the values that a heartbeat writes into a lease."""
    return {"expires_at": from_now(conf.LEASE_SEC), "heartbeat_at": Now(), **beat_fields()}


def build_lease(candidate: Candidate, kind: LeaseKind, owner: str) -> Lease:
    """Build a lease that is not stored yet."""
    fields = {name: getattr(candidate, name) for name in (*FLOW_FIELDS, *COST_FIELDS)}
    return Lease(
        kind=kind,
        flow_id=derive_flow_id(*(fields[name] for name in FLOW_FIELDS)),
        constraints=dict.fromkeys(sorted(candidate.constraints), True),
        owner=owner[:300],
        **fields,
    )


def build_candidate(lease: Lease) -> Candidate:
    """Build the candidate that the admission policy decides about."""
    fields = {name: getattr(lease, name) for name in (*FLOW_FIELDS, *COST_FIELDS)}
    return Candidate(constraints=frozenset(lease.constraints), **fields)


def insert_lease(lease: Lease, **fields: Any) -> Lease:
    """Insert a renewed lease; return it as the database has it."""
    for name, value in {**renewal_fields(), **fields}.items():
        setattr(lease, name, value)
    lease.save(using=db.alias(), force_insert=True)
    return Lease.objects.get(pk=lease.pk)


def renew_slot_leases(lease_ids: Sequence[UUID]) -> tuple[set[UUID], set[UUID]]:
    """Renew these leases. Return the renewed ones and the ended ones; other transactions have the rest locked."""
    with db.atomic():
        rows = live_leases().filter(pk__in=lease_ids).order_by("pk").select_for_update(no_key=True, skip_locked=True)
        renewed = set(rows.values_list("pk", flat=True))
        live_leases().filter(pk__in=renewed).update(**renewal_fields())
    missing = set(lease_ids) - renewed
    ended = missing - set(live_leases().filter(pk__in=missing).values_list("pk", flat=True)) if missing else set()
    return renewed, ended


def end_lease(lease_id: UUID, outcome: str) -> bool:
    """End a lease with this outcome and wake direct calls that wait. Return whether it was still live."""
    with db.atomic():
        was_live = bool(live_leases().filter(pk=lease_id).update(ended_at=Now(), outcome=outcome))
        if was_live:
            _notify_slot_free()
    return was_live


def is_live(lease_id: UUID) -> bool:
    """Return whether a lease has not been ended."""
    return live_leases().filter(pk=lease_id).exists()


def build_call_ended(lease_id: UUID) -> CallEnded:
    """Return the error for the caller of a direct call whose lease has ended before it."""
    outcome = Lease.objects.filter(pk=lease_id).values_list("outcome", flat=True).first()
    return CallEnded(_("This direct call is over: %s.") % (outcome or EXPIRED))


def end_dead_leases() -> int:
    """End leases that are no longer renewed, and delete denials whose time is over. Return how many leases ended."""
    suspects = _find_dead(live_leases())
    if not suspects:
        return 0
    with db.atomic():
        rows = live_leases().filter(pk__in=[lease.pk for lease in suspects]).order_by("pk")
        # Look again under the lock: a lease may have been renewed since.
        dead = _find_dead(rows.select_for_update(no_key=True, skip_locked=True))
        denials = {lease.pk for lease in dead if lease.kind == LeaseKind.ADMISSION and lease.granted_at is None}
        live_leases().filter(pk__in=denials).delete()
        ended = [lease for lease in dead if lease.pk not in denials]
        live_leases().filter(pk__in=[lease.pk for lease in ended]).update(ended_at=Now(), outcome=EXPIRED)
        if ended:
            _notify_slot_free()
    for lease in ended:
        facts = (lease.pk, lease.kind, lease.job_type, lease.owner)
        logger.warning("lease %s (%s, %s) of %s expired: it was not renewed", *facts)
    return len(ended)


def notify_waiting_calls(limits: Sequence[Limit], in_use: InUse) -> None:
    """Notify waiting direct calls if the limits reserved for them have room.

    Called by a claim that found these limits closed to the queue: it has counted what is in use already.
    """
    reserved = [limit for limit in limits if limit.reserved]
    if reserved and all(limit.max is None or in_use.of(limit) < limit.max for limit in reserved):
        notifications.notify(SLOT_FREE)


def _find_dead(leases: QuerySet[Lease]) -> list[Lease]:
    may_be_dead = Q(expires_at__lt=Now()) | ~Q(process="")
    return [lease for lease in leases.filter(may_be_dead).annotate(now=Now()) if _is_dead(lease)]


def _is_dead(lease: Lease) -> bool:
    """Return whether it expired, or its process is proven gone. SQLite's clock may jump: a steady clock must agree."""
    process = ProcessIdentity.parse_owner(lease.process)
    if process is not None and process.liveness() == Liveness.GONE:
        return True
    if lease.expires_at >= lease.now:  # type: ignore[attr-defined]
        return False
    seconds = seconds_since_beat(lease.beat_clock) if lease.granted_at is not None or lease.process else None
    return seconds is None or seconds > conf.LEASE_SEC


def _notify_slot_free() -> None:
    notifications.notify(notifications.READY)
    notifications.notify(SLOT_FREE)
