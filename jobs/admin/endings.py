"""Which jobs ended since a moment, from their events: no index has to be kept for the many that completed."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from jobs import db
from jobs.admin import rollups
from jobs.admin.paginator import CAP
from jobs.literals import literals
from jobs.models import JobEvent
from jobs.models.audit import RARE_ENDS
from jobs.states import TERMINAL

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


def jobs_ended(moment: datetime, status: str = "", job_type: str = "") -> Any:
    """The ids of those that ended since then, of many the newest: one more than a list counts.

    The rollup knows how many there can be: once they are found, nobody looks at what else has happened.
    """
    ends = JobEvent.objects.using(db.alias()).filter(at__gte=moment)
    if status in RARE_ENDS:
        ends = ends.filter(kind__in=literals(RARE_ENDS), kind=status).order_by("-at")
    else:
        kinds = [status] if status else sorted(TERMINAL)
        ends = ends.filter(pk__gte=first_event(moment - LEEWAY), kind__in=kinds).order_by("-pk")
    if job_type:
        ends = ends.filter(job__job_type=job_type)
    return ends.values("job_id")[: min(CAP + 1, rollups.at_most(moment, status, job_type))]


def first_event(moment: datetime) -> int:
    """The number of the first event since then, or of the last one before."""
    connection = db.connection()
    at = connection.ops.adapt_datetimefield_value(moment)
    with connection.cursor() as cursor:
        cursor.execute(_HALVING, [at, at])
        return int(cursor.fetchone()[0])
