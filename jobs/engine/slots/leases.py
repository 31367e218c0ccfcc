"""Slot leases: leases that are not a job's. Heartbeats renew them; their holder ends them, or maintenance does.

An expired lease counts until it is ended: its holder may be renewing it at this very moment, and only the row's lock
can tell.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
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
from jobs.policies.concurrency import InUse, Limit, count_free
from jobs.process_identity import Liveness, ProcessIdentity, beat_fields, seconds_since_beat
from jobs.states import CRASH_RECOVERY_REASON, LEASE_EXPIRED_REASON

logger = logging.getLogger("jobs.engine.slots.leases")
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


def end_lease(lease_id: UUID, outcome: str, *, tokens_used: int = 0) -> bool:
    """End a lease with this outcome and wake direct calls that wait. Return whether it was still live."""
    with db.atomic():
        fields = {"ended_at": Now(), "outcome": outcome, "tokens_used": tokens_used}
        was_live = bool(live_leases().filter(pk=lease_id).update(**fields))
        if was_live:
            _notify_slot_free()
    return was_live


def is_live(lease_id: UUID) -> bool:
    """Return whether a lease has not been ended."""
    return live_leases().filter(pk=lease_id).exists()


def build_call_ended(lease_id: UUID) -> CallEnded:
    """Return the error for the caller of a direct call whose lease has ended before it."""
    outcome = Lease.objects.filter(pk=lease_id).values_list("outcome", flat=True).first()
    return CallEnded(_("This direct call is over: %s.") % (outcome or LEASE_EXPIRED_REASON))


def end_dead_leases() -> int:
    """End leases that are no longer renewed, and delete denials whose time is over. Return how many leases ended."""
    suspects = _find_dead(live_leases())
    if not suspects:
        return 0
    with db.atomic():
        rows = live_leases().filter(pk__in=[lease.pk for lease, _outcome in suspects]).order_by("pk")
        # Look again under the lock: a lease may have been renewed since.
        dead = _find_dead(rows.select_for_update(no_key=True, skip_locked=True))
        denials = {lease.pk for lease, _outcome in dead if _is_denial(lease)}
        live_leases().filter(pk__in=denials).delete()
        ended = [(lease, outcome) for lease, outcome in dead if lease.pk not in denials]
        for reason in sorted({outcome for _lease, outcome in ended}):
            lease_ids = [lease.pk for lease, outcome in ended if outcome == reason]
            live_leases().filter(pk__in=lease_ids).update(ended_at=Now(), outcome=reason)
        if ended:
            _notify_slot_free()
    for lease, outcome in ended:
        logger.warning("lease %s (%s, %s) of %s: %s", lease.pk, lease.kind, lease.job_type, lease.owner, outcome)
    return len(ended)


class DeadLeaseCheck:
    """The maintenance task. While there are direct calls, it runs as often as jobs of dead processes are looked for."""

    def __init__(self) -> None:
        self._has_direct_calls = False

    def pause_sec(self) -> float:
        return conf.RECOVERY_SEC if self._has_direct_calls else conf.LEASE_SEC / 2

    def run_round(self) -> int:
        kinds = set(live_leases().order_by().values_list("kind", flat=True).distinct())
        self._has_direct_calls = LeaseKind.DIRECT in kinds
        return end_dead_leases() if kinds else 0


def notify_waiting_calls(limits: Sequence[Limit], in_use: InUse) -> None:
    """Notify waiting direct calls if the limits reserved for them have room.

    Called by a claim that found these limits closed to the queue: it has counted what is in use already.
    """
    reserved = [replace(limit, reserved=False) for limit in limits if limit.reserved]
    if reserved and all(count_free(limit, in_use) != 0 for limit in reserved):
        notifications.notify(SLOT_FREE)


def _find_dead(leases: QuerySet[Lease]) -> list[tuple[Lease, str]]:
    """Return the dead ones of these leases, each with the outcome that it ends with."""
    may_be_dead = Q(expires_at__lt=Now()) | ~Q(process="")
    rows = [(lease, _find_outcome(lease)) for lease in leases.filter(may_be_dead).annotate(now=Now())]
    return [(lease, outcome) for lease, outcome in rows if outcome is not None]


def _find_outcome(lease: Lease) -> str | None:
    """Return why a lease is dead: its process is proven gone, or it expired; None while it lives.

    SQLite's clock may jump: a steady clock must agree that the lease expired.
    """
    process = ProcessIdentity.parse_owner(lease.process)
    if process is not None and process.liveness() == Liveness.GONE:
        return CRASH_RECOVERY_REASON
    if lease.expires_at >= lease.now:  # type: ignore[attr-defined]
        return None
    seconds = seconds_since_beat(lease.beat_clock) if lease.granted_at is not None or lease.process else None
    return LEASE_EXPIRED_REASON if seconds is None or seconds > conf.LEASE_SEC else None


def _is_denial(lease: Lease) -> bool:
    return lease.kind == LeaseKind.ADMISSION and lease.granted_at is None


def _notify_slot_free() -> None:
    notifications.notify(notifications.READY)
    notifications.notify(SLOT_FREE)
