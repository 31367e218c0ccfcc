"""List activities together with the actions of operators on jobs, newest first.

Two sources are merged by time: activities, and those job events that an operator caused. Each is read along an index
in the order of its ids, from the row at which the page before ended. A condition that the index does not cover is
checked for at most SCAN_LIMIT rows; the page is short then, and the next one continues after the last row checked.
A page also ends where the fields of its activities would exceed MAX_PAGE_BYTES; only those of its own are read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import Q, QuerySet

from jobs.errors import NotFound
from jobs.ids import CLOCK_SLACK, min_id_at
from jobs.models import Activity, JobEvent
from jobs.models.activity import JOB, JOB_ACTIONS
from jobs.models.expressions import is_one_of, sql_literals
from jobs.models.payload import count_fitting
from jobs.models.run import OPERATOR_KINDS, SUBMISSION_KINDS
from jobs.states import EventKind
from jobs.stats.event_times import CLOCK_LEEWAY, find_first_event_id
from jobs.validation.fields import parse_id

SCAN_LIMIT = 10_000
FIRST_SCAN_FACTOR = 4  # rows of a first, short scan per row of the page: most filters match most rows
# Columns that an index of activities begins with, those that few rows share first.
INDEXED_COLUMNS = (("object_kind", "object_id"), ("actor_name",), ("tenant",))
EVENT_COLUMNS = (
    *("at", "kind", "from_status", "to_status", "reason", "actor_kind", "actor_name"),
    *("job__tenant", "job__job_type"),
)
FIELDS = ("before", "after")
ACTION_OF_KIND = {kind: action for action, kinds in JOB_ACTIONS.items() for kind in kinds}


@dataclass(frozen=True)
class ActivityFilters:
    """None: any. `actor` is the name of an actor."""

    tenant: str | None = None
    actor_kind: str | None = None
    actor: str | None = None
    action: str | None = None
    object_kind: str | None = None
    object_id: str | None = None
    since: datetime | None = None
    until: datetime | None = None


class Entry(NamedTuple):
    """An activity, or an event of a job in the same form."""

    id: str
    at: datetime
    tenant: str | None
    actor_kind: str
    actor_id: str | None
    actor_name: str
    action: str
    object_kind: str
    object_id: str
    object_name: str
    before: Mapping[str, Any] | None
    after: Mapping[str, Any] | None
    reason: str


class Position(NamedTuple):
    """The next row of each source; None if it has no more."""

    activity: UUID | None
    event: int | None


class _Step(NamedTuple):
    """A row that was read, or without an entry the place at which a scan stopped."""

    key: Any
    at: datetime
    entry: Entry | None


def read_page(filters: ActivityFilters, start: Position | None, limit: int) -> tuple[list[Entry], Position | None]:
    """Return one page and the position of the next, None at the end. `start` None: from the newest."""
    streams = [_read_activities(filters, start, limit + 1), _read_events(filters, start, limit + 1)]
    page: list[Entry] = []
    read_counts = [0, 0]
    while len(page) < limit:
        heads = [
            (streams[index][count], index) for index, count in enumerate(read_counts) if count < len(streams[index])
        ]
        if not heads:
            break
        step, index = max(heads, key=lambda head: (head[0].at, head[1]))
        if step.entry is None:  # rows of this source that were not checked may be newer than all that follows
            break
        page.append(step.entry)
        read_counts[index] += 1
    keys = [
        stream[count].key if count < len(stream) else None for stream, count in zip(streams, read_counts, strict=True)
    ]
    return page, None if keys == [None, None] else Position(*keys)


def _read_activities(filters: ActivityFilters, start: Position | None, count: int) -> list[_Step]:
    is_complete = start is not None and start.activity is None
    if is_complete or filters.object_kind == JOB or filters.action in JOB_ACTIONS:
        return []
    columns = {name: getattr(filters, name) for name in ("tenant", "actor_kind", "action", "object_kind", "object_id")}
    columns["actor_name"] = filters.actor
    wanted = {name: value for name, value in columns.items() if value is not None}
    indexed = next((names for names in INDEXED_COLUMNS if wanted.keys() >= set(names)), ())
    rows = Activity.objects.filter(**{name: wanted.pop(name) for name in indexed})
    if filters.since is not None:
        rows = rows.filter(pk__gte=min_id_at(filters.since - CLOCK_SLACK))
    if filters.until is not None:
        rows = rows.filter(pk__lt=min_id_at(filters.until + CLOCK_SLACK))
    if start is not None:
        rows = rows.filter(pk__lte=start.activity)
    return _read_fields(_scan(rows.defer(*FIELDS), Q(**wanted) & _between(filters), count, _build_activity_entry))


def _read_fields(steps: list[_Step]) -> list[_Step]:
    """Add the changed fields to the entries of activities that fit into a page; stop before the others."""
    entries = [(step, step.entry) for step in steps if step.entry is not None]
    ids = [step.key for step, _entry in entries]
    fitting = count_fitting(Activity.objects.all(), ids, FIELDS)
    rows = Activity.objects.filter(pk__in=ids[:fitting])
    fields = {pk: (before, after) for pk, before, after in rows.values_list("pk", *FIELDS)}
    read: list[_Step] = []
    for step, entry in entries[:fitting]:
        before, after = fields.get(step.key, (None, None))  # retention may have deleted it
        read.append(step._replace(entry=entry._replace(before=before, after=after)))
    rest = [step._replace(entry=None) for step in steps[fitting : fitting + 1]]
    return [*read, *rest]


def _read_events(filters: ActivityFilters, start: Position | None, count: int) -> list[_Step]:
    is_complete = start is not None and start.event is None
    if is_complete or filters.object_kind not in (None, JOB) or filters.action not in (None, *JOB_ACTIONS):
        return []
    kinds = sorted(ACTION_OF_KIND) if filters.action is None else JOB_ACTIONS[filters.action]
    condition = Q(kind__in=list(map(str, kinds))) & _between(filters)
    if filters.tenant is not None:
        condition &= Q(job__tenant=filters.tenant)
    if filters.actor_kind is not None:
        condition &= Q(actor_kind=filters.actor_kind)
    if filters.actor is not None:
        condition &= Q(actor_name=filters.actor)
    events = JobEvent.objects.select_related("job").only(*EVENT_COLUMNS)
    by_operators = is_one_of("actor_kind", OPERATOR_KINDS) & ~Q(kind__in=sql_literals(SUBMISSION_KINDS))
    if filters.object_id is None:
        rows = events.filter(by_operators)
    else:
        rows, condition = events.filter(job_id=_parse_job_id(filters.object_id)), condition & by_operators
    if filters.since is not None:
        rows = rows.filter(pk__gte=find_first_event_id(filters.since - CLOCK_LEEWAY))
    if filters.until is not None:
        rows = rows.filter(pk__lte=find_first_event_id(filters.until + CLOCK_LEEWAY))
    if start is not None:
        rows = rows.filter(pk__lte=start.event)
    return _scan(rows, condition, count, _build_event_entry)


def _between(filters: ActivityFilters) -> Q:
    condition = Q() if filters.since is None else Q(at__gte=filters.since)
    return condition if filters.until is None else condition & Q(at__lt=filters.until)


def _parse_job_id(text: str) -> UUID | None:
    try:
        return parse_id(text)
    except NotFound:  # no job has it
        return None


def _scan(rows: QuerySet[Any], condition: Q, count: int, build_entry: Callable[[Any], Entry]) -> list[_Step]:
    """Return the first `count` rows that match; if there are fewer, and not all were checked, also where it stopped."""
    steps: list[_Step] = []
    last: tuple[Any, datetime] | None = None
    for scan_limit in sorted({min(FIRST_SCAN_FACTOR * count, SCAN_LIMIT), SCAN_LIMIT}):
        checked = rows.order_by("-pk").values_list("pk", "at")
        last = checked[scan_limit - 1 : scan_limit].first() if condition else None
        matching = rows.filter(condition) if last is None else rows.filter(condition, pk__gte=last[0])
        steps = [_Step(row.pk, row.at, build_entry(row)) for row in matching.order_by("-pk")[:count]]
        if last is None or len(steps) == count:
            return steps
    assert last is not None
    return [*steps, _Step(_key_before(last[0]), last[1], None)]


def _key_before(key: UUID | int) -> UUID | int:
    return UUID(int=key.int - 1) if isinstance(key, UUID) else key - 1


def _build_activity_entry(row: Activity) -> Entry:
    """Return the entry of an activity, without its changed fields."""
    values = {name: getattr(row, name) for name in Entry._fields if name not in ("id", *FIELDS)}
    return Entry(id=str(row.pk), before=None, after=None, **values)


def _build_event_entry(event: JobEvent) -> Entry:
    changes = event.from_status != event.to_status and event.from_status != ""
    return Entry(
        id=str(event.pk),
        at=event.at,
        tenant=event.job.tenant,
        actor_kind=event.actor_kind,
        actor_id=None,
        actor_name=event.actor_name,
        action=ACTION_OF_KIND[EventKind(event.kind)],
        object_kind=JOB,
        object_id=str(event.job_id),
        object_name=event.job.job_type,
        before={"status": event.from_status} if changes else None,
        after={"status": event.to_status} if changes else None,
        reason=event.reason,
    )
