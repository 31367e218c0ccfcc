"""Finished jobs of a window of time, by bucket of that time: queries of the rollup for charts and figures.

A day of a busy site has tens of thousands of rows, so that sums of many jobs are cached like counts of many live jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import DateTimeField, F, Func, Q, Sum
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from jobs import db
from jobs.models import JobMinute
from jobs.models.rollup import BUCKETS_SEC
from jobs.states import Status
from jobs.stats.cache import RateLimitedCache

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
TOP_BUCKET = len(BUCKETS_SEC)


@dataclass(frozen=True)
class Window:
    """The time that a page looks back, and the width of the slots of its charts."""

    name: str
    label: Promise  # "24 h"
    length: timedelta
    slot: timedelta
    slot_label: Promise  # "per 30 min"

    def starts(self, now: datetime) -> list[datetime]:
        """Return the start of every slot, the current one last."""
        seconds = int(self.slot.total_seconds())
        last = datetime.fromtimestamp(int(now.timestamp()) // seconds * seconds, UTC)
        return [last - self.slot * back for back in reversed(range(self.length // self.slot))]


WINDOWS = {
    window.name: window
    for window in (
        Window("1h", _("1 h"), HOUR, MINUTE, _("per minute")),
        Window("24h", _("24 h"), DAY, timedelta(minutes=30), _("per 30 min")),
        Window("7d", _("7 d"), timedelta(days=7), timedelta(hours=4), _("per 4 h")),
    )
}


@dataclass
class ChartSlot:
    """The jobs that finished in one slot: by outcome, and by bucket of wait and run time."""

    start: datetime
    end: datetime
    outcomes: Counter[str] = field(default_factory=Counter)
    waits: Counter[int] = field(default_factory=Counter)
    runs: Counter[int] = field(default_factory=Counter)

    @property
    def finished(self) -> int:
        return self.outcomes.total()

    @property
    def completed(self) -> int:
        return self.outcomes[Status.COMPLETED]

    @property
    def failed(self) -> int:
        return self.outcomes[Status.FAILED]

    @property
    def skipped(self) -> int:
        return self.outcomes[Status.SKIPPED]

    @property
    def cancelled(self) -> int:
        return self.outcomes[Status.CANCELLED]


class SlotStart(Func):
    """The start of the slot of a minute. Django's own functions call Python for each row on SQLite."""

    output_field = DateTimeField()
    template = "date_bin('%(seconds)s seconds', %(expressions)s, to_timestamp(0))"

    def __init__(self, slot: timedelta) -> None:
        super().__init__(F("minute"), seconds=int(slot.total_seconds()))

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        # Four percent signs become one: two formatting steps follow.
        template = (
            "datetime(CAST(strftime('%%%%s', %(expressions)s) AS INTEGER) / %(seconds)s * %(seconds)s, 'unixepoch')"
        )
        return self.as_sql(compiler, connection, template=template, **extra)


def slot_expression(window: Window) -> F | SlotStart:
    """Return the expression for a row's slot in the window."""
    return F("minute") if window.slot == MINUTE else SlotStart(window.slot)


_cache: RateLimitedCache[Any] = RateLimitedCache()


def load_slots(window: Window, now: datetime) -> list[ChartSlot]:
    """Return every slot of the window, empty ones included; one statement. It may be cached."""
    key = (db.alias(), "slots", window.name, window.starts(now)[-1])
    slots: list[ChartSlot] = _cache.get(
        key, lambda: _query_slots(window, now), lambda slots: sum(slot.finished for slot in slots)
    )
    return slots


def _query_slots(window: Window, now: datetime) -> list[ChartSlot]:
    slots = {start: ChartSlot(start, start + window.slot) for start in window.starts(now)}
    rows = JobMinute.objects.filter(minute__gte=min(slots)).annotate(slot=slot_expression(window))
    key = ("slot", "outcome", "wait_bucket", "run_bucket")
    for start, outcome, wait, run, jobs in rows.values_list(*key).annotate(Sum("jobs")).order_by():
        if (slot := slots.get(start)) is not None:
            slot.outcomes[outcome] += jobs
            slot.waits[wait] += jobs
            slot.runs[run] += jobs
    return list(slots.values())


