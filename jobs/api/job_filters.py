"""Filters of job lists, and the index scans that answer them."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any
from uuid import UUID

from django.db.models import BooleanField, F, Func, Q, Value
from django.db.models.functions import Left
from django.db.models.lookups import Exact
from django.utils.translation import gettext as _

from jobs import clock
from jobs.api import field_schemas as f
from jobs.api.auth import Caller
from jobs.api.index_scan import Walk, read_queue_page
from jobs.api.job_schemas import SHOWN_STATUSES
from jobs.api.pagination import Paged, Place
from jobs.api.request_params import each, gated, key, one_of
from jobs.api.schemas import ID_SCHEMA, words
from jobs.errors import InvalidInput, NotFound
from jobs.models import Job, JobRun
from jobs.models.expressions import has_tag, has_tag_prefix, sql_literals
from jobs.models.job import RARE_STATUSES, JobQuerySet
from jobs.states import ACTIVE, Status
from jobs.validation import fields

MOST_WALKS = 2
PLAIN = ("job_type", "addon_id", "resource")
CLOCK_SLACK = timedelta(hours=1)  # an id has its time from the host that submitted, created_at from the database
Q_SCHEMA = {**f.NAME, "description": "An id, or how a job type, a target or a tag begins."}
TAG = partial(fields.parse_text, max_length=fields.TAG_LENGTH, single_line=True)
ORDERS = ("newest", "queue")
ORDER_SCHEMA = {**words(ORDERS), "description": "`queue`: QUEUED jobs in the order in which they start (INV-004)."}


class JobFilters(Paged):
    status: Annotated[list[str] | None, *each(one_of(*SHOWN_STATUSES), words(SHOWN_STATUSES))] = None
    job_type: Annotated[str | None, *gated(fields.parse_identifier, f.NAME)] = None
    target: Annotated[str | None, *gated(fields.parse_target, f.TARGET)] = None
    tenant: Annotated[str | None, *gated(fields.parse_tenant, f.TENANT)] = None
    tag: Annotated[list[str] | None, *each(TAG, f.TAG)] = None
    group: Annotated[UUID | None, *gated(key, ID_SCHEMA)] = None
    schedule: Annotated[UUID | None, *gated(key, ID_SCHEMA)] = None
    addon_id: Annotated[str | None, *gated(fields.parse_identifier, f.NAME)] = None
    resource: Annotated[str | None, *gated(fields.parse_identifier, f.NAME)] = None
    q: Annotated[str | None, *gated(fields.parse_identifier, Q_SCHEMA)] = None
    created_after: Annotated[datetime | None, *gated(fields.parse_time, f.MOMENT)] = None
    created_before: Annotated[datetime | None, *gated(fields.parse_time, f.MOMENT)] = None
    order: Annotated[str, *gated(one_of(*ORDERS), ORDER_SCHEMA)] = "newest"


def walks(caller: Caller, asked: JobFilters, statuses: list[str] | None = None) -> list[Walk]:
    """The ways that lead to what was asked for; none where the caller can have nothing of it.

    `statuses` are stored ones, for a surface with other words for them.
    """
    if asked.tenant is not None and not caller.sees(asked.tenant):
        return []
    if statuses is None:
        shown = set(asked.status or ())
        if Status.QUEUED in shown:
            shown.add(Status.DISPATCHING)  # which the API shows as QUEUED
        statuses = [str(status) for status in Status if status in shown]
    tenant = caller.tenant if asked.tenant is None else asked.tenant
    of_tenant = Q() if tenant is None else Q(tenant=tenant)
    of_status = Q(status__in=statuses) if statuses else Q()
    rows, also = _created_between(Job.objects.all(), asked), _unindexed(asked)
    if (first := _selective(asked)) is not None:
        return [Walk(rows.filter(first), also & of_tenant & of_status)]
    if tenant not in (None, "default"):
        return [Walk(rows.filter(of_tenant, NotDefault(F("tenant"))), also & of_status)]
    if not 0 < len(statuses) <= MOST_WALKS:
        return [Walk(rows, also & of_tenant & of_status)]
    return [_walk_of_status(status, rows, asked, also & of_tenant) for status in statuses]


def _unindexed(asked: JobFilters) -> Q:
    """Return the conditions that no index knows."""
    found = Q(**{name: value for name in PLAIN if (value := getattr(asked, name)) is not None})
    for tag in asked.tag or ():
        found &= has_tag(tag)
    if asked.created_after is not None:
        found &= Q(created_at__gt=asked.created_after)
    if asked.created_before is not None:
        found &= Q(created_at__lt=asked.created_before)
    if asked.q is not None and _as_id(asked.q) is None:
        found &= _begins("job_type", asked.q) | _begins("target", asked.q) | has_tag_prefix(asked.q)
    return found


def _selective(asked: JobFilters) -> Q | None:
    """Return a condition with an index of its own, which few rows fulfil."""
    if asked.q is not None and (known := _as_id(asked.q)) is not None:
        return Q(pk=known)
    for name in ("target", "schedule", "group"):
        if (value := getattr(asked, name)) is not None:
            return Q(**{name: value})
    return None


def _walk_of_status(status: str, rows: JobQuerySet, asked: JobFilters, also: Q) -> Walk:
    if status in RARE_STATUSES:
        return Walk(rows.filter(status__in=sql_literals(RARE_STATUSES), status=status), also)
    if status in ACTIVE:
        return Walk(rows.filter(status__in=sql_literals(sorted(ACTIVE)), status=status), also, few=True)
    if status == Status.COMPLETED:  # whose runs are not buried under whatever waits
        runs = _created_between(JobRun.objects.all(), asked)
        jobs = _created_between(Job.objects.all(), asked, "run__pk").filter(run__isnull=False)
        return Walk(jobs, also & Q(status=status), "run__pk", joined="pk", measure=runs)
    return Walk(rows, also & Q(status=status))


def _created_between(rows: Any, asked: JobFilters, key: str = "pk") -> Any:
    """Filter by about the age that was asked for, along the key."""
    if asked.created_after is not None:
        rows = rows.filter(**{f"{key}__gte": clock.first_id(asked.created_after - CLOCK_SLACK)})
    if asked.created_before is not None:
        rows = rows.filter(**{f"{key}__lt": clock.first_id(asked.created_before + CLOCK_SLACK)})
    return rows


def _begins(name: str, prefix: str) -> Q:
    """Letter for letter, on both databases: LIKE is blind to case on one of them."""
    return Q(Exact(Left(name, len(prefix)), Value(prefix)))


class NotDefault(Func):
    """The condition of the index over the other tenants, word for word: SQLite finds it only so."""

    template = "NOT (%(expressions)s = 'default')"
    output_field = BooleanField()


def _as_id(text: str) -> UUID | None:
    try:
        return fields.parse_id(text)
    except NotFound:
        return None


def queue_page(caller: Caller, asked: JobFilters, place: Place | None) -> tuple[list[UUID], Place | None]:
    """The ids of one page, and the place to go on from, or None at the end."""
    if asked.status not in (None, [Status.QUEUED]):
        raise InvalidInput(["query", "order"], _("the queue has QUEUED jobs only"), "order")
    if asked.tenant is not None and not caller.sees(asked.tenant):
        return [], None
    wanted = Q(status=Status.QUEUED) & _unindexed(asked) & (_selective(asked) or Q())
    return read_queue_page(caller.tenant or asked.tenant, wanted, place, asked.limit)
