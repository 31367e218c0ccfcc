"""Why a job is not running: the reasons as data and one sentence, its place in the queue, and when it may start.

For any job in fewer than ten statements, whatever the queue holds; `brief` says it in one line for all jobs of a page.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs import figures
from jobs.explain import forecast, reasons
from jobs.explain.facts import Facts, gather, in_force, serves, waiting_calls, working
from jobs.explain.reasons import Reason, its_limits, its_time, its_workers
from jobs.models import ConcurrencyLimit, Gate, Job, Lease, Target, Worker
from jobs.models.job import STATUS_WORDS
from jobs.policies.concurrency import InUse
from jobs.shapes import moment
from jobs.states import ACTIVE, Status


@dataclass(frozen=True)
class Explanation:
    """`ahead`: how many jobs go first, up to `forecast.MOST`; None where the job is not in the queue."""

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


def explain(job_id: UUID) -> Explanation:
    facts = gather(job_id)
    job = facts.job
    if job.status == Status.RUNNING or job.is_terminal:
        return Explanation(_("It is %s.") % STATUS_WORDS[Status(job.status)])
    found = reasons.of(facts)
    outlook = forecast.of(facts, found)
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
        self.in_use: InUse = figures.in_use()
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
                return _("its target is blocked by a job that is %s") % STATUS_WORDS[Status(holder.status)]
            return _("its target is busy") if holder.status in ACTIVE else _("another job of its target goes first")
        return _("others of its target go first") if job.gate == Gate.LANE else ""
