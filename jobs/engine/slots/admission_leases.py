"""Leases that count in admission only, for work that has no job: asked for, heartbeated, released."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models.functions import Now

from jobs import db
from jobs.engine.selection.admission import AdmissionRound, is_open
from jobs.engine.slots import leases as contracts
from jobs.engine.transitions import from_now
from jobs.errors import LeaseLost, NotFound
from jobs.models import Lease, LeaseKind
from jobs.policies.admission import Candidate, Denied


@dataclass(frozen=True)
class Granted:
    lease_id: UUID
    expires_at: datetime


def request(
    *,
    owner: str,
    job_type: str,
    tenant: str = "default",
    resource: str = "default",
    addon_id: str = "",
    cost_units: int = 1,
    priority: int = 50,
    constraints: Mapping[str, bool] | None = None,
    expected_duration_sec: float | None = None,
) -> Granted | Denied:
    """Ask for a lease that counts in admission only. Values have passed their gates.

    It lives LEASE_SEC unless it is heartbeated. A denial is the same one until its time to ask again has come.
    """
    candidate = Candidate(
        tenant=tenant,
        job_type=job_type,
        resource=resource,
        addon_id=addon_id,
        cost_units=cost_units,
        priority=priority,
        constraints=frozenset(name for name, value in (constraints or {}).items() if value),
        expected_duration_sec=expected_duration_sec,
    )
    with db.atomic(read_committed=True):
        lease = contracts.lease_for(candidate, LeaseKind.ADMISSION, owner)
        return _granted(lease) if is_open() else _decided(lease, candidate)


def heartbeat(lease_id: UUID, *, owner: str) -> datetime:
    """Renew a lease of one's own; returns until when. Nobody else's is known here."""
    lease = _own(lease_id, owner)
    if not contracts.live().filter(pk=lease.pk).update(**contracts.renewed()):
        raise LeaseLost(f"The lease {lease.pk} is over.")
    return _own(lease_id, owner).expires_at


def release(lease_id: UUID, *, owner: str) -> None:
    """Give it back. Repeating that changes nothing."""
    contracts.end(_own(lease_id, owner).pk, "released")


def _decided(lease: Lease, candidate: Candidate) -> Granted | Denied:
    asking = AdmissionRound()
    # The last time that the same was asked by the same, and denied.
    same = contracts.live().filter(
        kind=LeaseKind.ADMISSION,
        granted_at__isnull=True,
        flow_id=lease.flow_id,
        owner=lease.owner,
        cost_units=lease.cost_units,
        priority=lease.priority,
    )
    before = next((each for each in same if each.constraints == lease.constraints), None)
    if before is not None and before.expires_at > asking.now:
        left = (before.expires_at - asking.now).total_seconds()
        return Denied(before.outcome, float(math.ceil(left)))
    if before is not None:
        before.delete(using=db.alias())
    verdict = asking.decide(candidate)
    if not isinstance(verdict, Denied):
        return _granted(lease)
    lease.outcome, lease.expires_at = verdict.reason, from_now(verdict.retry_after_sec)
    lease.save(using=db.alias(), force_insert=True)
    return verdict


def _granted(lease: Lease) -> Granted:
    stored = contracts.store(lease, granted_at=Now())
    return Granted(stored.pk, stored.expires_at)


def _own(lease_id: UUID, owner: str) -> Lease:
    leases = Lease.objects.filter(kind=LeaseKind.ADMISSION, granted_at__isnull=False)
    lease = leases.filter(pk=lease_id, owner=owner).first()
    if lease is None:
        raise NotFound(f"There is no lease {lease_id}.")
    return lease
