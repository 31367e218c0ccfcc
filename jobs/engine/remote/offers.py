"""Offer ready jobs to remote workers that poll, in dispatch order, within every limit.

As in a claim, limit rows are locked first and active jobs are counted after that; jobs that another transaction has
locked are skipped. Only addons that poll get offers, so one that is gone holds a slot for one reservation at most.
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
from jobs.errors import WrongState
from jobs.models import Gate, Job, JobEvent, Poller
from jobs.models.expressions import SqlLiteral
from jobs.models.job import JobQuerySet
from jobs.states import EventKind, Status

logger = logging.getLogger("jobs.engine.remote.offers")
LONGEST_BACKOFF_SEC = 600.0
EXPIRE_BATCH_SIZE = 500
POLLER_RETENTION = timedelta(days=1)


def offered_jobs(addon_id: str, tenant: str | None) -> JobQuerySet:
    """Return the jobs that are reserved for an addon and not started yet, in dispatch order."""
    reserved = Job.objects.active().filter(status=Status.DISPATCHING, addon_id=addon_id).in_dispatch_order()
    return reserved if tenant is None else reserved.filter(tenant=tenant)


def offer_jobs(addon_id: str, tenant: str | None, limit: int) -> list[Job]:
    """Reserve up to `limit` ready jobs of an addon, in dispatch order."""
    # In dispatch order: without it, the server may search all jobs ever for the first ready one.
    if limit < 1 or not list(_ready_jobs(addon_id, tenant).in_dispatch_order().values_list("pk", flat=True)[:1]):
        return []
    limits.ensure_limits()
    try:
        with db.atomic() as connection:
            # Choose as a claim does, and take the jobs that are not locked.
            of_tenant = Filter() if tenant is None else Filter("tenant = %s", [tenant])
            selection = SelectionRound(connection, of_tenant, remote=True, index=Filter("addon_id = %s", [addon_id]))
            chosen = selection.choose(limit)
            ready = _ready_jobs(addon_id, tenant).filter(deadlines.can_be_offered(), pk__in=chosen).in_dispatch_order()
            locked = list(ready.select_for_update(skip_locked=True, of=("self",)))
            selection.record_decisions([job.pk for job in locked])
            reserve_sec = conf.DISPATCH_TIMEOUT_SEC
            return [lifecycle.offer(job, actor=SCHEDULER, reserve_sec=reserve_sec) for job in locked]
    except IntegrityError:  # a constraint guards targets, too; the next poll gets the rest
        logger.exception("the database rejected offers to addon %r", addon_id)
        return []


def offer_to_pollers(tenant: str | None) -> int:
    """Make offers now to every addon that has polled recently. Return how many were made."""
    count = 0
    for poller in _recent_pollers().order_by("pk"):
        if tenant is None or poller.tenant in ("", tenant):
            poller_tenant = poller.tenant or tenant
            limit = poller.most - offered_jobs(poller.addon_id, poller_tenant).count()
            count += len(offer_jobs(poller.addon_id, poller_tenant, limit))
    return count


def expire_offers() -> int:
    """Take back offers that were not started in time; return how many. Each time, the job's next offer waits longer."""
    late = Job.objects.active().filter(status=Status.DISPATCHING, reserved_until__lt=Now())
    count = 0
    for job_id in list(late.values_list("pk", flat=True)[:EXPIRE_BATCH_SIZE]):
        try:
            lifecycle.withdraw(job_id, actor=SCHEDULER, retry_after_sec=_backoff_sec(job_id))
            count += 1
        except WrongState:  # started, or taken back by another process, since the query
            continue
    return count


def record_poll(addon_id: str, tenant: str | None, limit: int) -> None:
    """Record that this addon polls. Not with every poll: an idle addon should not have to write."""
    key = {"tenant": tenant or "", "addon_id": addon_id}
    pollers = Poller.objects.all()
    recently = Now() - timedelta(seconds=conf.DISPATCH_TIMEOUT_SEC / 4)
    if pollers.filter(**key, most=limit, polled_at__gt=recently).exists():
        return
    pollers.bulk_create(
        [Poller(**key, most=limit, polled_at=Now())],
        update_conflicts=True,
        unique_fields=["tenant", "addon_id"],
        update_fields=["most", "polled_at"],
    )


def has_recent_poller(job: Job) -> bool:
    """Return whether an addon that could start this job has polled recently."""
    return _recent_pollers().filter(addon_id=job.addon_id, tenant__in=["", job.tenant]).exists()


def delete_silent_pollers() -> int:
    """Delete the rows of addons that have not polled for a day. Return how many."""
    return Poller.objects.filter(polled_at__lt=Now() - POLLER_RETENTION).delete()[0]


def _backoff_sec(job_id: UUID) -> float:
    """Return the pause before the next offer: 30 s, 60 s, 120 s, … at most 10 min, counted since the last start."""
    kinds = JobEvent.objects.filter(job_id=job_id).order_by("-id").values_list("kind", flat=True)
    expired = 0
    for kind in kinds:
        if kind == EventKind.RUNNING:
            break
        expired += kind == EventKind.WITHDRAWN
    longest = max(LONGEST_BACKOFF_SEC, conf.DISPATCH_TIMEOUT_SEC)
    return float(min(conf.DISPATCH_TIMEOUT_SEC * 2.0 ** min(expired, 64), longest))


def _recent_pollers() -> QuerySet[Poller]:
    recently = Now() - timedelta(seconds=conf.DISPATCH_TIMEOUT_SEC)
    return Poller.objects.filter(polled_at__gt=recently)


def _ready_jobs(addon_id: str, tenant: str | None) -> JobQuerySet:
    ready = Job.objects.filter(gate=SqlLiteral(Gate.READY), remote=True, addon_id=addon_id)
    return ready if tenant is None else ready.filter(tenant=tenant)
