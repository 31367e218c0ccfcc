"""The recent past from the rollup: what jobs ended as in each slot of time, and how long they waited and ran."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import DateTimeField, F, Func, Sum

from jobs.models import JobMinute
from jobs.models.rollup import BUCKETS_SEC
from jobs.states import Status

MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


@dataclass(frozen=True)
class Window:
    """How far back a plot looks, and in slots of what width."""

    name: str
    length: timedelta
    slot: timedelta

    def starts(self, now: datetime) -> list[datetime]:
        """Of every slot, the present one last."""
        last = _floor(now.astimezone(UTC), self.slot)
        count = int(self.length / self.slot)
        return [last - self.slot * back for back in range(count - 1, -1, -1)]


WINDOWS = {
    each.name: each
    for each in (
        Window("1h", HOUR, MINUTE),
        Window("24h", timedelta(days=1), HOUR),
        Window("7d", timedelta(days=7), HOUR),
    )
}


@dataclass
class Slot:
    start: datetime
    outcomes: Counter[str] = field(default_factory=Counter)
    waits: Counter[int] = field(default_factory=Counter)
    runs: Counter[int] = field(default_factory=Counter)

    @property
    def completed(self) -> int:
        return self.outcomes[Status.COMPLETED]

    @property
    def failed(self) -> int:
        return self.outcomes[Status.FAILED]

    @property
    def others(self) -> int:
        return self.outcomes.total() - self.completed - self.failed


class Hour(Func):
    """The hour of a minute, without asking Python for each row, as Django's own does on SQLite."""

    output_field = DateTimeField()
    template = "date_bin('1 hour', %(expressions)s, to_timestamp(0))"

    def as_sqlite(self, compiler: Any, connection: Any, **extra: Any) -> Any:
        return self.as_sql(compiler, connection, template="substr(%(expressions)s, 1, 13) || ':00:00'", **extra)


def slot_of(window: Window) -> F | Hour:
    """In which slot of the window a row is."""
    return F("minute") if window.slot == MINUTE else Hour("minute")


def slots(window: Window, now: datetime) -> list[Slot]:
    """Every slot of the window, also those in which nothing ended; one statement."""
    found = {start: Slot(start) for start in window.starts(now)}
    rows = _since(min(found)).annotate(slot=slot_of(window))
    key = ("slot", "outcome", "wait_bucket", "run_bucket")
    for start, outcome, wait, run, jobs in rows.values_list(*key).annotate(Sum("jobs")).order_by():
        slot = found.get(start)
        if slot is not None:
            slot.outcomes[outcome] += jobs
            slot.waits[wait] += jobs
            slot.runs[run] += jobs
    return list(found.values())


def ended(within: timedelta, now: datetime) -> Counter[str]:
    """How many jobs ended as what."""
    rows = _since(now - within).order_by().values_list("outcome").annotate(Sum("jobs"))
    return Counter(dict(rows))


def per_resource(now: datetime) -> dict[str, list[int]]:
    """Of each resource, how many jobs ended in each of the last 60 minutes."""
    starts = {start: index for index, start in enumerate(WINDOWS["1h"].starts(now))}
    found: dict[str, list[int]] = defaultdict(lambda: [0] * len(starts))
    rows = _since(min(starts)).order_by()
    for resource, start, jobs in rows.values_list("resource", "minute").annotate(Sum("jobs")):
        if start in starts:
            found[resource][starts[start]] += jobs
    return found


def percentile(buckets: Mapping[int, int], share: float) -> int | None:
    """The bucket in which that share of all who started is reached; None where nobody started."""
    known = sorted((bucket, jobs) for bucket, jobs in buckets.items() if bucket >= 0)
    wanted = share * sum(jobs for _, jobs in known)
    seen = 0
    for bucket, jobs in known:
        seen += jobs
        if seen >= wanted:
            return bucket
    return None


def bound(bucket: int) -> str:
    """What a bucket says: at most so long."""
    if bucket >= len(BUCKETS_SEC):
        return f"> {_seconds(BUCKETS_SEC[-1])}"
    return f"≤ {_seconds(BUCKETS_SEC[bucket])}"


def total(slots: Iterable[Slot]) -> Counter[str]:
    found: Counter[str] = Counter()
    for slot in slots:
        found += slot.outcomes
    return found


def _since(moment: datetime) -> Any:
    return JobMinute.objects.filter(minute__gte=moment)


def _floor(moment: datetime, width: timedelta) -> datetime:
    seconds = int(width.total_seconds())
    return datetime.fromtimestamp(int(moment.timestamp()) // seconds * seconds, UTC)


def _seconds(seconds: float) -> str:
    if seconds < 1:
        return f"{seconds * 1000:g} ms"
    if seconds < 60:
        return f"{seconds:g} s"
    return f"{seconds / 60:g} min" if seconds < 3600 else f"{seconds / 3600:g} h"
