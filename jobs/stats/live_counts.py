"""Count live jobs, and sum finished ones from the rollup, in one statement, so that all counts are of one moment.

Live jobs are counted along partial indexes; finished jobs are never read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db.models import BigIntegerField, CharField, Count, DateTimeField, F, Func, IntegerField, Min, Sum, Value
from django.db.models.functions import Cast, Coalesce, Greatest

from jobs import clock, db
from jobs.models import Gate, Job, JobMinute
from jobs.models.expressions import sql_literals
from jobs.models.job import RARE_STATUSES
from jobs.states import ACTIVE, LIVE, Status
from jobs.stats.cache import RateLimitedCache

# The conditions of partial indexes; one condition for all live states would scan the whole table.
LIVE_CONDITIONS: tuple[dict[str, Any], ...] = (
    {"status__in": sql_literals([Status.PENDING, Status.QUEUED])},
    {"status__in": sql_literals(sorted(ACTIVE))},
    {"status__in": sql_literals(RARE_STATUSES), "status": Status.PAUSED},
)
STEPS_PER_SEC = 2**16  # a power of two, so that a float holds every step exactly


@dataclass(frozen=True)
class LiveCount:
    """The number of live jobs with the same values of these columns.

    `oldest_at`: when the first of them was submitted; `since`: when the first of them was due.
    """

    status: str
    job_type: str
    resource: str
    jobs: int
    gate: int
    addon_id: str
    oldest_at: datetime
    since: datetime

    @property
    def is_queued(self) -> bool:
        """Whether they have not started, as the job lists show it: an offered job counts as queued."""
        return self.status in (Status.QUEUED, Status.DISPATCHING)

    @property
    def is_ready(self) -> bool:
        return self.gate == Gate.READY

    @property
    def is_due(self) -> bool:
        """Whether they wait for a slot or for their target, not for their time."""
        return self.gate in (Gate.READY, Gate.LANE)


@dataclass(frozen=True)
class FinishedCount:
    """The number of jobs that ever finished with the same values of these columns. A bucket of -1: never started."""

    status: str
    job_type: str
    resource: str
    jobs: int
    wait_bucket: int
    run_bucket: int
    wait_sec: float
    run_sec: float
    retried: int
    recovered: int


@dataclass(frozen=True)
class JobCounts:
    """All counts at one moment."""

    at: datetime
    live: tuple[LiveCount, ...] = field(repr=False)
    finished: tuple[FinishedCount, ...] = field(repr=False)

    @property
    def all_rows(self) -> tuple[LiveCount | FinishedCount, ...]:
        """The counts of all jobs that were ever submitted."""
        return (*self.live, *self.finished)

    def by_status(self) -> dict[str, int]:
        """Return the number of jobs in each of the nine states; the final ones are totals of all time."""
        return dict.fromkeys(map(str, Status), 0) | _sum_jobs(self.all_rows, "status")

    def by_column(self, column: str) -> dict[str, dict[str, int]]:
        """Return the number of queued and of running jobs for each job type or addon that has any."""
        queued = _sum_jobs((row for row in self.live if row.is_queued), column)
        running = _sum_jobs((row for row in self.live if row.status == Status.RUNNING), column)
        names = sorted(name for name in {*queued, *running} if name)
        return {name: {"queued": queued.get(name, 0), "running": running.get(name, 0)} for name in names}

    def oldest_queued_age_sec(self) -> float | None:
        """Return how long ago the oldest job that waits for a slot or for its target was submitted."""
        oldest = min((row.oldest_at for row in self.live if row.is_due), default=None)
        return None if oldest is None else self.age_sec(oldest)

    def age_sec(self, moment: datetime) -> float:
        return max((self.at - moment).total_seconds(), 0.0)


def count_jobs(tenant: str | None = None) -> JobCounts:
    """Count the jobs of one tenant, or of all. The result may be cached if more than SMALL_COUNT jobs are live."""
    return _cache.get(
        (db.alias(), tenant), lambda: _query_counts(tenant), lambda counts: sum(row.jobs for row in counts.live)
    )


_cache: RateLimitedCache[JobCounts] = RateLimitedCache()
clear_cache = _cache.clear


class WholeSteps(Func):
    """A duration in whole steps of 15 µs, rounded down.

    The sum of floats depends on their order. A sum of whole steps does not, and does not shrink when compaction merges
    rows: a counter must never decrease.
    """

    output_field = BigIntegerField()
    template = f"floor(%(expressions)s * {STEPS_PER_SEC})::bigint"

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        template = f"CAST(%(expressions)s * {STEPS_PER_SEC} AS INTEGER)"
        return super().as_sql(compiler, connection, template=template, **context)


def _query_counts(tenant: str | None) -> JobCounts:
    jobs, minutes = Job.objects.order_by(), JobMinute.objects.order_by()
    if tenant is not None:
        jobs, minutes = jobs.filter(tenant=tenant), minutes.filter(tenant=tenant)
    parts = [*(_live_query(jobs.filter(**condition)) for condition in LIVE_CONDITIONS), _finished_query(minutes)]
    rows = list(parts[0].union(*parts[1:], all=True).order_by())
    live = tuple(LiveCount(*row[:8]) for row in rows if row[0] in LIVE)
    return JobCounts(clock.now(), live, tuple(_parse_finished(*row) for row in rows if row[0] not in LIVE))


# Both parts of the UNION have the same columns: the key, the number of jobs, the columns of LiveCount, then those of
# FinishedCount.


def _live_query(jobs: Any) -> Any:
    due = Greatest(Coalesce(F("not_before"), F("created_at")), F("created_at"))
    columns = {
        "n": Count("pk"),
        "behind": F("gate"),
        "addon": F("addon_id"),
        "oldest": Min("created_at"),
        "since": Min(due),
    }
    sums = {name: Value(0, BigIntegerField()) for name in ("waits", "runs", "waited", "ran", "again", "lost")}
    return (
        jobs.values("status", "job_type", "resource", "gate", "addon_id")
        .annotate(**columns, **sums)
        .values_list("status", "job_type", "resource", *columns, *sums)
    )


def _finished_query(minutes: Any) -> Any:
    key = ("outcome", "job_type", "resource", "wait_bucket", "run_bucket")
    null_time = Cast(Value(None), DateTimeField())
    blank = {
        "behind": Value(0, IntegerField()),
        "addon": Value("", CharField()),
        "oldest": null_time,
        "since": null_time,
    }
    buckets = {"waits": F("wait_bucket"), "runs": F("run_bucket")}
    sums = {
        "waited": Sum(WholeSteps("wait_sec")),
        "ran": Sum(WholeSteps("run_sec")),
        "again": Sum("retried"),
        "lost": Sum("recovered"),
    }
    columns = {"n": Sum("jobs"), **blank, **buckets, **sums}
    return minutes.values(*key).annotate(**columns).values_list("outcome", "job_type", "resource", *columns)


def _parse_finished(outcome: str, job_type: str, resource: str, *row: Any) -> FinishedCount:
    jobs, _gate, _addon, _oldest, _since, waits, runs, waited, ran, retried, recovered = row
    times = (waited / STEPS_PER_SEC, ran / STEPS_PER_SEC)
    return FinishedCount(outcome, job_type, resource, jobs, waits, runs, *times, retried, recovered)


def _sum_jobs(rows: Iterable[LiveCount | FinishedCount], column: str) -> dict[str, int]:
    """Return the number of jobs by the value of a column."""
    counts: Counter[str] = Counter()
    for row in rows:
        counts[getattr(row, column)] += row.jobs
    return dict(counts)
