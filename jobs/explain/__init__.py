"""Why a job is not running: the reasons as data and one sentence, its place in the queue, and when it may start.

For any job in fewer than ten statements, whatever the queue holds; `brief` says it in one line for all jobs of a page.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Sum
from django.db.models.functions import Now
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs import db
from jobs.explain import reasons
from jobs.explain.facts import Facts, as_limit, gather, in_force, serves, waiting_calls, working
from jobs.explain.reasons import NEEDS_A_PERSON, Reason, its_limits, its_time, its_workers
from jobs.models import ConcurrencyLimit, Gate, Job, JobMinute, Lease, Target, Worker
from jobs.models.job import STATUS_IN_SENTENCE
from jobs.policies.concurrency import InUse
from jobs.serializers import moment
from jobs.states import ACTIVE, Status
from jobs.stats import queries

MOST = 10_000  # further than this nobody counts
MEASURED = timedelta(hours=1)


@dataclass(frozen=True)
class Explanation:
    """`ahead`: how many jobs go first, up to MOST; None where the job is not in the queue."""

    summary: str
    reasons: list[Reason] = field(default_factory=list)
    ahead: int | None = None
    predicted_start_at: datetime | None = None

    def document(self) -> dict[str, Any]:
        return {
            "summary": self.summary,
            "reasons": [reason.document() for reason in self.reasons],
            "ahead": self.ahead,
            "predicted_start_at": moment(self.predicted_start_at),
        }


@dataclass(frozen=True)
class Forecast:
    ahead: int | None = None
    start_at: datetime | None = None


def explain(job_id: UUID) -> Explanation:
    facts = gather(job_id)
    job = facts.job
    if job.status == Status.RUNNING or job.is_terminal:
        return Explanation(_("It is %s.") % STATUS_IN_SENTENCE[Status(job.status)])
    found = reasons.of(facts)
    outlook = forecast(facts, found)
    if found:
        more = len(found) - 1
        rest = ngettext("(and %d more reason)", "(and %d more reasons)", more) % more if more else ""
        summary = f"{_('Waits')}: {found[0].message} {rest}".strip()
    elif outlook.ahead:
        jobs = ngettext("%d job goes first", "%d jobs go first", outlook.ahead) % outlook.ahead
        summary = _("Waits for its turn: %s.") % jobs
    else:
        summary = _("Is next: it starts as soon as a worker has a free slot.")
    return Explanation(summary, found, outlook.ahead, outlook.start_at)


def brief(jobs: Sequence[Job]) -> dict[UUID, str]:
    """For each job that waits, its first reason; nothing for those that are only not the first."""
    waiting = [job for job in jobs if job.status in (Status.PENDING, Status.QUEUED)]
    if not waiting:
        return {}
    scene = _Scene(waiting)
    found = {job.pk: scene.reason(job) for job in waiting}
    return {pk: reason for pk, reason in found.items() if reason}


class _Scene:
    """What is looked up once for all of them."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        lanes = {job.lane_id for job in jobs if job.lane_id is not None and job.gate != Gate.CLOSED}
        self.now = timezone.now()
        self.targets = {each.pk: each for each in (Target.objects.filter(pk__in=lanes) if lanes else ())}
        holding = Job.objects.filter(lane_id__in=lanes, holds_lane=True).only("lane_id", "holds_lane", "status")
        self.holders = {each.lane_id: each for each in (holding if lanes else ())}
        self.limits: list[ConcurrencyLimit] = in_force()
        self.in_use: InUse = queries.count_in_use()
        self.calls: list[Lease] = waiting_calls()
        self.workers: list[Worker] = working()

    def reason(self, job: Job) -> str:
        if job.status == Status.PENDING:
            return _("held back by a person") if job.hold else _("waits for its turn in its group")
        facts = Facts(job, self.now, in_use=self.in_use)
        facts.limits = [each for each in self.limits if each.key == facts.flow.key(each.scope)]
        facts.reservations = [each for each in self.calls if facts.shares_a_limit(each)]
        facts.workers = [] if job.remote else [worker for worker in self.workers if serves(worker, job)]
        first = next(its_time(facts), None)
        if first is None and (lane := self._lane(job)):
            return lane
        first = first or next(its_limits(facts), None) or next(its_workers(facts), None)
        return first.message if first else ""

    def _lane(self, job: Job) -> str:
        if job.lane_id is None:
            return ""
        target, holder = self.targets.get(job.lane_id), self.holders.get(job.lane_id)
        if target is not None and target.paused:
            return _("its target is paused")
        if holder is not None and holder.pk not in (job.pk, job.retry_of_id):
            if holder.blocks_target:
                return _("its target is blocked by a job that is %s") % STATUS_IN_SENTENCE[Status(holder.status)]
            return _("its target is busy") if holder.status in ACTIVE else _("another job of its target goes first")
        return _("others of its target go first") if job.gate == Gate.LANE else ""


