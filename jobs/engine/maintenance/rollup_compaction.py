"""Compact old minutes of the rollup into hours, and hours into days: totals stay exact, rows get fewer.

A compacted row is dated at the start (UTC) of its hour or day, its writer is HOUR_WRITER or DAY_WRITER, and it keeps
every other dimension of the minutes; only the rarest names of a tenant that has more than MAX_NAMES are put together.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from jobs import clock, db
from jobs.engine.sql.rollup import compact_rows
from jobs.models import JobMinute
from jobs.models.rollup import DAY_WRITER, HOUR_RETENTION, HOUR_WRITER, MINUTE_RETENTION

BUCKETS_PER_ROUND = 100  # hours or days that one round compacts


def compactable_rows(before: datetime) -> Any:
    """Return the rows of whole days that ended before this time and are not compacted to days yet."""
    return JobMinute.objects.filter(minute__lt=_midnight(before)).exclude(worker=DAY_WRITER)


def compact_oldest_day(before: datetime) -> int:
    """Compact the oldest such day. Return how many rows it had; zero: there is no such day."""
    oldest = compactable_rows(before).order_by("minute").values_list("minute", flat=True).first()
    if oldest is None:
        return 0
    day = _midnight(oldest)
    with db.atomic() as connection:
        count = compactable_rows(before).filter(minute__lt=day + timedelta(days=1)).count()
        compact_rows(connection, day, day + timedelta(days=1), DAY_WRITER)
    return int(count)


def run_round() -> str:
    """Compact old buckets; return a summary. Without it, sums over the rollup would read more rows every minute."""
    now = clock.now()
    hours = _repeat(lambda: _compact_oldest_hour(now - MINUTE_RETENTION))
    days = _repeat(lambda: compact_oldest_day(now - HOUR_RETENTION) > 0)
    return f"{hours} hours, {days} days"


def _repeat(step: Callable[[], bool]) -> int:
    count = 0
    while count < BUCKETS_PER_ROUND and step():
        count += 1
    return count


def _compact_oldest_hour(before: datetime) -> bool:
    end = before.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    minutes = JobMinute.objects.filter(minute__lt=end).exclude(worker__in=[HOUR_WRITER, DAY_WRITER])
    oldest = minutes.order_by("minute").values_list("minute", flat=True).first()
    if oldest is None:
        return False
    hour = oldest.astimezone(UTC).replace(minute=0, second=0, microsecond=0)
    with db.atomic() as connection:
        compact_rows(connection, hour, hour + timedelta(hours=1), HOUR_WRITER)
    return True


def _midnight(moment: datetime) -> datetime:
    return moment.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
