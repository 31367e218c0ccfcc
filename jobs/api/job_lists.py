"""Lists of jobs and runs: their filters, and pages read along an index so that their cost does not grow with the table.

An `IndexScan` reads rows in the order of an index. If they must also fulfil a condition that the index does not cover,
it checks at most SCAN_LIMIT rows: the page is short then, and its cursor continues after the last row checked. The
order of the queue (INV-004) is read along the index of a tenant's waiting jobs; the queues of several tenants are
merged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Annotated, Any
from uuid import UUID

from django.db.models import BooleanField, Case, F, Func, Q, QuerySet, Value, When
from django.db.models.functions import Left
from django.db.models.lookups import Exact
from django.utils.translation import gettext as _

from jobs import db
from jobs.api import field_schemas as f
from jobs.api.auth import Principal
from jobs.api.job_schemas import SHOWN_STATUSES
from jobs.api.pagination import CursorKey, IdPage, Order, Paged, paginate_ids
from jobs.api.request_params import each_validated_by, one_of, parse_id, validated_by
from jobs.api.schemas import ID_SCHEMA, enum_schema
from jobs.api.serializers import select_job_relations, serialize_jobs
from jobs.errors import InvalidInput, NotFound
from jobs.ids import CLOCK_SLACK, min_id_at
from jobs.models import DISPATCH_ORDER, Job, JobRun
from jobs.models.expressions import has_tag, has_tag_prefix
from jobs.models.job import RARE_STATUSES, JobQuerySet
from jobs.models.payload import JOB_PAYLOAD
from jobs.states import ACTIVE, RUN_STATUSES, Status
from jobs.validation import fields

SCAN_LIMIT = 10_000
FIRST_SCAN_FACTOR = 4  # rows of a first, short scan per row of the page, since most filters match most rows
MAX_MERGED_QUEUES = 100  # if more tenants have waiting jobs, all waiting jobs are sorted instead
DISPATCH = Order(Job, DISPATCH_ORDER)
MAX_STATUS_SCANS = 2
EQUALITY_FILTERS = ("job_type", "addon_id", "resource")
Q_SCHEMA = {**f.NAME, "description": "An id, or how a job type, a target or a tag begins."}
validate_tag = partial(fields.parse_text, max_length=fields.TAG_LENGTH, single_line=True)
ORDERS = ("newest", "queue")
ORDERING = {**enum_schema(ORDERS), "description": "`queue`: QUEUED jobs in the order in which they start (INV-004)."}
RUN_STATUS_NAMES = [str(status) for status in RUN_STATUSES]


class JobFilters(Paged):
    status: Annotated[list[str] | None, *each_validated_by(one_of(*SHOWN_STATUSES), enum_schema(SHOWN_STATUSES))] = None
    job_type: Annotated[str | None, *validated_by(fields.parse_identifier, f.NAME)] = None
    target: Annotated[str | None, *validated_by(fields.parse_target, f.TARGET)] = None
    tenant: Annotated[str | None, *validated_by(fields.parse_tenant, f.TENANT)] = None
    tag: Annotated[list[str] | None, *each_validated_by(validate_tag, f.TAG)] = None
    group: Annotated[UUID | None, *validated_by(parse_id, ID_SCHEMA)] = None
    schedule: Annotated[UUID | None, *validated_by(parse_id, ID_SCHEMA)] = None
    addon_id: Annotated[str | None, *validated_by(fields.parse_identifier, f.NAME)] = None
    resource: Annotated[str | None, *validated_by(fields.parse_identifier, f.NAME)] = None
    q: Annotated[str | None, *validated_by(fields.parse_identifier, Q_SCHEMA)] = None
    created_after: Annotated[datetime | None, *validated_by(fields.parse_time, f.MOMENT)] = None
    created_before: Annotated[datetime | None, *validated_by(fields.parse_time, f.MOMENT)] = None
    order: Annotated[str, *validated_by(one_of(*ORDERS), ORDERING)] = "newest"


class RunFilters(Paged):
    status: Annotated[list[str] | None, *each_validated_by(one_of(*RUN_STATUS_NAMES), enum_schema(RUN_STATUSES))] = None
    job_type: Annotated[str | None, *validated_by(fields.parse_identifier, f.NAME)] = None
    tenant: Annotated[str | None, *validated_by(fields.parse_tenant, f.TENANT)] = None


def read_job_page(principal: Principal, operation: str, query: Paged, filters: JobFilters) -> dict[str, Any]:
    """Return one page of jobs and the cursor of the next. `query` is as given, `filters` selects the jobs."""

    def read_ids(after: CursorKey | None, limit: int) -> IdPage:
        if filters.order == "queue":
            return _read_queue_page(principal, filters, after, limit)
        return read_newest(build_scans(principal, filters), after, limit)

    rows, serialize = select_job_relations(Job.objects.all()), partial(serialize_jobs, principal=principal)
    return paginate_ids(principal, operation, query, read_ids, rows, JOB_PAYLOAD, serialize)


def build_scans(principal: Principal, filters: JobFilters, statuses: list[str] | None = None) -> list[IndexScan]:
    """Return the index scans that find the jobs; none if the principal may not see the tenant.

    `statuses` are stored ones, for an API with other status names.
    """
    if filters.tenant is not None and not principal.can_see_tenant(filters.tenant):
        return []
    if statuses is None:
        shown = set(filters.status or ())
        if Status.QUEUED in shown:
            shown.add(Status.DISPATCHING)  # which the API shows as QUEUED
        statuses = [str(status) for status in Status if status in shown]
    tenant = principal.tenant if filters.tenant is None else filters.tenant
    of_tenant = Q() if tenant is None else Q(tenant=tenant)
    of_status = Q(status__in=statuses) if statuses else Q()
    rows, condition = _filter_by_creation(Job.objects.all(), filters), _unindexed_condition(filters)
    if (selective := _selective_condition(filters)) is not None:
        return [IndexScan(rows.filter(selective), condition & of_tenant & of_status)]
    if tenant not in (None, "default"):
        return [IndexScan(rows.filter(of_tenant, NotDefaultTenant(F("tenant"))), condition & of_status)]
    if not 0 < len(statuses) <= MAX_STATUS_SCANS:
        return [IndexScan(rows, condition & of_tenant & of_status)]
    return [_build_status_scan(status, rows, filters, condition & of_tenant) for status in statuses]


def _unindexed_condition(filters: JobFilters) -> Q:
    """Return the conditions that no index covers."""
    condition = Q(**{name: value for name in EQUALITY_FILTERS if (value := getattr(filters, name)) is not None})
    for tag in filters.tag or ():
        condition &= has_tag(tag)
    if filters.created_after is not None:
        condition &= Q(created_at__gt=filters.created_after)
    if filters.created_before is not None:
        condition &= Q(created_at__lt=filters.created_before)
    if filters.q is not None and _parse_job_id(filters.q) is None:
        condition &= _starts_with("job_type", filters.q) | _starts_with("target", filters.q) | has_tag_prefix(filters.q)
    return condition


def _selective_condition(filters: JobFilters) -> Q | None:
    """Return a condition that has its own index and that few rows fulfil, if there is one."""
    if filters.q is not None and (job_id := _parse_job_id(filters.q)) is not None:
        return Q(pk=job_id)
    for name in ("target", "schedule", "group"):
        if (value := getattr(filters, name)) is not None:
            return Q(**{name: value})
    return None


def _build_status_scan(status: str, rows: JobQuerySet, filters: JobFilters, condition: Q) -> IndexScan:
    if status in RARE_STATUSES:
        return IndexScan(rows.of_rare_status(Status(status)), condition)
    if status in ACTIVE:
        return IndexScan(rows.active().filter(status=status), condition, is_small=True)
    if status == Status.COMPLETED:  # scans the runs: among the jobs, waiting ones may outnumber those by far
        runs = _filter_by_creation(JobRun.objects.all(), filters)
        jobs = _filter_by_creation(Job.objects.all(), filters, "run__pk").filter(run__isnull=False)
        return IndexScan(jobs, condition & Q(status=status), "run__pk", joined_key="pk", counted_rows=runs)
    return IndexScan(rows, condition & Q(status=status))


def _filter_by_creation(rows: Any, filters: JobFilters, key: str = "pk") -> Any:
    """Return the rows whose ids are about as old as the filters want: ids are ordered by time."""
    if filters.created_after is not None:
        rows = rows.filter(**{f"{key}__gte": min_id_at(filters.created_after - CLOCK_SLACK)})
    if filters.created_before is not None:
        rows = rows.filter(**{f"{key}__lt": min_id_at(filters.created_before + CLOCK_SLACK)})
    return rows


def _starts_with(name: str, prefix: str) -> Q:
    """Return a case-sensitive prefix condition on both databases: LIKE ignores case on SQLite."""
    return Q(Exact(Left(name, len(prefix)), Value(prefix)))


class NotDefaultTenant(Func):
    """The exact condition of the partial index over other tenants: SQLite uses the index only for this text."""

    template = "NOT (%(expressions)s = 'default')"
    output_field = BooleanField()


def _parse_job_id(text: str) -> UUID | None:
    try:
        return fields.parse_id(text)
    except NotFound:
        return None


def build_run_scans(principal: Principal, query: RunFilters) -> list[IndexScan]:
    if query.tenant is not None and not principal.can_see_tenant(query.tenant):
        return []
    tenant = principal.tenant if query.tenant is None else query.tenant
    scans_runs = tenant in (None, "default")  # the jobs of other tenants have an index of their own
    run_prefix, job_prefix = ("", "job__") if scans_runs else ("run__", "")
    condition = Q(**{f"{run_prefix}status__in": query.status}) if query.status else Q()
    if query.job_type is not None:
        condition &= Q(**{f"{job_prefix}job_type": query.job_type})
    if scans_runs:
        return [IndexScan(JobRun.objects.all(), condition if tenant is None else condition & Q(job__tenant=tenant))]
    jobs = Job.objects.filter(NotDefaultTenant(F("tenant")), tenant=tenant)
    return [IndexScan(jobs, Q(run__isnull=False) & condition, joined_key="run__pk")]


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


def read_newest(scans: Sequence[IndexScan], after: CursorKey | None, limit: int) -> IdPage:
    """Return one page over all scans, newest first."""
    started = scans if after is None else [scan.start_before(UUID(after[0])) for scan in scans]
    if len(started) == 1 and started[0].condition:
        ids, next_key = _merge_results([started[0].read(limit + 1, FIRST_SCAN_FACTOR * limit)], limit)
        if len(ids) == limit or next_key is None:
            return ids, next_key
    return _merge_results([scan.read(limit + 1, SCAN_LIMIT) for scan in started], limit)


def _merge_results(results: Sequence[tuple[list[UUID], UUID | None]], limit: int) -> IdPage:
    """Return the ids above the highest bound: below it, the scan with that bound may have missed rows."""
    bound = max((bound for _ids, bound in results if bound is not None), default=None)
    merged = sorted({row_id for ids, _bound in results for row_id in ids}, reverse=True)
    complete = [row_id for row_id in merged if bound is None or row_id >= bound]
    if len(complete) > limit:
        bound = complete[limit - 1]
    return complete[:limit], None if bound is None else [str(bound)]


def _read_queue_page(principal: Principal, filters: JobFilters, after: CursorKey | None, limit: int) -> IdPage:
    """Return one page in dispatch order."""
    if filters.status not in (None, [Status.QUEUED]):
        raise InvalidInput(["query", "order"], _("order=queue lists QUEUED jobs only"), "order")
    if filters.tenant is not None and not principal.can_see_tenant(filters.tenant):
        return [], None
    condition = Q(status=Status.QUEUED) & _unindexed_condition(filters) & (_selective_condition(filters) or Q())
    waiting = Job.objects.waiting()
    tenant = principal.tenant or filters.tenant
    tenants = _list_waiting_tenants() if tenant is None else [tenant]
    queues = [waiting.filter(tenant=name) for name in tenants] if len(tenants) <= MAX_MERGED_QUEUES else [waiting]
    ids, next_key = _scan_queues(queues, condition, after, limit, FIRST_SCAN_FACTOR * limit)
    if len(ids) < limit and next_key is not None:
        ids, next_key = _scan_queues(queues, condition, after, limit, SCAN_LIMIT)
    return ids, next_key


def _scan_queues(
    queues: Sequence[JobQuerySet], condition: Q, after: CursorKey | None, limit: int, scan_limit: int
) -> IdPage:
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
