"""Pages of jobs and runs, read along an index so that their cost does not grow with the table.

An `IndexScan` reads rows in the order of an index. If they must also fulfil a condition that the index does not cover,
it checks at most SCAN_LIMIT rows: the page is short then, and its cursor continues after the last row checked. The
order of the queue (INV-004) is read along the index of a tenant's waiting jobs; the queues of several tenants are
merged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from django.db.models import BooleanField, Case, Q, QuerySet, Value, When

from jobs import db
from jobs.api.pagination import CursorKey, Order
from jobs.models import DISPATCH_ORDER, Job
from jobs.models.expressions import sql_literals
from jobs.models.job import JobQuerySet
from jobs.states import Status

SCAN_LIMIT = 10_000
FIRST_SCAN_FACTOR = 4  # rows of a first, short scan per row of the page, since most filters match most rows
MAX_MERGED_QUEUES = 100  # if more tenants have waiting jobs, all waiting jobs are sorted instead
DISPATCH = Order(Job, DISPATCH_ORDER)


@dataclass(frozen=True)
class IndexScan:
    """Rows that an index has in the order of `key`, and the condition that is checked for each of them."""

    rows: QuerySet[Any]
    condition: Q = field(default_factory=Q)
    key: str = "pk"
    joined_key: str = ""  # the same key in a joined table: neither database derives its bound from that of `key`
    is_small: bool = False  # read all rows unsorted: with an order, SQLite would scan the table in that order
    counted_rows: QuerySet[Any] | None = None  # rows to count for the scan limit, by their own key, if not `rows`

    def start_before(self, key: UUID) -> IndexScan:
        """Return the scan of the rows before this key."""
        counted_rows = None if self.counted_rows is None else self.counted_rows.filter(pk__lt=key)
        return replace(self, rows=self.rows.filter(**{f"{self.key}__lt": key}), counted_rows=counted_rows)

    def read(self, count: int, scan_limit: int) -> tuple[list[UUID], UUID | None]:
        """Return the first ids, and the key of the last row checked if the scan limit ended the scan."""
        rows = self.rows.filter(self.condition)
        if self.is_small:
            return sorted(rows.order_by().values_list(self.key, flat=True), reverse=True)[:count], None
        bound: UUID | None = None
        if self.condition:
            counted = self._keys() if self.counted_rows is None else IndexScan(self.counted_rows)._keys()
            bound = counted[scan_limit - 1 : scan_limit].first()
        if bound is not None:
            rows = rows.filter(**{f"{key}__gte": bound for key in (self.key, self.joined_key) if key})
        return list(replace(self, rows=rows)._keys()[:count]), bound

    def _keys(self) -> Any:
        return self.rows.order_by(f"-{self.key}").values_list(self.key, flat=True)


def read_newest(scans: Sequence[IndexScan], after: CursorKey | None, limit: int) -> tuple[list[UUID], CursorKey | None]:
    """Return the ids of one page over all scans, newest first, and the key of the next page, or None at the end."""
    started = scans if after is None else [scan.start_before(UUID(after[0])) for scan in scans]
    if len(started) == 1 and started[0].condition:
        ids, next_key = _merge_results([started[0].read(limit + 1, FIRST_SCAN_FACTOR * limit)], limit)
        if len(ids) == limit or next_key is None:
            return ids, next_key
    return _merge_results([scan.read(limit + 1, SCAN_LIMIT) for scan in started], limit)


def _merge_results(
    results: Sequence[tuple[list[UUID], UUID | None]], limit: int
) -> tuple[list[UUID], CursorKey | None]:
    """Return the ids above the highest bound: below it, the scan with that bound may have missed rows."""
    bound = max((bound for _ids, bound in results if bound is not None), default=None)
    merged = sorted({row_id for ids, _bound in results for row_id in ids}, reverse=True)
    complete = [row_id for row_id in merged if bound is None or row_id >= bound]
    if len(complete) > limit:
        bound = complete[limit - 1]
    return complete[:limit], None if bound is None else [str(bound)]


def read_queue(
    tenant: str | None, condition: Q, after: CursorKey | None, limit: int
) -> tuple[list[UUID], CursorKey | None]:
    """Return the ids of one page in dispatch order, and the key of the next page, or None at the end.

    `tenant` None means all tenants.
    """
    waiting = Job.objects.filter(status__in=sql_literals((Status.PENDING, Status.QUEUED)))
    tenants = _list_waiting_tenants() if tenant is None else [tenant]
    queues = [waiting.filter(tenant=name) for name in tenants] if len(tenants) <= MAX_MERGED_QUEUES else [waiting]
    ids, next_key = _scan_queues(queues, condition, after, limit, FIRST_SCAN_FACTOR * limit)
    if len(ids) < limit and next_key is not None:
        ids, next_key = _scan_queues(queues, condition, after, limit, SCAN_LIMIT)
    return ids, next_key


def _scan_queues(
    queues: Sequence[JobQuerySet], condition: Q, after: CursorKey | None, limit: int, scan_limit: int
) -> tuple[list[UUID], CursorKey | None]:
    """Return the jobs that match among the next `scan_limit` jobs in dispatch order, and the key of the next page."""
    matches = Case(When(condition, then=Value(True)), default=Value(False), output_field=BooleanField())
    rows: list[Any] = []
    for ranges in zip(*(_index_ranges(queue, after) for queue in queues), strict=True):
        rows += _merge_queues([queue.annotate(matches=matches) for queue in ranges], scan_limit - len(rows))
        if len(rows) == scan_limit:
            break
    matching = [row for row in rows if row.matches]
    if len(matching) > limit:
        return [row.pk for row in matching[:limit]], DISPATCH.get_cursor_key(matching[limit - 1])
    return [row.pk for row in matching], DISPATCH.get_cursor_key(rows[-1]) if len(rows) == scan_limit else None


def _merge_queues(queues: Sequence[JobQuerySet], limit: int) -> Iterable[Any]:
    """Return the first rows of all queues. Each is read along its own index, only as far as the merge needs it."""
    key = [name.removeprefix("-") for name in DISPATCH_ORDER]
    sorted_queues = [queue.order_by(*DISPATCH_ORDER).values(*key, "matches")[:limit] for queue in queues]
    compiled = [queue.query.get_compiler(using=db.alias()).as_sql() for queue in sorted_queues]
    # Django compiles the queries, with their values apart; the rest has constants only.
    sql = " UNION ALL ".join(f"SELECT * FROM ({text}) q{number}" for number, (text, _) in enumerate(compiled))  # noqa: S608
    order = ", ".join(f"{name.removeprefix('-')} {'DESC' if name[0] == '-' else 'ASC'}" for name in DISPATCH_ORDER)
    params = [value for _, values in compiled for value in values]
    return Job.objects.raw(f"SELECT * FROM ({sql}) queues ORDER BY {order} LIMIT {limit}", params)  # noqa: S608


def _index_ranges(waiting: JobQuerySet, after: CursorKey | None) -> Sequence[JobQuerySet]:
    """Return the rest of the key's priority, then the lower ones: as one condition they would be no index range."""
    if after is None:
        return [waiting]
    priority, *rest = DISPATCH.parse_cursor_key(after)
    later = Order(Job, DISPATCH_ORDER[1:]).condition_after(rest)
    return [waiting.filter(later, priority=priority), waiting.filter(priority__lt=priority)]


def _list_waiting_tenants() -> list[str]:
    """Return the tenants with waiting jobs, by one index lookup each; at most one more than are merged."""
    waiting = "FROM jobscheduler_job WHERE status IN ('PENDING', 'QUEUED')"
    sql = f"""
    WITH RECURSIVE known(tenant, number) AS (
        SELECT (SELECT min(tenant) {waiting}), 1
        UNION ALL
        SELECT (SELECT min(tenant) {waiting} AND tenant > known.tenant), number + 1
        FROM known WHERE tenant IS NOT NULL AND number <= {MAX_MERGED_QUEUES}
    )
    SELECT tenant FROM known WHERE tenant IS NOT NULL
    """  # noqa: S608 — constants only
    with db.connection().cursor() as cursor:
        cursor.execute(sql)
        return [row[0] for row in cursor.fetchall()]
