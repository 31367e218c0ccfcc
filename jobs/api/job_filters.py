"""What a list of jobs can be asked, and which index leads to it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any
from uuid import UUID

from django.db.models import BooleanField, F, Func, Q, Value
from django.db.models.functions import Left
from django.db.models.lookups import Exact

from jobs import clock, parsing
from jobs.api import fields as f
from jobs.api.callers import Caller
from jobs.api.pages import Paged
from jobs.api.queries import each, gated, key, one_of
from jobs.api.schemas import ID_SCHEMA, SHOWN_STATUSES, words
from jobs.api.walks import Walk
from jobs.errors import NotFound
from jobs.literals import has_tag, has_tag_prefix, literals
from jobs.models import Job, JobRun
from jobs.models.job import RARE, JobQuerySet
from jobs.states import ACTIVE, Status

MOST_WALKS = 2
CLOCK_SLACK = timedelta(hours=1)  # an id has its time from the host that submitted, created_at from the database
Q_SCHEMA = {**f.NAME, "description": "An id, or how a job type, a target or a tag begins."}
TAG = partial(parsing.text, max_length=parsing.TAG_LENGTH, single_line=True)
ORDERS = ("newest", "queue")
ORDER_SCHEMA = {**words(ORDERS), "description": "`queue`: QUEUED jobs in the order in which they start (INV-004)."}


class JobFilters(Paged):
    status: Annotated[list[str] | None, *each(one_of(*SHOWN_STATUSES), words(SHOWN_STATUSES))] = None
    job_type: Annotated[str | None, *gated(parsing.identifier, f.NAME)] = None
    target: Annotated[str | None, *gated(parsing.target, f.TARGET)] = None
    tenant: Annotated[str | None, *gated(parsing.tenant, f.TENANT)] = None
    tag: Annotated[list[str] | None, *each(TAG, f.TAG)] = None
    group: Annotated[UUID | None, *gated(key, ID_SCHEMA)] = None
    schedule: Annotated[UUID | None, *gated(key, ID_SCHEMA)] = None
    addon_id: Annotated[str | None, *gated(parsing.identifier, f.NAME)] = None
    resource: Annotated[str | None, *gated(parsing.identifier, f.NAME)] = None
    q: Annotated[str | None, *gated(parsing.identifier, Q_SCHEMA)] = None
    created_after: Annotated[datetime | None, *gated(parsing.moment, f.MOMENT)] = None
    created_before: Annotated[datetime | None, *gated(parsing.moment, f.MOMENT)] = None
    order: Annotated[str, *gated(one_of(*ORDERS), ORDER_SCHEMA)] = "newest"


def walks(caller: Caller, asked: JobFilters, statuses: list[str] | None = None) -> list[Walk]:
    """The ways that lead to what was asked for; none where the caller can have nothing of it.

    `statuses` are stored ones, for a surface with other words for them.
    """
    if asked.tenant is not None and not caller.sees(asked.tenant):
        return []
    tenant = caller.tenant if asked.tenant is None else asked.tenant
    of_tenant = Q() if tenant is None else Q(tenant=tenant)
    also, statuses = judged(asked), stored(asked.status or ()) if statuses is None else statuses
    if (first := leading(asked)) is not None:
        return [Walk(_born(asked).filter(first), also & of_tenant & _in(statuses))]
    if tenant not in (None, "default"):
        return [Walk(_born(asked).filter(of_tenant, NotDefault(F("tenant"))), also & _in(statuses))]
    ways = [_way(status, asked, also & of_tenant) for status in statuses]
    return ways if 0 < len(ways) <= MOST_WALKS else [Walk(_born(asked), also & of_tenant & _in(statuses))]


def judged(asked: JobFilters) -> Q:
    """What no index knows."""
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


PLAIN = ("job_type", "addon_id", "resource")


def stored(shown: Iterable[str]) -> list[str]:
    """The statuses behind those that the API shows: what is being dispatched is shown as QUEUED."""
    asked = set(shown)
    return [str(each) for each in Status if each in asked or (each == Status.DISPATCHING and Status.QUEUED in asked)]


def leading(asked: JobFilters) -> Q | None:
    """A condition with an index of its own, which few rows fulfil."""
    if asked.q is not None and (known := _as_id(asked.q)) is not None:
        return Q(pk=known)
    for name in ("target", "schedule", "group"):
        if (value := getattr(asked, name)) is not None:
            return Q(**{name: value})
    return None


def _way(status: str, asked: JobFilters, also: Q) -> Walk:
    if status in RARE:
        return Walk(_born(asked).filter(status__in=literals(RARE), status=status), also)
    if status in ACTIVE:
        return Walk(_born(asked).filter(status__in=literals(sorted(ACTIVE)), status=status), also, few=True)
    if status == Status.COMPLETED:  # whose runs are not buried under whatever waits
        runs = _aged(JobRun.objects.all(), asked)
        jobs = _aged(_jobs(), asked, "run__pk").filter(run__isnull=False)
        return Walk(jobs, also & Q(status=status), "run__pk", joined="pk", measure=runs)
    return Walk(_born(asked), also & Q(status=status))


def _born(asked: JobFilters) -> JobQuerySet:
    return _aged(_jobs(), asked)


def _aged(rows: Any, asked: JobFilters, key: str = "pk") -> Any:
    """Those of about the age that was asked for, along the key."""
    if asked.created_after is not None:
        rows = rows.filter(**{f"{key}__gte": clock.first_id(asked.created_after - CLOCK_SLACK)})
    if asked.created_before is not None:
        rows = rows.filter(**{f"{key}__lt": clock.first_id(asked.created_before + CLOCK_SLACK)})
    return rows


def _jobs() -> JobQuerySet:
    return Job.objects.all()


def _in(statuses: list[str]) -> Q:
    return Q(status__in=statuses) if statuses else Q()


def _begins(name: str, prefix: str) -> Q:
    """Letter for letter, on both databases: LIKE is blind to case on one of them."""
    return Q(Exact(Left(name, len(prefix)), Value(prefix)))


class NotDefault(Func):
    """The condition of the index over the other tenants, word for word: SQLite finds it only so."""

    template = "NOT (%(expressions)s = 'default')"
    output_field = BooleanField()


def _as_id(text: str) -> UUID | None:
    try:
        return parsing.job_id(text)
    except NotFound:
        return None
