"""Direct calls that wait or run: list them, end one. `jobs.direct` makes them."""

from __future__ import annotations

import logging
from uuid import UUID

from django.db.models import QuerySet
from django.utils.translation import gettext as _

from jobs import db
from jobs.actors import PYTHON, Actor
from jobs.engine.slots import leases
from jobs.errors import NotFound, WrongState
from jobs.models import Action, Lease, LeaseKind
from jobs.services import activity
from jobs.validation import fields

logger = logging.getLogger("jobs.services.direct_calls")


def list_live_calls(tenant: str | None = None) -> QuerySet[Lease]:
    """Return the direct calls that wait or run, of one tenant or of all."""
    calls = leases.live_leases().filter(kind=LeaseKind.DIRECT)
    return calls if tenant is None else calls.filter(tenant=tenant)


def is_live_call(lease: Lease) -> bool:
    """Return whether this is a direct call that waits or runs."""
    return lease.kind == LeaseKind.DIRECT and lease.ended_at is None


def end(lease_id: UUID, *, tenant: str | None = None, reason: str = "", actor: Actor = PYTHON) -> Lease:
    """End a direct call of this tenant (None: of any), and free its slot. Raise WrongState if it is over.

    The process that runs it notices with its next heartbeat: it asks the handler to stop and answers the caller.
    """
    reason = fields.parse_reason(reason)
    calls = Lease.objects.filter(pk=lease_id, kind=LeaseKind.DIRECT)
    lease = (calls if tenant is None else calls.filter(tenant=tenant)).first()
    if lease is None:
        raise NotFound(_("There is no such direct call."))
    outcome = f"ended by {actor}: {reason}" if reason else f"ended by {actor}"
    with db.atomic():
        was_live = leases.end_lease(lease.pk, outcome)
        if was_live:
            called = activity.ChangedObject(lease.pk, lease.job_type, lease.tenant)
            activity.record(Action.DIRECT_CALL_END, called, actor=actor, reason=reason)
    lease = Lease.objects.get(pk=lease.pk)
    if not was_live:
        kind = lease.outcome.partition(": ")[0]  # what follows may be the words of its handler, which are payload
        raise WrongState(_("This direct call is over: %s.") % kind)
    logger.info("direct call %s of %s %s", lease.pk, lease.job_type, outcome)
    return lease
