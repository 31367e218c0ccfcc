"""Old minutes of the rollup become days: totals stay, to the job, while the rows grow few.

A folded row stands at midnight UTC of its day, written by FOLDED, with all that minutes tell apart but their writer.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from jobs import db
from jobs.engine.sql.rollup import ADD_UP, INTO, KEY, SUMS
from jobs.models import JobMinute

FOLDED = "@day"  # no worker can be named so

_WHAT = ", ".join(KEY[2:])
_INTO_DAY = f"""
    {INTO} SELECT %(day)s, %(folded)s, {_WHAT}, {", ".join(f"sum({name})" for name in SUMS)} FROM gone GROUP BY {_WHAT}
    {ADD_UP}
"""  # noqa: S608 — our own words
_OF_DAY = "jobscheduler_jobminute WHERE minute >= %(day)s AND minute < %(next_day)s AND worker <> %(folded)s"
# Whoever deletes a row adds it: two that fold at once cannot count it twice.
_POSTGRES = (f"WITH gone AS (DELETE FROM {_OF_DAY} RETURNING *) {_INTO_DAY}",)  # noqa: S608 — our own words
# There is no such statement on SQLite, but nobody else writes during our transaction.
_SQLITE = (
    f"WITH gone AS (SELECT * FROM {_OF_DAY}) {_INTO_DAY}",  # noqa: S608
    f"DELETE FROM {_OF_DAY}",  # noqa: S608
)


def foldable(before: datetime) -> Any:
    """The minutes of whole days that were over by then."""
    return JobMinute.objects.using(db.alias()).filter(minute__lt=_midnight(before)).exclude(worker=FOLDED)


def fold_oldest_day(before: datetime) -> int:
    """Returns how many minutes it folded; zero: there is no such day."""
    oldest = foldable(before).order_by("minute").values_list("minute", flat=True).first()
    if oldest is None:
        return 0
    day = _midnight(oldest)
    with db.atomic() as connection:
        minutes = foldable(before).filter(minute__lt=day + timedelta(days=1)).count()
        adapt = connection.ops.adapt_datetimefield_value
        given = {"day": adapt(day), "next_day": adapt(day + timedelta(days=1)), "folded": FOLDED}
        with connection.cursor() as cursor:
            for statement in _SQLITE if db.is_sqlite() else _POSTGRES:
                cursor.execute(statement, given)
    return int(minutes)


def _midnight(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
