"""Count live jobs, and sum finished ones from the rollup, in one statement, so that all counts are of one moment.

Live jobs are counted along partial indexes; finished jobs are never read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.db.models import (
    BigIntegerField,
    Case,
    CharField,
    Count,
    DateTimeField,
    F,
    Func,
    IntegerField,
    Min,
    Q,
    Sum,
    Value,
    When,
)
from django.db.models.functions import Cast, Coalesce, Greatest

from jobs import clock, db
from jobs.models import Gate, Job, JobMinute
from jobs.models.expressions import is_one_of, sql_literals
from jobs.models.job import RARE_STATUSES
from jobs.states import ACTIVE, LIVE, Status
from jobs.stats.cache import RateLimitedCache

# The conditions of partial indexes; one condition for all live states would scan the whole table.
LIVE_CONDITIONS = (
    Q(status__in=sql_literals([Status.PENDING, Status.QUEUED])),
    Q(status__in=sql_literals(sorted(ACTIVE))),
    is_one_of("status", RARE_STATUSES) & Q(status=Status.PAUSED),
)
Kept = Mapping[str, Collection[str]]  # names to count by, of columns
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


def count_busiest(resource_limit: int, kept: Kept, now: datetime | None = None) -> JobCounts:
    """Count the jobs of all tenants in a number of rows that does not grow with the number of names.

    Counts are by the resources with the most live jobs, and by the names of `kept`, which has column names as keys; all
    other names are counted together, as the empty one. Finished jobs are counted by status alone. It is cached, too.
    """

    def compute() -> JobCounts:
        busiest = _list_busiest_resources(resource_limit)
        return _query_counts(None, {**kept, "resource": {*kept.get("resource", ()), *busiest}}, now)

    names = tuple((column, tuple(sorted(values))) for column, values in sorted(kept.items()))
    return _cache.get(
        (db.alias(), "busiest", resource_limit, names), compute, lambda counts: sum(row.jobs for row in counts.live)
    )


_cache: RateLimitedCache[JobCounts] = RateLimitedCache()
clear_cache = _cache.clear


def _list_busiest_resources(limit: int) -> list[str]:
    """Return the resources with the most live jobs; those with the most of one kind, if there are more."""
    first, *others = (
        Job.objects.filter(condition).order_by().values_list("resource").annotate(n=Count("pk"))
        for condition in LIVE_CONDITIONS
    )
    counts: Counter[str] = Counter()
    for name, jobs in first.union(*others, all=True).order_by("-n", "resource")[: len(LIVE_CONDITIONS) * limit]:
        counts[name] += jobs
    return [name for name, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:limit]]


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


def _query_counts(tenant: str | None, kept: Kept | None = None, now: datetime | None = None) -> JobCounts:
    jobs, minutes = Job.objects.order_by(), JobMinute.objects.order_by()
    if tenant is not None:
        jobs, minutes = jobs.filter(tenant=tenant), minutes.filter(tenant=tenant)
    live_parts = [_live_query(jobs.filter(condition), kept) for condition in LIVE_CONDITIONS]
    parts = [*live_parts, _finished_query(minutes, kept)]
    rows = list(parts[0].union(*parts[1:], all=True).order_by())
    live = tuple(LiveCount(*row[:8]) for row in rows if row[0] in LIVE)
    return JobCounts(now or clock.now(), live, tuple(_parse_finished(*row) for row in rows if row[0] not in LIVE))


# Both parts of the UNION have the same columns: the key, the number of jobs, the columns of LiveCount, then those of
# FinishedCount.


def _live_query(jobs: Any, kept: Kept | None) -> Any:
    key = {f"{name}_key": _name_expression(name, kept) for name in ("job_type", "resource", "addon_id")}
    due = Greatest(Coalesce(F("not_before"), F("created_at")), F("created_at"))
    columns = {
        "n": Count("pk"),
        "behind": F("gate"),
        "addon": F("addon_id_key"),
        "oldest": Min("created_at"),
        "since": Min(due),
    }
    sums = {name: Value(0, BigIntegerField()) for name in ("waits", "runs", "waited", "ran", "again", "lost")}
    return (
        jobs.annotate(**key)
        .values("status", "gate", *key)
        .annotate(**columns, **sums)
        .values_list("status", "job_type_key", "resource_key", *columns, *sums)
    )


def _name_expression(column: str, kept: Kept | None) -> Any:
    """Return the column; with `kept`, the empty name for all names that are not kept."""
    if kept is None:
        return F(column)
    return Case(When(**{f"{column}__in": sorted(kept.get(column, ()))}, then=F(column)), default=Value(""))


def _finished_query(minutes: Any, kept: Kept | None) -> Any:
    key: dict[str, Any] = {"job_type_key": F("job_type"), "resource_key": F("resource")}
    key |= {"wait_key": F("wait_bucket"), "run_key": F("run_bucket")}
    if kept is not None:
        key = {"job_type_key": Value(""), "resource_key": Value(""), "wait_key": Value(-1), "run_key": Value(-1)}
    null_time = Cast(Value(None), DateTimeField())
    blank = {
        "behind": Value(0, IntegerField()),
        "addon": Value("", CharField()),
        "oldest": null_time,
        "since": null_time,
    }
    sums = {
        "waited": Sum(WholeSteps("wait_sec")),
        "ran": Sum(WholeSteps("run_sec")),
        "again": Sum("retried"),
        "lost": Sum("recovered"),
    }
    columns = {"n": Sum("jobs"), **blank, "waits": F("wait_key"), "runs": F("run_key"), **sums}
    rows = minutes.annotate(**key).values("outcome", *key).annotate(**columns)
    return rows.values_list("outcome", "job_type_key", "resource_key", *columns)


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
