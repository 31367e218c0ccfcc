"""Lists of jobs and runs: their filters, and ways along an index whose cost does not grow with the table.

A walk goes along an index. Where rows must fulfil more than the index knows, it looks at no more than WINDOW of them
and hands back the place that it has come to: the page is short then, and the next one goes on from there. The queue's
own order (INV-004) is read along the index of what waits in a tenant; the queues of several tenants are merged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from django.db.models import BooleanField, Case, Q, QuerySet, Value, When

from jobs import db
from jobs.api.pagination import Order, Place
from jobs.models import DISPATCH_ORDER, Job
from jobs.models.expressions import sql_literals
from jobs.models.job import JobQuerySet
from jobs.states import Status

WINDOW = 10_000
DENSE = 4  # a first look at so many rows per row that is wanted, since most filters match most rows
MOST_QUEUES = 100  # where more tenants than that have work, all that waits is sorted
ORDER = Order(Job, DISPATCH_ORDER)


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


def read_queue_page(tenant: str | None, wanted: Q, place: Place | None, limit: int) -> tuple[list[UUID], Place | None]:
    """The ids of one page, and the place to go on from, or None at the end."""
    waiting = sql_literals((Status.PENDING, Status.QUEUED))
    tenants = _tenants() if tenant is None else [tenant]
    every = Job.objects.filter(status__in=waiting)
    queues = [every.filter(tenant=name) for name in tenants] if len(tenants) <= MOST_QUEUES else [every]
    found = _look(queues, wanted, place, limit, DENSE * limit)
    if len(found[0]) < limit and found[1] is not None:
        found = _look(queues, wanted, place, limit, WINDOW)
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
