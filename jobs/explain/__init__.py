"""Explain why a job is not running: the reasons, a summary, the number of jobs ahead, and a predicted start.

One job takes fewer than ten statements, whatever the length of the queue; `explain_briefly` takes a page of jobs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from django.utils.text import capfirst
from django.utils.translation import gettext as _

from jobs import clock
from jobs.explain.facts import Facts, can_run, list_workers, load_facts, load_queue
from jobs.explain.forecast import AHEAD_LIMIT, make_forecast
from jobs.explain.reasons import (
    Reason,
    build_queue_reason,
    find_reasons,
    limit_reasons,
    order_reasons,
    time_reasons,
    worker_reasons,
)
from jobs.models import Gate, Job, Target
from jobs.models.job import STATUS_IN_SENTENCE
from jobs.policies.concurrency import Flow
from jobs.states import ACTIVE, Status
from jobs.time_text import format_time


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


def explain(job_id: UUID, *, viewer_tenant: str | None = None) -> Explanation:
    """Explain one job. Raise NotFound if there is none.

    To a viewer of one tenant, nothing is named that belongs to other tenants: direct calls, and who paused a limit that
    all tenants share, and why. `ahead` is the number of jobs of all tenants, since they share the queue.
    """
    facts = load_facts(job_id, viewer_tenant)
    job = facts.job
    if job.status == Status.RUNNING or job.is_terminal:
        return Explanation(capfirst(str(STATUS_IN_SENTENCE[Status(job.status)])))
    reasons = find_reasons(facts)
    forecast = make_forecast(facts, reasons)
    if forecast.waits_in_queue:
        reasons.append(build_queue_reason(forecast.ahead or 0, AHEAD_LIMIT))
    if reasons:
        summary = capfirst(reasons[0].message)
    elif job.gate == Gate.LANE:
        summary = _("First of its target; a worker makes it ready next.")
    elif job.remote:
        summary = _("Next in line; a remote worker gets it when it polls.")
    else:
        summary = _("Next in line; a slot is free.")
    return Explanation(summary, reasons, forecast.ahead, forecast.start_at)


def explain_briefly(jobs: Sequence[Job]) -> dict[UUID, str]:
    """Return the first reason of each waiting job; jobs that only wait behind others of the queue have none."""
    return {job_id: reason.message for job_id, reason in find_first_reasons(jobs).items()}


def find_first_reasons(jobs: Sequence[Job]) -> dict[UUID, Reason]:
    """Return the reason of each waiting job that a list shows: one that needs a person comes first."""
    waiting = [job for job in jobs if job.status in (Status.PENDING, Status.QUEUED)]
    if not waiting:
        return {}
    shared = _SharedFacts(waiting)
    reasons = ((job.pk, shared.find_first_reason(job)) for job in waiting)
    return {pk: reason for pk, reason in reasons if reason is not None}


class Handlers:
    """Checks for many jobs whether a running worker handles them, with the workers read once."""

    def __init__(self) -> None:
        self._workers, _draining = list_workers()
        self._answers: dict[Flow, bool] = {}

    def can_handle(self, job: Job) -> bool:
        """Return whether a worker claims such jobs. Remote workers poll, so theirs counts as handled."""
        if job.remote:
            return True
        flow = Flow.of(job)
        if flow not in self._answers:
            self._answers[flow] = any(can_run(worker, flow) for worker in self._workers)
        return self._answers[flow]


class _SharedFacts:
    """The facts about several jobs, each table read once."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        lanes = {job.lane_id for job in jobs if job.lane_id is not None and job.gate != Gate.CLOSED}
        self.now = clock.now()
        self.targets = {target.pk: target for target in (Target.objects.filter(pk__in=lanes) if lanes else ())}
        holders = Job.objects.filter(lane_id__in=lanes, holds_lane=True).only("lane_id", "holds_lane", "status")
        self.holders = {job.lane_id: job for job in (holders if lanes else ())}
        self.queue = load_queue()

    def find_first_reason(self, job: Job) -> Reason | None:
        if job.status == Status.PENDING:
            if job.hold:
                return Reason("held", _("on hold"))
            return Reason("predecessor", _("waiting for an earlier job of its group"))
        facts = Facts(job, self.now)
        facts.load_queue(self.queue)
        target = self._find_target_reason(job)
        reasons = [*time_reasons(facts), *([target] if target else []), *limit_reasons(facts), *worker_reasons(facts)]
        return order_reasons(reasons)[0] if reasons else None

    def _find_target_reason(self, job: Job) -> Reason | None:
        if job.lane_id is None:
            return None
        target, holder = self.targets.get(job.lane_id), self.holders.get(job.lane_id)
        if target is not None and target.paused:
            return Reason("target_paused", _("target paused"))
        if holder is not None and holder.pk not in (job.pk, job.retry_of_id):
            if holder.blocks_target:
                is_failed = holder.status == Status.FAILED
                message = _("target blocked by a failed job") if is_failed else _("target blocked by a paused job")
                return Reason("target_blocked", message)
            if holder.status in ACTIVE:
                return Reason("target_busy", _("queued behind a running job of the same target"))
            return Reason("target_busy", _("queued behind another job of the same target"))
        if job.gate == Gate.LANE:
            return Reason("target_busy", _("queued behind other jobs of the same target"))
        return None
