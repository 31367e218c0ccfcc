"""The queue as it stands: QUEUED jobs in the order in which they start (INV-004).

Along the index of what waits in a tenant. Rows are judged as they come, at most WINDOW of them, as in `walks`.
"""

from __future__ import annotations

from collections.abc import Sequence
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
Place = list[Any]


def page(caller: Caller, asked: JobFilters, place: Place | None) -> tuple[list[UUID], Place | None]:
    """The ids of one page, and the place to go on from, or None at the end."""
    if asked.status not in (None, [Status.QUEUED]):
        raise InvalidInput(["query", "order"], _("the queue has QUEUED jobs only"), "order")
    if asked.tenant is not None and not caller.sees(asked.tenant):
        return [], None
    tenant = caller.tenant or asked.tenant or _only_tenant()
    waiting = _waiting() if tenant is None else _waiting().filter(tenant=tenant)
    wanted = Q(status=Status.QUEUED) & judged(asked) & (leading(asked) or Q())
    found = _look(waiting, wanted, place, asked.limit, DENSE * asked.limit)
    if len(found[0]) < asked.limit and found[1] is not None:
        found = _look(waiting, wanted, place, asked.limit, WINDOW)
    return found


def _look(
    waiting: JobQuerySet, wanted: Q, place: Place | None, limit: int, window: int
) -> tuple[list[UUID], Place | None]:
    rows = _rows(waiting, wanted, place, window)
    found = [row for row in rows if row[-1]]
    if len(found) > limit:
        return [row[-2] for row in found[:limit]], ORDER.plain(found[limit - 1][:-1])
    return [row[-2] for row in found], ORDER.plain(rows[-1][:-1]) if len(rows) == window else None


def _rows(waiting: JobQuerySet, wanted: Q, place: Place | None, window: int) -> list[tuple[Any, ...]]:
    """The next rows in their order: the key of each, and whether it is wanted."""
    matches = Case(When(wanted, then=Value(True)), default=Value(False), output_field=BooleanField())
    rows: list[tuple[Any, ...]] = []
    for part in _parts(waiting, place):
        keyed = part.order_by(*DISPATCH_ORDER).annotate(matches=matches)
        names = [name.removeprefix("-") for name in DISPATCH_ORDER]
        rows += keyed.values_list(*names, "matches")[: window - len(rows)]
        if len(rows) == window:
            break
    return rows


def _parts(waiting: JobQuerySet, place: Place | None) -> Sequence[JobQuerySet]:
    """The rest of a priority, then the lower ones: one range of the index each, where one condition would be none."""
    if place is None:
        return [waiting]
    priority, *further = ORDER.restored(place)
    later = Order(Job, DISPATCH_ORDER[1:]).beyond(further)
    return [waiting.filter(later, priority=priority), waiting.filter(priority__lt=priority)]


def _waiting() -> JobQuerySet:
    return Job.objects.using(db.alias()).filter(status__in=literals(WAITING))


def _only_tenant() -> str | None:
    """The tenant of all that waits, if there is but one: its index is the order. Two look-ups at the index's ends."""
    by_name = _waiting().values_list("tenant", flat=True)
    first, last = by_name.order_by("tenant").first(), by_name.order_by("-tenant").first()
    return first if first == last else None
