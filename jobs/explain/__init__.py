"""Explain why a job is not running: the reasons, a summary, the number of jobs ahead, and a predicted start.

One job takes fewer than ten statements, whatever the length of the queue; `explain_briefly` takes a page of jobs.
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
from jobs.explain.facts import (
    Facts,
    can_run,
    list_limits_in_force,
    list_running_workers,
    list_waiting_calls,
    load_facts,
    to_limit,
)
from jobs.explain.reasons import NEEDS_OPERATOR, Reason, find_reasons, limit_reasons, time_reasons, worker_reasons
from jobs.models import ConcurrencyLimit, Gate, Job, JobMinute, Lease, Target, Worker
from jobs.models.job import STATUS_IN_SENTENCE
from jobs.policies.concurrency import InUse
from jobs.serializers import format_time
from jobs.states import ACTIVE, Status
from jobs.stats import queries

AHEAD_LIMIT = 10_000  # the count of jobs ahead stops here
MEASURED_WINDOW = timedelta(hours=1)  # of the run times that predictions are made from


@dataclass(frozen=True)
class Explanation:
    """`ahead`: the number of jobs ahead of it, up to AHEAD_LIMIT; None if the job is not queued."""

    summary: str
    reasons: list[Reason] = field(default_factory=list)
    ahead: int | None = None
    predicted_start_at: datetime | None = None

    def document(self) -> dict[str, Any]:
        return {
            "summary": self.summary,
            "reasons": [reason.document() for reason in self.reasons],
            "ahead": self.ahead,
            "predicted_start_at": format_time(self.predicted_start_at),
        }


@dataclass(frozen=True)
class Prediction:
    ahead: int | None = None
    start_at: datetime | None = None


def explain(job_id: UUID, *, viewer_tenant: str | None = None) -> Explanation:
    """Explain one job. Raise NotFound if there is none.

    To a viewer of one tenant, nothing is named that belongs to other tenants: direct calls, and who paused a limit that
    all tenants share, and why. `ahead` is the number of jobs of all tenants, since they share the queue.
    """
    facts = load_facts(job_id, viewer_tenant)
    job = facts.job
    if job.status == Status.RUNNING or job.is_terminal:
        return Explanation(_("It is %s.") % STATUS_IN_SENTENCE[Status(job.status)])
    found_reasons = find_reasons(facts)
    prediction = predict_start(facts, found_reasons)
    if found_reasons:
        others = len(found_reasons) - 1
        suffix = ngettext("(and %d more reason)", "(and %d more reasons)", others) % others if others else ""
        summary = f"{_('Waiting')}: {found_reasons[0].message} {suffix}".strip()
    elif prediction.ahead:
        summary = ngettext("Queued behind %d job.", "Queued behind %d jobs.", prediction.ahead) % prediction.ahead
    else:
        summary = _("Next in the queue; waiting for a free slot.")
    return Explanation(summary, found_reasons, prediction.ahead, prediction.start_at)


def explain_briefly(jobs: Sequence[Job]) -> dict[UUID, str]:
    """Return the first reason of each waiting job; jobs that only wait behind others of the queue have none."""
    waiting = [job for job in jobs if job.status in (Status.PENDING, Status.QUEUED)]
    if not waiting:
        return {}
    shared = _SharedFacts(waiting)
    messages = {job.pk: shared.first_reason(job) for job in waiting}
    return {pk: message for pk, message in messages.items() if message}


class _SharedFacts:
    """The facts about several jobs, each table read once."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        lanes = {job.lane_id for job in jobs if job.lane_id is not None and job.gate != Gate.CLOSED}
        self.now = timezone.now()
        self.targets = {target.pk: target for target in (Target.objects.filter(pk__in=lanes) if lanes else ())}
        holders = Job.objects.filter(lane_id__in=lanes, holds_lane=True).only("lane_id", "holds_lane", "status")
        self.holders = {job.lane_id: job for job in (holders if lanes else ())}
        self.limits: list[ConcurrencyLimit] = list_limits_in_force()
        self.in_use: InUse = queries.count_in_use()
        self.calls: list[Lease] = list_waiting_calls()
        self.workers: list[Worker] = list_running_workers()

    def first_reason(self, job: Job) -> str:
        """Return the message of the first reason, or an empty string."""
        if job.status == Status.PENDING:
            return _("on hold") if job.hold else _("waiting for an earlier job of its group")
        facts = Facts(job, self.now, in_use=self.in_use)
        facts.limits = [limit for limit in self.limits if limit.key == facts.flow.key(limit.scope)]
        facts.reservations = [lease for lease in self.calls if facts.has_common_limit(lease)]
        facts.workers = [] if job.remote else [worker for worker in self.workers if can_run(worker, job)]
        first = next(time_reasons(facts), None)
        if first is None and (message := self._target_reason(job)):
            return message
        first = first or next(limit_reasons(facts), None) or next(worker_reasons(facts), None)
        return first.message if first else ""

    def _target_reason(self, job: Job) -> str:
        if job.lane_id is None:
            return ""
        target, holder = self.targets.get(job.lane_id), self.holders.get(job.lane_id)
        if target is not None and target.paused:
            return _("its target is paused")
        if holder is not None and holder.pk not in (job.pk, job.retry_of_id):
            if holder.blocks_target:
                return _("its target is blocked by a %s job") % STATUS_IN_SENTENCE[Status(holder.status)]
            is_busy = holder.status in ACTIVE
            return _("its target is busy") if is_busy else _("queued behind another job of its target")
        return _("queued behind other jobs of its target") if job.gate == Gate.LANE else ""


