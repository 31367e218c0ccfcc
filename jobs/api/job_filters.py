"""The filters of job lists, and the index scans for them."""

from __future__ import annotations

from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any
from uuid import UUID

from django.db.models import BooleanField, F, Func, Q, Value
from django.db.models.functions import Left
from django.db.models.lookups import Exact
from django.utils.translation import gettext as _

from jobs.api import field_schemas as f
from jobs.api.auth import Principal
from jobs.api.index_scan import IndexScan, read_queue
from jobs.api.job_schemas import SHOWN_STATUSES
from jobs.api.pagination import CursorKey, Paged
from jobs.api.request_params import each_validated_by, one_of, parse_id, validated_by
from jobs.api.schemas import ID_SCHEMA, enum_schema
from jobs.errors import InvalidInput, NotFound
from jobs.ids import min_id_at
from jobs.models import Job, JobRun
from jobs.models.expressions import has_tag, has_tag_prefix, sql_literals
from jobs.models.job import RARE_STATUSES, JobQuerySet
from jobs.states import ACTIVE, Status
from jobs.validation import fields

MAX_STATUS_SCANS = 2
EQUALITY_FILTERS = ("job_type", "addon_id", "resource")
CLOCK_SLACK = timedelta(hours=1)  # the submitting host sets the time of an id, the database created_at
Q_SCHEMA = {**f.NAME, "description": "An id, or how a job type, a target or a tag begins."}
validate_tag = partial(fields.parse_text, max_length=fields.TAG_LENGTH, single_line=True)
ORDERS = ("newest", "queue")
ORDER_SCHEMA = {
    **enum_schema(ORDERS),
    "description": "`queue`: QUEUED jobs in the order in which they start (INV-004).",
}


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
    order: Annotated[str, *validated_by(one_of(*ORDERS), ORDER_SCHEMA)] = "newest"


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
        return IndexScan(rows.filter(status__in=sql_literals(RARE_STATUSES), status=status), condition)
    if status in ACTIVE:
        return IndexScan(rows.filter(status__in=sql_literals(sorted(ACTIVE)), status=status), condition, is_small=True)
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


def read_queue_page(
    principal: Principal, filters: JobFilters, after: CursorKey | None
) -> tuple[list[UUID], CursorKey | None]:
    """Return the ids of one page in dispatch order, and the key of the next page, or None at the end."""
    if filters.status not in (None, [Status.QUEUED]):
        raise InvalidInput(["query", "order"], _("order=queue lists QUEUED jobs only"), "order")
    if filters.tenant is not None and not principal.can_see_tenant(filters.tenant):
        return [], None
    condition = Q(status=Status.QUEUED) & _unindexed_condition(filters) & (_selective_condition(filters) or Q())
    return read_queue(principal.tenant or filters.tenant, condition, after, filters.limit)
