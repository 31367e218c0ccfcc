"""Offers to remote workers: what is ready is reserved for whoever asked, in dispatch order, within every limit.

As in a claim, limit rows are locked first and what is active is counted after that; jobs that somebody has in hand are
passed over. Only those who ask get offers, so nobody who is gone can hold a slot for longer than one reservation.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from uuid import UUID

from django.db import IntegrityError
from django.db.models import QuerySet
from django.db.models.functions import Now

from jobs import db
from jobs.actors import SCHEDULER
from jobs.conf import conf
from jobs.engine import lifecycle
from jobs.engine.maintenance import deadlines
from jobs.engine.selection import SelectionRound, limits
from jobs.engine.sql.candidates import Filter
from jobs.engine.transitions import jobs
from jobs.errors import WrongState
from jobs.models import Gate, Job, JobEvent, Poller
from jobs.models.expressions import SqlLiteral
from jobs.models.job import JobQuerySet
from jobs.states import EventKind, Status

logger = logging.getLogger("jobs.engine.remote.offers")
LONGEST_BACKOFF_SEC = 600.0
LATE_AT_ONCE = 500
FORGET = timedelta(days=1)


def offered(addon_id: str, tenant: str | None) -> JobQuerySet:
    """What is reserved for an addon and not started yet, in dispatch order."""
    reserved = jobs().active().filter(status=Status.DISPATCHING, addon_id=addon_id).in_dispatch_order()
    return reserved if tenant is None else reserved.filter(tenant=tenant)


def offer(addon_id: str, tenant: str | None, most: int) -> list[Job]:
    """Reserve up to so many ready jobs of an addon, in dispatch order."""
    # Asked in dispatch order: without one the server may look for the first of them among all jobs ever.
    if most < 1 or not list(_ready(addon_id, tenant).in_dispatch_order().values_list("pk", flat=True)[:1]):
        return []
    limits.ensure()
    try:
        with db.atomic(read_committed=True) as connection:
            # Choose as a claim does, and take what nobody has in hand.
            of_tenant = Filter() if tenant is None else Filter("tenant = %s", [tenant])
            selected = SelectionRound(connection, of_tenant, remote=True, index=Filter("addon_id = %s", [addon_id]))
            chosen = selected.choose(most)
            free = _ready(addon_id, tenant).filter(deadlines.not_too_late(), pk__in=chosen).in_dispatch_order()
            taken = list(free.select_for_update(skip_locked=True, of=("self",)))
            selected.settle([job.pk for job in taken])
            reserve_sec = conf.DISPATCH_TIMEOUT_SEC
            return [lifecycle.offer(job, actor=SCHEDULER, reserve_sec=reserve_sec) for job in taken]
    except IntegrityError:  # the net under the lanes; whoever asks again gets the rest
        logger.exception("offers to addon %r were refused by the database", addon_id)
        return []


def forget_silent() -> int:
    """Forget who has not asked for a long time. Returns how many."""
    return Poller.objects.filter(polled_at__lt=Now() - FORGET).delete()[0]


def withdraw_late() -> int:
    """Take back offers that nobody has started in time. Each time it takes longer until the job is offered again."""
    late = jobs().active().filter(status=Status.DISPATCHING, reserved_until__lt=Now())
    withdrawn = 0
    for job_id in list(late.values_list("pk", flat=True)[:LATE_AT_ONCE]):
        try:
            lifecycle.withdraw(job_id, actor=SCHEDULER, again_in=backoff_sec(job_id))
            withdrawn += 1
        except WrongState:  # started, or taken back by another housekeeper, since we looked
            continue
    return withdrawn


def backoff_sec(job_id: UUID) -> float:
    """30 s, 60 s, 120 s, … at most 10 min: counted since somebody started the job last."""
    kinds = JobEvent.objects.filter(job_id=job_id).order_by("-id").values_list("kind", flat=True)
    before = 0
    for kind in kinds:
        if kind == EventKind.RUNNING:
            break
        before += kind == EventKind.WITHDRAWN
    longest = max(LONGEST_BACKOFF_SEC, conf.DISPATCH_TIMEOUT_SEC)
    return float(min(conf.DISPATCH_TIMEOUT_SEC * 2.0 ** min(before, 64), longest))


def note_poll(addon_id: str, tenant: str | None, most: int) -> None:
    """Remember that this addon is there. Not with every poll: an idle addon should not have to write."""
    key = {"tenant": tenant or "", "addon_id": addon_id}
    pollers = Poller.objects.all()
    lately = Now() - timedelta(seconds=conf.DISPATCH_TIMEOUT_SEC / 4)
    if pollers.filter(**key, most=most, polled_at__gt=lately).exists():
        return
    pollers.bulk_create(
        [Poller(**key, most=most, polled_at=Now())],
        update_conflicts=True,
        unique_fields=["tenant", "addon_id"],
        update_fields=["most", "polled_at"],
    )


def is_asked_for(job: Job) -> bool:
    """Whether somebody who could start it has asked lately."""
    return _asked_lately().filter(addon_id=job.addon_id, tenant__in=["", job.tenant]).exists()


def kick(tenant: str | None) -> int:
    """Make offers now to every addon that asked lately. Returns how many were made."""
    made = 0
    for poller in _asked_lately().order_by("pk"):
        if tenant is None or poller.tenant in ("", tenant):
            theirs = poller.tenant or tenant
            made += len(offer(poller.addon_id, theirs, poller.most - offered(poller.addon_id, theirs).count()))
    return made


def _asked_lately() -> QuerySet[Poller]:
    lately = Now() - timedelta(seconds=conf.DISPATCH_TIMEOUT_SEC)
    return Poller.objects.filter(polled_at__gt=lately)


def _ready(addon_id: str, tenant: str | None) -> JobQuerySet:
    found = jobs().filter(gate=SqlLiteral(Gate.READY), remote=True, addon_id=addon_id)
    return found if tenant is None else found.filter(tenant=tenant)
