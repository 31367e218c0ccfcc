"""The queue as it stands: QUEUED jobs in the order in which they start (INV-004).

Along the index of what waits in a tenant; the queues of several tenants are merged. Rows are judged as they come, at
most WINDOW of them, as in `walks`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any
from uuid import UUID

from django.db.models import BooleanField, Case, Q, Value, When
from django.utils.translation import gettext as _

from jobs import db
from jobs.api.callers import Caller
from jobs.api.job_filters import JobFilters, judged, leading
from jobs.api.pages import Order
from jobs.api.walks import DENSE, WINDOW
from jobs.errors import InvalidInput
from jobs.literals import literals
from jobs.models import DISPATCH_ORDER, Job
from jobs.models.job import JobQuerySet
from jobs.states import Status

WAITING = (Status.PENDING, Status.QUEUED)
ORDER = Order(Job, DISPATCH_ORDER)
KEY = tuple(name.removeprefix("-") for name in DISPATCH_ORDER)
MOST_QUEUES = 100  # where more tenants than that have work, all that waits is sorted
Place = list[Any]


def page(caller: Caller, asked: JobFilters, place: Place | None) -> tuple[list[UUID], Place | None]:
    """The ids of one page, and the place to go on from, or None at the end."""
    if asked.status not in (None, [Status.QUEUED]):
        raise InvalidInput(["query", "order"], _("the queue has QUEUED jobs only"), "order")
    if asked.tenant is not None and not caller.sees(asked.tenant):
        return [], None
    queues = _queues(caller.tenant or asked.tenant)
    wanted = Q(status=Status.QUEUED) & judged(asked) & (leading(asked) or Q())
    found = _look(queues, wanted, place, asked.limit, DENSE * asked.limit)
    if len(found[0]) < asked.limit and found[1] is not None:
        found = _look(queues, wanted, place, asked.limit, WINDOW)
    return found


def _look(
    queues: Sequence[JobQuerySet], wanted: Q, place: Place | None, limit: int, window: int
) -> tuple[list[UUID], Place | None]:
    rows = _rows(queues, wanted, place, window)
    found = [row for row in rows if row.matches]
    if len(found) > limit:
        return [row.pk for row in found[:limit]], ORDER.place(found[limit - 1])
    return [row.pk for row in found], ORDER.place(rows[-1]) if len(rows) == window else None


def _rows(queues: Sequence[JobQuerySet], wanted: Q, place: Place | None, window: int) -> list[Any]:
    """The next jobs in their order: the key of each, and whether it is wanted."""
    matches = Case(When(wanted, then=Value(True)), default=Value(False), output_field=BooleanField())
    rows: list[Any] = []
    for parts in zip(*(_parts(each, place) for each in queues), strict=True):
        rows += _merged([part.annotate(matches=matches) for part in parts], window - len(rows))
        if len(rows) == window:
            break
    return rows


def _merged(queues: Sequence[JobQuerySet], most: int) -> Iterable[Any]:
    """The first rows of all of them. Each is a walk along its own index, which ends as soon as the others are ahead."""
    sorted_ones = [each.order_by(*DISPATCH_ORDER).values(*KEY, "matches")[:most] for each in queues]
    compiled = [each.query.get_compiler(using=db.alias()).as_sql() for each in sorted_ones]
    # Compiled by Django, values apart; the rest is our own words.
    sql = " UNION ALL ".join(f"SELECT * FROM ({text}) q{number}" for number, (text, _) in enumerate(compiled))  # noqa: S608
    order = ", ".join(f"{name.removeprefix('-')} {'DESC' if name[0] == '-' else 'ASC'}" for name in DISPATCH_ORDER)
    params = [each for _, said in compiled for each in said]
    return Job.objects.raw(f"SELECT * FROM ({sql}) queues ORDER BY {order} LIMIT {most}", params)  # noqa: S608


def _parts(waiting: JobQuerySet, place: Place | None) -> Sequence[JobQuerySet]:
    """The rest of a priority, then the lower ones: one range of the index each, where one condition would be none."""
    if place is None:
        return [waiting]
    priority, *further = ORDER.restored(place)
    later = Order(Job, DISPATCH_ORDER[1:]).beyond(further)
    return [waiting.filter(later, priority=priority), waiting.filter(priority__lt=priority)]


def _queues(tenant: str | None) -> list[JobQuerySet]:
    tenants = [tenant] if tenant is not None else _tenants()
    return [_waiting().filter(tenant=each) for each in tenants] if len(tenants) <= MOST_QUEUES else [_waiting()]


def _waiting() -> JobQuerySet:
    return Job.objects.filter(status__in=literals(WAITING))


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
