"""All live jobs by kind, and all that ever ended, in one statement: what belongs together is of one moment.

Live jobs are counted along partial indexes, ended ones are summed from the rollup; history is never read.
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
from jobs.stats.cache import Kept

# The conditions of partial indexes; all live states at once would be a walk over history.
PARTS: tuple[dict[str, Any], ...] = (
    {"status__in": sql_literals([Status.PENDING, Status.QUEUED])},
    {"status__in": sql_literals(sorted(ACTIVE))},
    {"status__in": sql_literals(RARE_STATUSES), "status": Status.PAUSED},
)
STEPS_A_SEC = 2**16  # a power of two, so that a float holds every step exactly


@dataclass(frozen=True)
class Kind:
    """Live jobs that are alike. `oldest_at`: when the first of them was submitted; `since`: when its time had come."""

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
        """As the job lists show it: what was offered to a remote worker has not begun."""
        return self.status in (Status.QUEUED, Status.DISPATCHING)

    @property
    def is_ready(self) -> bool:
        return self.gate == Gate.READY

    @property
    def is_due(self) -> bool:
        """Waits for a slot or its lane, not for its time."""
        return self.gate in (Gate.READY, Gate.LANE)


@dataclass(frozen=True)
class Ended:
    """Jobs of all time that ended alike. A bucket of -1: they never started."""

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
class Census:
    at: datetime
    live: tuple[Kind, ...] = field(repr=False)
    ended: tuple[Ended, ...] = field(repr=False)

    @property
    def ever(self) -> tuple[Kind | Ended, ...]:
        """All that was ever submitted."""
        return (*self.live, *self.ended)

    def statuses(self) -> dict[str, int]:
        """All nine: live ones exact, ended ones as totals of all time."""
        return dict.fromkeys(map(str, Status), 0) | _sum(self.ever, "status")

    def work(self, column: str) -> dict[str, dict[str, int]]:
        """Of each job type or addon that has any: how many are queued, how many run."""
        queued = _sum((kind for kind in self.live if kind.is_queued), column)
        running = _sum((kind for kind in self.live if kind.status == Status.RUNNING), column)
        named = sorted(name for name in {*queued, *running} if name)
        return {name: {"queued": queued.get(name, 0), "running": running.get(name, 0)} for name in named}

    def oldest_queued_age_sec(self) -> float | None:
        """Of the jobs that wait for a slot or their lane, how long the first one has been waiting."""
        oldest = min((kind.oldest_at for kind in self.live if kind.is_due), default=None)
        return None if oldest is None else self.age_sec(oldest)

    def age_sec(self, moment: datetime) -> float:
        return max((self.at - moment).total_seconds(), 0.0)


def take(tenant: str | None = None) -> Census:
    """Of one tenant or of all. Up to FEW live jobs it is of now; a larger one may be a moment old, as `at` says."""
    return _kept.get((db.alias(), tenant), lambda: _count_jobs(tenant), lambda census: sum(k.jobs for k in census.live))


_kept: Kept[Census] = Kept()
forget = _kept.forget


class Steps(Func):
    """A duration in whole steps of 15 µs, rounded down.

    Fractions add up to a little more or less, depending on their order. Of these, the sum is the same in any order, and
    not less after some rows were made one: what is read as a counter must never go back.
    """

    output_field = BigIntegerField()
    template = f"floor(%(expressions)s * {STEPS_A_SEC})::bigint"

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        template = f"CAST(%(expressions)s * {STEPS_A_SEC} AS INTEGER)"
        return super().as_sql(compiler, connection, template=template, **context)


def _count_jobs(tenant: str | None) -> Census:
    jobs, minutes = Job.objects.order_by(), JobMinute.objects.order_by()
    if tenant is not None:
        jobs, minutes = jobs.filter(tenant=tenant), minutes.filter(tenant=tenant)
    parts = [*(_live_query(jobs.filter(**part)) for part in PARTS), _ended_query(minutes)]
    rows = list(parts[0].union(*parts[1:], all=True).order_by())
    live = tuple(Kind(*row[:8]) for row in rows if row[0] in LIVE)
    return Census(clock.now(), live, tuple(_parse_ended(*row) for row in rows if row[0] not in LIVE))


# Both halves of the statement have the same columns: a kind and its jobs, what is told of live ones, and of ended ones.


def _live_query(jobs: Any) -> Any:
    due = Greatest(Coalesce(F("not_before"), F("created_at")), F("created_at"))
    told = {
        "n": Count("pk"),
        "behind": F("gate"),
        "addon": F("addon_id"),
        "oldest": Min("created_at"),
        "since": Min(due),
    }
    sums = {name: Value(0, BigIntegerField()) for name in ("waits", "runs", "waited", "ran", "again", "lost")}
    return (
        jobs.values("status", "job_type", "resource", "gate", "addon_id")
        .annotate(**told, **sums)
        .values_list("status", "job_type", "resource", *told, *sums)
    )


def _ended_query(minutes: Any) -> Any:
    key = ("outcome", "job_type", "resource", "wait_bucket", "run_bucket")
    never = Cast(Value(None), DateTimeField())
    blank = {"behind": Value(0, IntegerField()), "addon": Value("", CharField()), "oldest": never, "since": never}
    buckets = {"waits": F("wait_bucket"), "runs": F("run_bucket")}
    sums = {
        "waited": Sum(Steps("wait_sec")),
        "ran": Sum(Steps("run_sec")),
        "again": Sum("retried"),
        "lost": Sum("recovered"),
    }
    told = {"n": Sum("jobs"), **blank, **buckets, **sums}
    return minutes.values(*key).annotate(**told).values_list("outcome", "job_type", "resource", *told)


def _parse_ended(outcome: str, job_type: str, resource: str, *row: Any) -> Ended:
    jobs, _gate, _addon, _oldest, _since, waits, runs, waited, ran, retried, recovered = row
    times = (waited / STEPS_A_SEC, ran / STEPS_A_SEC)
    return Ended(outcome, job_type, resource, jobs, waits, runs, *times, retried, recovered)


def _sum(kinds: Iterable[Kind | Ended], column: str) -> dict[str, int]:
    found: Counter[str] = Counter()
    for kind in kinds:
        found[getattr(kind, column)] += kind.jobs
    return dict(found)