def count_outcomes(*spans: tuple[datetime, datetime]) -> list[Counter[str]]:
    """Count the jobs that finished within each span of time, by outcome; one statement. It may be cached."""
    counters: list[Counter[str]] = _cache.get(
        (db.alias(), "outcomes", spans),
        lambda: _query_outcomes(*spans),
        lambda counters: sum(counter.total() for counter in counters),
    )
    return counters


def _query_outcomes(*spans: tuple[datetime, datetime]) -> list[Counter[str]]:
    sums = {
        f"span_{index}": Sum("jobs", filter=Q(minute__gte=start, minute__lt=end), default=0)
        for index, (start, end) in enumerate(spans)
    }
    minutes = JobMinute.objects.filter(minute__gte=min(start for start, _end in spans)).order_by()
    counters: list[Counter[str]] = [Counter() for _span in spans]
    for outcome, *counts in minutes.values_list("outcome").annotate(**sums):
        for counter, jobs in zip(counters, counts, strict=True):
            counter[outcome] += jobs
    return counters


def list_active_resources(since: datetime, limit: int) -> list[str]:
    """Return the resources in which the most jobs finished. It may be cached."""

    def query() -> dict[str, int]:
        recent = JobMinute.objects.filter(minute__gte=since).values_list("resource")
        return dict(recent.annotate(n=Sum("jobs")).order_by("-n", "resource")[:limit])

    key = (db.alias(), "resources", since, limit)
    return list(_cache.get(key, query, lambda jobs: sum(jobs.values())))


@dataclass
class Trend:
    """Finished and failed jobs by slot, and in total by outcome."""

    finished: list[int]
    failed: list[int]

    @property
    def total(self) -> int:
        return sum(self.finished)

    @property
    def failed_total(self) -> int:
        return sum(self.failed)


def load_trends(column: str, names: Collection[str], window: Window, now: datetime) -> dict[str, Trend]:
    """Return the finished jobs by slot for each of these names of a column, such as resources. It may be cached."""
    key = (db.alias(), "trends", column, tuple(sorted(names)), window.name, window.starts(now)[-1])
    trends: dict[str, Trend] = _cache.get(
        key,
        lambda: _query_trends(column, names, window, now),
        lambda trends: sum(trend.total for trend in trends.values()),
    )
    return trends


def _query_trends(column: str, names: Collection[str], window: Window, now: datetime) -> dict[str, Trend]:
    starts = {start: index for index, start in enumerate(window.starts(now))}
    trends = {name: Trend([0] * len(starts), [0] * len(starts)) for name in names}
    rows = JobMinute.objects.filter(minute__gte=min(starts), **{f"{column}__in": sorted(names)}).order_by()
    rows = rows.annotate(slot=slot_expression(window)).values_list(column, "slot")
    failed = Sum("jobs", filter=Q(outcome=Status.FAILED), default=0)
    for name, start, jobs, failed_jobs in rows.annotate(Sum("jobs"), failed_jobs=failed):
        if start in starts and name in trends:
            trends[name].finished[starts[start]] += jobs
            trends[name].failed[starts[start]] += failed_jobs
    return trends


def percentile(buckets: Mapping[int, int], share: float) -> int | None:
    """Return the bucket in which that share of all started jobs is reached; None if no job started."""
    started = sorted((bucket, jobs) for bucket, jobs in buckets.items() if bucket >= 0)
    rank = share * sum(jobs for _, jobs in started)
    cumulated = 0
    for bucket, jobs in started:
        cumulated += jobs
        if cumulated >= rank:
            return bucket
    return None


def count_started(buckets: Mapping[int, int]) -> int:
    return sum(jobs for bucket, jobs in buckets.items() if bucket >= 0)
