"""Admission leases: they count in admission only, for work that has no job. Requested, renewed, released.

Not in `leases`, because selection counts leases and this module asks selection's admission round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.db.models.functions import Now

from jobs import db
from jobs.conf import conf
from jobs.engine.selection.admission import AdmissionRound, has_open_policy
from jobs.engine.slots import leases
from jobs.errors import LeaseLost, NotFound
from jobs.models import Lease, LeaseKind
from jobs.models.expressions import from_now
from jobs.policies.admission import Candidate, Denied

MAX_LIVE_LEASES = 1000  # of one owner, denials included: each is a row, and admission counts the granted ones


@dataclass(frozen=True)
class GrantedLease:
    """A lease that was granted, and until when it lives unless it is renewed."""

    lease_id: UUID
    expires_at: datetime


def request_lease(
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
) -> GrantedLease | Denied:
    """Ask for a lease that counts in admission only. The values have been validated.

    It lives LEASE_SEC unless it is renewed. A repeated request gets the same denial until its retry time has come. An
    owner with MAX_LIVE_LEASES gets no further one.
    """
    candidate = Candidate(
        tenant=tenant,
        job_type=job_type,
        resource=resource,
        addon_id=addon_id,
        cost_units=cost_units,
        priority=priority,
        constraints=frozenset(name for name, is_set in (constraints or {}).items() if is_set),
        expected_duration_sec=expected_duration_sec,
    )
    with db.atomic():
        lease = leases.build_lease(candidate, LeaseKind.ADMISSION, owner)
        if leases.live_leases().filter(kind=LeaseKind.ADMISSION, owner=lease.owner).count() >= MAX_LIVE_LEASES:
            return Denied(f"this token has {MAX_LIVE_LEASES} leases", conf.LEASE_SEC)
        return _grant(lease) if has_open_policy() else _decide(lease, candidate)


def renew_lease(lease_id: UUID, *, owner: str) -> datetime:
    """Renew a lease of this owner; return until when. Raise NotFound for a lease of another owner."""
    lease = _get_own_lease(lease_id, owner)
    if not leases.live_leases().filter(pk=lease.pk).update(**leases.renewal_fields()):
        raise LeaseLost(f"The lease {lease.pk} is over.")
    return _get_own_lease(lease_id, owner).expires_at


def release_lease(lease_id: UUID, *, owner: str) -> None:
    """End a lease of this owner. Repeating it changes nothing."""
    leases.end_lease(_get_own_lease(lease_id, owner).pk, "released")


def _decide(lease: Lease, candidate: Candidate) -> GrantedLease | Denied:
    admission_round = AdmissionRound()
    denials = leases.live_leases().filter(
        kind=LeaseKind.ADMISSION,
        granted_at__isnull=True,
        flow_id=lease.flow_id,
        owner=lease.owner,
        cost_units=lease.cost_units,
        priority=lease.priority,
    )
    # The owner's last request for the same, if it was denied.
    last_denial = next((denial for denial in denials if denial.constraints == lease.constraints), None)
    if last_denial is not None and last_denial.expires_at > admission_round.now:
        retry_sec = (last_denial.expires_at - admission_round.now).total_seconds()
        return Denied(last_denial.outcome, float(math.ceil(retry_sec)))
    if last_denial is not None:
        last_denial.delete(using=db.alias())
    verdict = admission_round.decide(candidate)
    if not isinstance(verdict, Denied):
        return _grant(lease)
    lease.outcome, lease.expires_at = verdict.reason, from_now(verdict.retry_after_sec)
    lease.save(using=db.alias(), force_insert=True)
    return verdict


def _grant(lease: Lease) -> GrantedLease:
    row = leases.insert_lease(lease, granted_at=Now())
    return GrantedLease(row.pk, row.expires_at)


def _get_own_lease(lease_id: UUID, owner: str) -> Lease:
    granted = Lease.objects.filter(kind=LeaseKind.ADMISSION, granted_at__isnull=False)
    lease = granted.filter(pk=lease_id, owner=owner).first()
    if lease is None:
        raise NotFound(f"There is no lease {lease_id}.")
    return lease
