"""Lists of jobs and runs: their filters, and ways along an index whose cost does not grow with the table.

A walk goes along an index. Where rows must fulfil more than the index knows, it looks at no more than WINDOW of them
and hands back the place that it has come to: the page is short then, and the next one goes on from there. The queue's
own order (INV-004) is read along the index of what waits in a tenant; the queues of several tenants are merged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any
from uuid import UUID

from django.db.models import BooleanField, Case, F, Func, Q, QuerySet, Value, When
from django.db.models.functions import Left
from django.db.models.lookups import Exact
from django.utils.translation import gettext as _

from jobs import clock, db
from jobs.api import fields as f
from jobs.api.auth import Caller
from jobs.api.pagination import Order, Paged, Place
from jobs.api.request_params import each, gated, key, one_of
from jobs.api.schemas import ID_SCHEMA, SHOWN_STATUSES, words
from jobs.errors import InvalidInput, NotFound
from jobs.models import DISPATCH_ORDER, Job, JobRun
from jobs.models.expressions import has_tag, has_tag_prefix, sql_literals
from jobs.models.job import RARE_STATUSES, JobQuerySet
from jobs.states import ACTIVE, Status
from jobs.validation import fields

WINDOW = 10_000
DENSE = 4  # a first look at so many rows per row that is wanted, since most filters match most rows
MOST_WALKS = 2
MOST_QUEUES = 100  # where more tenants than that have work, all that waits is sorted
ORDER = Order(Job, DISPATCH_ORDER)
PLAIN = ("job_type", "addon_id", "resource")
CLOCK_SLACK = timedelta(hours=1)  # an id has its time from the host that submitted, created_at from the database
Q_SCHEMA = {**f.NAME, "description": "An id, or how a job type, a target or a tag begins."}
TAG = partial(fields.text, max_length=fields.TAG_LENGTH, single_line=True)
ORDERS = ("newest", "queue")
ORDER_SCHEMA = {**words(ORDERS), "description": "`queue`: QUEUED jobs in the order in which they start (INV-004)."}


class JobFilters(Paged):
    status: Annotated[list[str] | None, *each(one_of(*SHOWN_STATUSES), words(SHOWN_STATUSES))] = None
    job_type: Annotated[str | None, *gated(fields.identifier, f.NAME)] = None
    target: Annotated[str | None, *gated(fields.target, f.TARGET)] = None
    tenant: Annotated[str | None, *gated(fields.tenant, f.TENANT)] = None
    tag: Annotated[list[str] | None, *each(TAG, f.TAG)] = None
    group: Annotated[UUID | None, *gated(key, ID_SCHEMA)] = None
    schedule: Annotated[UUID | None, *gated(key, ID_SCHEMA)] = None
    addon_id: Annotated[str | None, *gated(fields.identifier, f.NAME)] = None
    resource: Annotated[str | None, *gated(fields.identifier, f.NAME)] = None
    q: Annotated[str | None, *gated(fields.identifier, Q_SCHEMA)] = None
    created_after: Annotated[datetime | None, *gated(fields.moment, f.MOMENT)] = None
    created_before: Annotated[datetime | None, *gated(fields.moment, f.MOMENT)] = None
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
        return fields.job_id(text)
    except NotFound:
        return None


@dataclass(frozen=True)
class Walk:
    """`along` is in the order of `key` by an index; `also` is what is judged row by row."""

    along: QuerySet[Any]
    also: Q = field(default_factory=Q)
    key: str = "pk"
    joined: str = ""  # the same key in a table beside: no database carries the edge over to it by itself
    few: bool = False  # so few rows that all are read: asked for an order, SQLite would walk the table in that order
    measure: QuerySet[Any] | None = None  # what the window is counted in, by its own key, if not in the rows themselves

    def before(self, place: UUID) -> Walk:
        measure = None if self.measure is None else self.measure.filter(pk__lt=place)
        return replace(self, along=self.along.filter(**{f"{self.key}__lt": place}), measure=measure)

    def look(self, wanted: int, window: int) -> tuple[list[UUID], UUID | None]:
        """The first ids, and the place where the window ended, if it did before the rows did."""
        rows = self.along.filter(self.also)
        if self.few:
            return sorted(rows.order_by().values_list(self.key, flat=True), reverse=True)[:wanted], None
        edge: UUID | None = None
        if self.also:
            counted = self._keys(self.along) if self.measure is None else Walk(self.measure)._keys(self.measure)
            edge = counted[window - 1 : window].first()
        if edge is not None:
            rows = rows.filter(**{f"{each}__gte": edge for each in (self.key, self.joined) if each})
        return list(self._keys(rows)[:wanted]), edge

    def _keys(self, rows: QuerySet[Any]) -> Any:
        return rows.order_by(f"-{self.key}").values_list(self.key, flat=True)


def newest_page(walks: Sequence[Walk], place: Place | None, limit: int) -> tuple[list[UUID], Place | None]:
    """The ids of one page over all walks, and the place to go on from, or None at the end."""
    started = walks if place is None else [walk.before(UUID(place[0])) for walk in walks]
    if len(started) == 1 and started[0].also:
        ids, further = _certain([started[0].look(limit + 1, DENSE * limit)], limit)
        if len(ids) == limit or further is None:
            return ids, further
    return _certain([walk.look(limit + 1, WINDOW) for walk in started], limit)


def _certain(looks: Sequence[tuple[list[UUID], UUID | None]], limit: int) -> tuple[list[UUID], Place | None]:
    """Nothing below the highest edge is certain: another walk may have more there."""
    floor = max((edge for _ids, edge in looks if edge is not None), default=None)
    ids = sorted({each for found, _edge in looks for each in found}, reverse=True)
    certain = [each for each in ids if floor is None or each >= floor]
    if len(certain) > limit:
        floor = certain[limit - 1]
    return certain[:limit], None if floor is None else [str(floor)]


def queue_page(caller: Caller, asked: JobFilters, place: Place | None) -> tuple[list[UUID], Place | None]:
    """The ids of one page, and the place to go on from, or None at the end."""
    if asked.status not in (None, [Status.QUEUED]):
        raise InvalidInput(["query", "order"], _("the queue has QUEUED jobs only"), "order")
    if asked.tenant is not None and not caller.sees(asked.tenant):
        return [], None
    tenant, waiting = caller.tenant or asked.tenant, sql_literals((Status.PENDING, Status.QUEUED))
    tenants = _tenants() if tenant is None else [tenant]
    every = Job.objects.filter(status__in=waiting)
    queues = [every.filter(tenant=name) for name in tenants] if len(tenants) <= MOST_QUEUES else [every]
    wanted = Q(status=Status.QUEUED) & _unindexed(asked) & (_selective(asked) or Q())
    found = _look(queues, wanted, place, asked.limit, DENSE * asked.limit)
    if len(found[0]) < asked.limit and found[1] is not None:
        found = _look(queues, wanted, place, asked.limit, WINDOW)
    return found


def _look(
    queues: Sequence[JobQuerySet], wanted: Q, place: Place | None, limit: int, window: int
) -> tuple[list[UUID], Place | None]:
    """Find the jobs that match among the next `window` jobs in their order."""
    matches = Case(When(wanted, then=Value(True)), default=Value(False), output_field=BooleanField())
    rows: list[Any] = []
    for parts in zip(*(_parts(queue, place) for queue in queues), strict=True):
        rows += _merged([part.annotate(matches=matches) for part in parts], window - len(rows))
        if len(rows) == window:
            break
    found = [row for row in rows if row.matches]
    if len(found) > limit:
        return [row.pk for row in found[:limit]], ORDER.place(found[limit - 1])
    return [row.pk for row in found], ORDER.place(rows[-1]) if len(rows) == window else None


def _merged(queues: Sequence[JobQuerySet], most: int) -> Iterable[Any]:
    """The first rows of all of them. Each is a walk along its own index, which ends as soon as the others are ahead."""
    key = [name.removeprefix("-") for name in DISPATCH_ORDER]
    sorted_queues = [queue.order_by(*DISPATCH_ORDER).values(*key, "matches")[:most] for queue in queues]
    compiled = [queue.query.get_compiler(using=db.alias()).as_sql() for queue in sorted_queues]
    # Compiled by Django, values apart; the rest is our own words.
    sql = " UNION ALL ".join(f"SELECT * FROM ({text}) q{number}" for number, (text, _) in enumerate(compiled))  # noqa: S608
    order = ", ".join(f"{name.removeprefix('-')} {'DESC' if name[0] == '-' else 'ASC'}" for name in DISPATCH_ORDER)
    params = [value for _, values in compiled for value in values]
    return Job.objects.raw(f"SELECT * FROM ({sql}) queues ORDER BY {order} LIMIT {most}", params)  # noqa: S608


def _parts(waiting: JobQuerySet, place: Place | None) -> Sequence[JobQuerySet]:
    """The rest of a priority, then the lower ones: one range of the index each, where one condition would be none."""
    if place is None:
        return [waiting]
    priority, *further = ORDER.restored(place)
    later = Order(Job, DISPATCH_ORDER[1:]).beyond(further)
    return [waiting.filter(later, priority=priority), waiting.filter(priority__lt=priority)]


def _tenants() -> list[str]:
    """Whose jobs wait: a look-up in the index for each of them, and no more than are merged."""
    waiting = "FROM jobscheduler_job WHERE status IN ('PENDING', 'QUEUED')"
    sql = f"""
    WITH RECURSIVE known(tenant, number) AS (
        SELECT (SELECT min(tenant) {waiting}), 1
        UNION ALL
        SELECT (SELECT min(tenant) {waiting} AND tenant > known.tenant), number + 1
        FROM known WHERE tenant IS NOT NULL AND number <= {MOST_QUEUES}
    )
    SELECT tenant FROM known WHERE tenant IS NOT NULL
    """  # noqa: S608 — our own words and number
    with db.connection().cursor() as cursor:
        cursor.execute(sql)
        return [row[0] for row in cursor.fetchall()]