def predict_start(facts: Facts, reasons: Iterable[Reason]) -> Prediction:
    """Count the jobs ahead, and predict the start from the measured run times."""
    job = facts.job
    if job.status != Status.QUEUED:
        return Prediction()
    ahead = _count_ahead(facts)
    count = min(sum(ahead.values()), AHEAD_LIMIT)
    if any(reason.code in NEEDS_OPERATOR for reason in reasons) or job.remote:
        return Prediction(count)
    seconds = _estimate_wait_sec(facts, ahead)
    if seconds is None:
        return Prediction(count)
    earliest = max([facts.now, *(at for at in (job.not_before, job.recheck_at) if at is not None)])
    return Prediction(count, earliest + timedelta(seconds=seconds))


def _estimate_wait_sec(facts: Facts, ahead: Mapping[str, int]) -> float | None:
    """Divide the run time of the jobs ahead, and half of that of the running ones, by the number of slots."""
    running: dict[str, int] = {}  # by job type, those that must finish first
    if facts.job.lane_id is not None:
        slots = min(facts.slots, 1)  # jobs of a target run one at a time
        running = {job.job_type: 1 for job in facts.lane if job.status == Status.RUNNING}
    else:
        slots = min([facts.slots, *(row.max for row in facts.limits if row.max is not None)])
        in_use = [facts.in_use.of(to_limit(row)) for row in facts.limits if row.max is not None]
        if busy := max(in_use, default=sum(worker.busy for worker in facts.workers)):
            running = {facts.job.job_type: busy}
    if slots == 0:
        return None
    if not ahead and sum(running.values()) < slots:
        return 0.0
    means = _mean_run_sec({*ahead, *running})
    if not means:
        return None
    default = sum(means.values()) / len(means)
    ahead_sec = sum(count * means.get(job_type, default) for job_type, count in ahead.items())
    running_sec = sum(count * means.get(job_type, default) / 2 for job_type, count in running.items())
    return (ahead_sec + running_sec) / slots


def _count_ahead(facts: Facts) -> dict[str, int]:
    """Count, by job type, the jobs ahead: of its target, or of all that are ready. Each part scans an index."""
    job = facts.job
    if job.lane_id is not None:
        where, where_params = "lane_id = %s AND gate IN (2, 3)", [db.to_stored_uuid(job.lane_id)]
    elif job.gate == Gate.READY:
        where, where_params = f"gate = 3 AND {'remote' if job.remote else 'NOT remote'}", []
    else:
        return {}
    created_at = db.connection().ops.adapt_datetimefield_value(job.created_at)
    parts: list[tuple[str, list[Any]]] = [
        ("priority > %s", [job.priority]),
        ("priority = %s AND position < %s", [job.priority, job.position]),
        (
            "priority = %s AND position = %s AND (created_at < %s OR (created_at = %s AND id < %s))",
            [job.priority, job.position, created_at, created_at, db.to_stored_uuid(job.pk)],
        ),
    ]
    part = f"SELECT * FROM (SELECT job_type FROM jobscheduler_job WHERE {where} AND {{}} LIMIT {AHEAD_LIMIT}) part"  # noqa: S608 — constants only
    sql = " UNION ALL ".join(part.format(condition) for condition, _ in parts)
    params: list[Any] = [value for _, values in parts for value in (*where_params, *values)]
    with db.connection().cursor() as cursor:
        cursor.execute(f"SELECT job_type, count(*) FROM ({sql}) ahead GROUP BY job_type", params)  # noqa: S608 — see above
        return dict(cursor.fetchall())


def _mean_run_sec(job_types: Iterable[str]) -> dict[str, float]:
    """Return the mean run time, in seconds, of these job types; of all types if none of these ran recently."""
    minutes = JobMinute.objects.filter(minute__gt=Now() - MEASURED_WINDOW, run_bucket__gte=0)
    rows = minutes.order_by().values_list("job_type").annotate(Sum("run_sec"), Sum("jobs"))
    means = {job_type: run_sec / jobs for job_type, run_sec, jobs in rows if jobs}
    selected = {job_type: mean for job_type, mean in means.items() if job_type in set(job_types)}
    return selected or means
