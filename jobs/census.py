"""All live jobs by kind, and how many ever ended, in one statement: what belongs together is of one moment.

Live jobs are counted along partial indexes, ended ones are summed from the rollup; history is never read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from time import monotonic
from typing import Any

from django.db.models import CharField, Count, DateTimeField, F, IntegerField, Min, QuerySet, Sum, Value
from django.db.models.functions import Cast, Coalesce, Greatest

from jobs import clock, db
from jobs.literals import literals
from jobs.models import Gate, Job, JobMinute
from jobs.models.job import RARE
from jobs.states import ACTIVE, LIVE, Status

KIND = ("status", "gate", "job_type", "resource", "addon_id")
# The conditions of partial indexes; all live states at once would be a walk over history.
PARTS: tuple[dict[str, Any], ...] = (
    {"status__in": literals([Status.PENDING, Status.QUEUED])},
    {"status__in": literals(sorted(ACTIVE))},
    {"status__in": literals(RARE), "status": Status.PAUSED},
)
FEW = 10_000  # so many live jobs are counted anew for every answer
JOBS_A_SECOND, LONGEST_SEC = 100_000, 10.0  # how long a larger census is good for


@dataclass(frozen=True)
class Kind:
    """Jobs that are alike. `oldest_at`: when the first of them was submitted; `since`: when its time had come."""

    status: str
    gate: int
    job_type: str
    resource: str
    addon_id: str
    jobs: int
    oldest_at: datetime | None = None
    since: datetime | None = None

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
class Census:
    at: datetime
    kinds: tuple[Kind, ...] = field(repr=False)

    @property
    def live(self) -> tuple[Kind, ...]:
        return tuple(kind for kind in self.kinds if kind.status in LIVE)

    def statuses(self) -> dict[str, int]:
        """All nine: live ones exact, ended ones as totals of all time."""
        return dict.fromkeys(map(str, Status), 0) | _sum(self.kinds, "status")

    def work(self, column: str) -> dict[str, dict[str, int]]:
        """Of each job type or addon that has any: how many are queued, how many run."""
        queued = _sum((kind for kind in self.live if kind.is_queued), column)
        running = _sum((kind for kind in self.live if kind.status == Status.RUNNING), column)
        named = sorted(name for name in {*queued, *running} if name)
        return {name: {"queued": queued.get(name, 0), "running": running.get(name, 0)} for name in named}

    def oldest_queued_age_sec(self) -> float | None:
        """Of the jobs that wait for a slot or their lane, how long the first one has been waiting."""
        oldest = min((kind.oldest_at for kind in self.live if kind.is_due and kind.oldest_at), default=None)
        return None if oldest is None else self.age_sec(oldest)

    def age_sec(self, moment: datetime) -> float:
        return max((self.at - moment).total_seconds(), 0.0)


def take(tenant: str | None = None) -> Census:
    """Of one tenant or of all. Up to FEW live jobs it is of now; a larger one may be a moment old, as `at` says."""
    place, now = (db.alias(), tenant), monotonic()
    known = _kept.get(place)
    if known is not None and now < known[1]:
        return known[0]
    census = _taken(tenant)
    live = sum(kind.jobs for kind in census.live)
    if live > FEW:
        for stale in [each for each, (_, until) in _kept.items() if until <= now]:
            del _kept[stale]
        _kept[place] = census, now + min(live / JOBS_A_SECOND, LONGEST_SEC)
    return census


_kept: dict[tuple[str, str | None], tuple[Census, float]] = {}


def forget() -> None:
    _kept.clear()


def _taken(tenant: str | None) -> Census:
    live, ended = (_of(model.objects.using(db.alias()).order_by(), tenant) for model in (Job, JobMinute))
    parts = [_counted(live.filter(**part)) for part in PARTS]
    rows = parts[0].union(*parts[1:], _summed(ended), all=True)
    return Census(clock.now(), tuple(Kind(*row) for row in rows))


def _of(rows: Any, tenant: str | None) -> Any:
    return rows if tenant is None else rows.filter(tenant=tenant)


def _counted(jobs: QuerySet[Job]) -> QuerySet[Job, Any]:
    due = Greatest(Coalesce(F("not_before"), F("created_at")), F("created_at"))
    return jobs.values_list(*KIND).annotate(n=Count("pk"), oldest=Min("created_at"), since=Min(due))


def _summed(minutes: QuerySet[JobMinute]) -> QuerySet[JobMinute, Any]:
    never = Min(Cast(Value(None), DateTimeField()))
    shut, nobody = Value(Gate.CLOSED, IntegerField()), Value("", CharField())
    ended = minutes.annotate(shut=shut, nobody=nobody).values_list("outcome", "shut", "job_type", "resource", "nobody")
    return ended.annotate(n=Sum("jobs"), oldest=never, since=never)


def _sum(kinds: Iterable[Kind], column: str) -> dict[str, int]:
    found: Counter[str] = Counter()
    for kind in kinds:
        found[getattr(kind, column)] += kind.jobs
    return dict(found)
