"""Old minutes of the rollup become hours, and then days: totals stay, to the job, while the rows grow few.

A folded row stands at the beginning (UTC) of its hour or day, written by HOUR or FOLDED, with all that minutes tell
apart but their writer.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from jobs import clock, db
from jobs.engine.sql.rollup import ADD_UP, INTO, KEY, SUMS
from jobs.models import JobMinute

HOUR, FOLDED = "@hour", "@day"  # no worker can be named so
MINUTES_KEPT = timedelta(hours=26)  # the figures of the last day are exact to the minute
HOURS_KEPT = timedelta(days=35)  # whatever is forgotten meanwhile; a plot of a month has its hours
AT_ONCE = 100  # hours or days that one round folds

_WHAT = ", ".join(KEY[2:])
_INTO = f"""
    {INTO} SELECT %(start)s, %(name)s, {_WHAT}, {", ".join(f"sum({name})" for name in SUMS)} FROM gone GROUP BY {_WHAT}
    {ADD_UP}
"""  # noqa: S608 — our own words
_OF = f"""jobscheduler_jobminute
    WHERE minute >= %(start)s AND minute < %(end)s AND worker <> %(name)s AND worker <> '{FOLDED}'"""
# Whoever deletes a row adds it: two that fold at once cannot count it twice.
_POSTGRES = (f"WITH gone AS (DELETE FROM {_OF} RETURNING *) {_INTO}",)  # noqa: S608 — our own words
# There is no such statement on SQLite, but nobody else writes during our transaction.
_SQLITE = (
    f"WITH gone AS (SELECT * FROM {_OF}) {_INTO}",  # noqa: S608
    f"DELETE FROM {_OF}",  # noqa: S608
)


def foldable(before: datetime) -> Any:
    """The minutes of whole days that were over by then."""
    return JobMinute.objects.filter(minute__lt=_midnight(before)).exclude(worker=FOLDED)


def fold_oldest_day(before: datetime) -> int:
    """Returns how many minutes it folded; zero: there is no such day."""
    oldest = foldable(before).order_by("minute").values_list("minute", flat=True).first()
    if oldest is None:
        return 0
    day = _midnight(oldest)
    with db.atomic():
        minutes = foldable(before).filter(minute__lt=day + timedelta(days=1)).count()
        _fold(day, day + timedelta(days=1), FOLDED)
    return int(minutes)


def one_round() -> str:
    """The housekeeping duty: without it, whoever sums the rollup would read more of it every minute."""
    now = clock.now()
    hours = _repeated(lambda: _fold_oldest_hour(now - MINUTES_KEPT))
    days = _repeated(lambda: fold_oldest_day(now - HOURS_KEPT) > 0)
    return f"{hours} hours, {days} days"


def _repeated(step: Callable[[], bool]) -> int:
    done = 0
    while done < AT_ONCE and step():
        done += 1
    return done


def _fold_oldest_hour(before: datetime) -> bool:
    over = before.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    unfolded = JobMinute.objects.filter(minute__lt=over).exclude(worker__in=[HOUR, FOLDED])
    oldest = unfolded.order_by("minute").values_list("minute", flat=True).first()
    if oldest is None:
        return False
    hour = oldest.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    with db.atomic():
        _fold(hour, hour + timedelta(hours=1), HOUR)
    return True


def _fold(start: datetime, end: datetime, name: str) -> None:
    connection = db.connection()
    adapt = connection.ops.adapt_datetimefield_value
    with connection.cursor() as cursor:
        for statement in _SQLITE if db.is_sqlite() else _POSTGRES:
            cursor.execute(statement, {"start": adapt(start), "end": adapt(end), "name": name})


def _midnight(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
