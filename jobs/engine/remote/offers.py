"""Offer ready jobs to remote workers that poll, in dispatch order, within every limit.

As in a claim, limit rows are locked first and active jobs are counted after that; jobs that another transaction has
locked are skipped. Only addons that poll get offers, so one that is gone holds a slot for one reservation at most.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
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
from jobs.engine.sql.candidates import Filter, find_across_flows
from jobs.errors import WrongState
from jobs.models import Gate, Job, JobEvent, Poller
from jobs.models.expressions import SqlLiteral
from jobs.models.job import JobQuerySet
from jobs.states import EventKind, Status

logger = logging.getLogger("jobs.engine.remote.offers")
LONGEST_BACKOFF_SEC = 600.0
EXPIRE_BATCH_SIZE = 500
POLLER_RETENTION = timedelta(days=1)
MAX_POLLERS = 1000  # of one tenant; others get offers when they poll, but none in between


Addons = Sequence[str] | None  # None: every addon, and jobs without one


def offered_jobs(addons: Addons, tenant: str | None) -> JobQuerySet:
    """Return the jobs that are reserved for these addons and not started yet, in dispatch order."""
    reserved = Job.objects.active().filter(status=Status.DISPATCHING).in_dispatch_order()
    return _filter_jobs(reserved, addons, tenant)


def offer_jobs(addons: Addons, tenant: str | None, limit: int) -> list[UUID]:
    """Reserve up to `limit` ready jobs of these addons; return their ids in dispatch order."""
    if limit < 1 or not _has_ready_jobs(addons, tenant):
        return []
    limits.ensure_limits()
    try:
        with db.atomic() as connection:
            # Choose as a claim does, and take the jobs that are not locked.
            selection = SelectionRound(connection, *_build_filters(addons, tenant), remote=True)
            chosen = selection.choose(limit)
            ready = _ready_jobs(addons, tenant).filter(deadlines.can_be_offered(), pk__in=chosen).in_dispatch_order()
            locked = list(ready.select_for_update(skip_locked=True, of=("self",)).defer("params", "checkpoint"))
            selection.record_decisions([job.pk for job in locked])
            selection.take_tokens(locked)
            reserve_sec = conf.DISPATCH_TIMEOUT_SEC
            return [lifecycle.offer(job, actor=SCHEDULER, reserve_sec=reserve_sec).pk for job in locked]
    except IntegrityError:  # a constraint guards targets, too; the next poll gets the rest
        logger.exception("the database rejected offers to addons %r", addons)
        return []


def offer_to_pollers(tenant: str | None) -> int:
    """Make offers now to every addon that has polled recently. Return how many were made."""
    count = 0
    for poller in _recent_pollers().order_by("pk"):
        if tenant is None or poller.tenant in ("", tenant):
            addons, poller_tenant = [poller.addon_id] if poller.addon_id else None, poller.tenant or tenant
            limit = poller.most - offered_jobs(addons, poller_tenant).count()
            count += len(offer_jobs(addons, poller_tenant, limit))
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


def record_poll(addons: Addons, tenant: str | None, limit: int) -> None:
    """Record that these addons poll. Not with every poll: an idle addon should not have to write."""
    names = [""] if addons is None else list(addons)
    pollers = Poller.objects.filter(tenant=tenant or "")
    recently = Now() - timedelta(seconds=conf.DISPATCH_TIMEOUT_SEC / 4)
    recorded = set(
        pollers.filter(addon_id__in=names, most=limit, polled_at__gt=recently).values_list("addon_id", flat=True)
    )
    if recorded.issuperset(names):
        return
    known = set(pollers.filter(addon_id__in=names).values_list("addon_id", flat=True))
    if (added := len(names) - len(known)) and pollers.count() + added > MAX_POLLERS:
        names = sorted(known)
    pollers.bulk_create(
        [Poller(tenant=tenant or "", addon_id=name, most=limit, polled_at=Now()) for name in sorted(names)],
        update_conflicts=True,
        unique_fields=["tenant", "addon_id"],
        update_fields=["most", "polled_at"],
    )


def has_recent_poller(job: Job) -> bool:
    """Return whether an addon that could start this job has polled recently."""
    return _recent_pollers().filter(addon_id__in=["", job.addon_id], tenant__in=["", job.tenant]).exists()


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


def _has_ready_jobs(addons: Addons, tenant: str | None) -> bool:
    wanted, index = _build_filters(addons, tenant)
    if index is None:
        return bool(find_across_flows(db.connection(), 1, wanted, remote=True))
    # In dispatch order: without it, the server may search all jobs ever for the first ready one.
    return bool(list(_ready_jobs(addons, tenant).in_dispatch_order().values_list("pk", flat=True)[:1]))


def _build_filters(addons: Addons, tenant: str | None) -> tuple[Filter, Filter | None]:
    """Return the condition, and the one that an index starts with: that of a single addon."""
    wanted = Filter() if tenant is None else Filter("tenant = %s", [tenant])
    if addons is None:
        return wanted, None
    if len(addons) == 1:
        return wanted, Filter("addon_id = %s", list(addons))
    return wanted & Filter(f"addon_id IN ({', '.join(['%s'] * len(addons))})", list(addons)), None


def _ready_jobs(addons: Addons, tenant: str | None) -> JobQuerySet:
    return _filter_jobs(Job.objects.filter(gate=SqlLiteral(Gate.READY), remote=True), addons, tenant)


def _filter_jobs(jobs: JobQuerySet, addons: Addons, tenant: str | None) -> JobQuerySet:
    if addons is not None:
        jobs = jobs.filter(addon_id=addons[0]) if len(addons) == 1 else jobs.filter(addon_id__in=addons)
    return jobs if tenant is None else jobs.filter(tenant=tenant)
