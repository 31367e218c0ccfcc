"""Which jobs ended since a moment, from their events: no index has to be kept for the many that completed."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import Max

from jobs import db
from jobs.admin.paginator import CAP
from jobs.literals import literals
from jobs.models import JobEvent
from jobs.models.audit import RARE_ENDS
from jobs.states import TERMINAL
from jobs.thrift import Kept

FEW = 500  # ids that a statement may name
LEEWAY = timedelta(minutes=10)  # numbers are given before a commit, and times may be of another clock

# Events are numbered as they happen: the first one since a moment is found by halving, a few dozen looks along the key.
_AT = "(SELECT at FROM jobscheduler_jobevent WHERE id >= (low + high) / 2 ORDER BY id LIMIT 1)"
_HALVING = f"""
    WITH RECURSIVE half (low, high) AS (
        SELECT coalesce((SELECT min(id) FROM jobscheduler_jobevent), 0),
               coalesce((SELECT max(id) FROM jobscheduler_jobevent), 0)
        UNION ALL
        SELECT CASE WHEN {_AT} < %s THEN (low + high) / 2 + 1 ELSE low END,
               CASE WHEN {_AT} < %s THEN high ELSE (low + high) / 2 END
        FROM half WHERE low < high
    )
    SELECT max(low) FROM half
"""  # noqa: S608 — nothing that anybody typed


def since(age: timedelta, now: datetime) -> datetime:
    """From the same minute on from which the rollup counts."""
    began = now - age
    whole = began.replace(second=0, microsecond=0)
    return whole if whole == began else whole + timedelta(minutes=1)


class Walk(NamedTuple):
    """Along the events since a moment, up to a few ends."""

    first: int
    events: int
    jobs: list[UUID]


_walks: Kept[Walk] = Kept()


def jobs_ended(moment: datetime, status: str = "", job_type: str = "") -> Any:
    """The ids of those that ended since then, of many the newest: one more than a list counts.

    Where ends are few among much else that happened, they are looked for once, for a while and for all statements.
    """
    ends = JobEvent.objects.filter(at__gte=moment)
    if job_type:
        ends = ends.filter(job__job_type=job_type)
    if status in RARE_ENDS:
        return ends.filter(kind__in=literals(RARE_ENDS), kind=status).order_by("-at").values("job_id")[: CAP + 1]
    ends = ends.filter(kind__in=[status] if status else sorted(TERMINAL)).order_by("-pk")

    def walk() -> Walk:
        first = first_event(moment - LEEWAY)
        last = JobEvent.objects.aggregate(last=Max("pk"))["last"] or 0
        found = ends.filter(pk__gte=first).values_list("job_id", flat=True)[: FEW + 1]
        return Walk(first, last - first, list(found))

    walked = _walks.get((db.alias(), moment, status, job_type), walk, lambda found: found.events)
    if len(walked.jobs) <= FEW:
        return walked.jobs
    return ends.filter(pk__gte=walked.first).values("job_id")[: CAP + 1]


def first_event(moment: datetime) -> int:
    """The number of the first event since then, or of the last one before."""
    connection = db.connection()
    at = connection.ops.adapt_datetimefield_value(moment)
    with connection.cursor() as cursor:
        cursor.execute(_HALVING, [at, at])
        return int(cursor.fetchone()[0])