def forecast(facts: Facts, reasons: Iterable[Reason]) -> Forecast:
    """Find a job's place in the queue, and from measured durations when its turn may come."""
    job = facts.job
    if job.status != Status.QUEUED:
        return Forecast()
    ahead = _ahead(facts)
    count = min(sum(ahead.values()), MOST)
    if any(reason.code in NEEDS_A_PERSON for reason in reasons) or job.remote:
        return Forecast(count)
    seconds = _seconds(facts, ahead)
    if seconds is None:
        return Forecast(count)
    earliest = max([facts.now, *(at for at in (job.not_before, job.recheck_at) if at is not None)])
    return Forecast(count, earliest + timedelta(seconds=seconds))


def _seconds(facts: Facts, ahead: Mapping[str, int]) -> float | None:
    """What stands before it, and half of what runs now, shared among those who work."""
    hands = _hands(facts)
    working = _working(facts)
    if hands == 0:
        return None
    if not ahead and sum(working.values()) < hands:
        return 0.0
    means = _means({*ahead, *working})
    if not means:
        return None
    usual = sum(means.values()) / len(means)
    before = sum(count * means.get(kind, usual) for kind, count in ahead.items())
    running = sum(count * means.get(kind, usual) / 2 for kind, count in working.items())
    return (before + running) / hands


def _hands(facts: Facts) -> int:
    """How many jobs like this one may run at once: a lane has one hand."""
    if facts.job.lane_id is not None:
        return min(facts.slots, 1)
    return min([facts.slots, *(row.max for row in facts.limits if row.max is not None)])


def _working(facts: Facts) -> dict[str, int]:
    """What runs and must make room first."""
    if facts.job.lane_id is not None:
        return {each.job_type: 1 for each in facts.lane if each.status == Status.RUNNING}
    narrow = [as_limit(row) for row in facts.limits if row.max is not None]
    busy = max((facts.in_use.of(limit) for limit in narrow), default=sum(worker.busy for worker in facts.workers))
    return {facts.job.job_type: busy} if busy else {}


def _ahead(facts: Facts) -> dict[str, int]:
    """How many go first, by type: in its lane, or among all that are ready. Each part is a walk along an index."""
    job = facts.job
    if job.lane_id is not None:
        where, given = "lane_id = %s AND gate IN (2, 3)", [_key(job.lane_id)]
    elif job.gate == Gate.READY:
        where, given = f"gate = 3 AND {'remote' if job.remote else 'NOT remote'}", []
    else:
        return {}
    born = db.connection().ops.adapt_datetimefield_value(job.created_at)
    parts = [
        ("priority > %s", [job.priority]),
        ("priority = %s AND position < %s", [job.priority, job.position]),
        (
            "priority = %s AND position = %s AND (created_at < %s OR (created_at = %s AND id < %s))",
            [job.priority, job.position, born, born, _key(job.pk)],
        ),
    ]
    one = f"SELECT * FROM (SELECT job_type FROM jobscheduler_job WHERE {where} AND {{}} LIMIT {MOST}) part"  # noqa: S608 — our own words
    sql = " UNION ALL ".join(one.format(condition) for condition, _ in parts)
    params: list[Any] = [each for _, values in parts for each in (*given, *values)]
    with db.connection().cursor() as cursor:
        cursor.execute(f"SELECT job_type, count(*) FROM ({sql}) ahead GROUP BY job_type", params)  # noqa: S608 — see above
        return dict(cursor.fetchall())


def _means(types: Iterable[str]) -> dict[str, float]:
    """How long jobs of these types ran of late, in seconds; all types if none of them did."""
    lately = JobMinute.objects.filter(minute__gt=Now() - MEASURED, run_bucket__gte=0)
    rows = lately.order_by().values_list("job_type").annotate(Sum("run_sec"), Sum("jobs"))
    means = {kind: ran / jobs for kind, ran, jobs in rows if jobs}
    known = {kind: mean for kind, mean in means.items() if kind in set(types)}
    return known or means


def _key(value: Any) -> Any:
    return value.hex if db.is_sqlite() else value
