"""Old minutes of the rollup become hours, and then days: totals stay, to the job, while the rows grow few.

A folded row stands at the beginning (UTC) of its hour or day, written by HOUR or FOLDED, with all that minutes tell
apart but their writer.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from jobs import clock, db
from jobs.engine.sql.rollup import FOLDED, HOUR, fold_rows
from jobs.models import JobMinute

MINUTES_KEPT = timedelta(hours=26)  # the figures of the last day are exact to the minute
HOURS_KEPT = timedelta(days=35)  # whatever is forgotten meanwhile; a plot of a month has its hours
AT_ONCE = 100  # hours or days that one round folds


def foldable(before: datetime) -> Any:
    """The minutes of whole days that were over by then."""
    return JobMinute.objects.filter(minute__lt=_midnight(before)).exclude(worker=FOLDED)


def fold_oldest_day(before: datetime) -> int:
    """Returns how many minutes it folded; zero: there is no such day."""
    oldest = foldable(before).order_by("minute").values_list("minute", flat=True).first()
    if oldest is None:
        return 0
    day = _midnight(oldest)
    with db.atomic() as connection:
        minutes = foldable(before).filter(minute__lt=day + timedelta(days=1)).count()
        fold_rows(connection, day, day + timedelta(days=1), FOLDED)
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
    with db.atomic() as connection:
        fold_rows(connection, hour, hour + timedelta(hours=1), HOUR)
    return True


def _midnight(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
