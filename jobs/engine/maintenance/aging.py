"""Raise the priority of jobs that have waited long, step by step. Only where a fairness policy is set.

Looks at the first jobs of every priority, along the indexes that claims scan: jobs further back wait behind them
anyway, and are reached once these have started.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from datetime import datetime
from uuid import UUID

from django.db.models import Max, Q

from jobs import clock, db
from jobs.actors import SCHEDULER
from jobs.conf import conf
from jobs.engine.promoter import mark_dirty
from jobs.models import Gate, Job, JobEvent
from jobs.models.expressions import SqlLiteral
from jobs.models.job import JobQuerySet
from jobs.policies.concurrency import Flow
from jobs.policies.fairness import Waiting
from jobs.states import EventKind, Status

logger = logging.getLogger("jobs.engine.maintenance.aging")
JOBS_PER_PRIORITY = 100
QUEUES_PER_ROUND = 100  # targets, and addons with remote jobs; the next round continues behind them
SHORTEST_PAUSE_SEC, LONGEST_PAUSE_SEC = 0.2, 5.0
FACTS = (
    "tenant",
    "job_type",
    "resource",
    "addon_id",
    "base_priority",
    "priority",
    "created_at",
    "not_before",
    "lane_id",
)
FIRST_LANE = UUID(int=0)


class PriorityAging:
    """The maintenance task. It remembers its position among addons and targets."""

    def __init__(self) -> None:
        self._lane, self._addon = FIRST_LANE, ""

    def pause_sec(self) -> float:
        """Return the pause between rounds: half a step, where the policy has the length of one."""
        step = getattr(conf.policy("FAIRNESS_POLICY"), "every_sec", None)
        return LONGEST_PAUSE_SEC if step is None else min(max(float(step) / 2, SHORTEST_PAUSE_SEC), LONGEST_PAUSE_SEC)

    def run_round(self) -> int:
        """Raise the jobs that are due. Return how many."""
        if conf.policy("FAIRNESS_POLICY") is None:
            return 0
        now = clock.now()
        return sum(_age_queue(queue, now) for queue in self._queues())

    def _queues(self) -> Iterator[JobQuerySet]:
        """Yield every queue: the local one, that of each addon's remote jobs, and that of each target."""
        yield Job.objects.ready()
        remote = Job.objects.filter(gate=SqlLiteral(Gate.READY), remote=True)
        for _ in range(QUEUES_PER_ROUND):
            addon = remote.filter(addon_id__gt=self._addon).order_by("addon_id").values_list("addon_id", flat=True)
            self._addon = addon.first() or ""
            yield remote.filter(addon_id=self._addon)
            if not self._addon:
                break
        in_lane = Job.objects.in_lanes()
        for _ in range(QUEUES_PER_ROUND):
            lane = in_lane.filter(lane_id__gt=self._lane).order_by("lane_id").values_list("lane_id", flat=True).first()
            self._lane = lane or FIRST_LANE
            if lane is None:
                break
            yield in_lane.filter(lane_id=lane)


def _age_queue(queue: JobQuerySet, now: datetime) -> int:
    raised = 0
    priority = queue.order_by().aggregate(highest=Max("priority"))["highest"]
    while priority is not None:
        first = queue.filter(priority=priority).order_by("position", "created_at", "id").only("id", "status", *FACTS)
        due = [job for job in first[:JOBS_PER_PRIORITY] if _aged_priority(job, now) > job.priority]
        raised += _raise_priorities(due, now)
        priority = queue.filter(priority__lt=priority).order_by().aggregate(highest=Max("priority"))["highest"]
    return raised


def _raise_priorities(due: Sequence[Job], now: datetime) -> int:
    """Raise those of these jobs that are not locked and still have the priority that was read."""
    if not due:
        return 0
    with db.atomic():
        unchanged = Q()
        for job in due:
            unchanged |= Q(pk=job.pk, priority=job.priority)
        locked = Job.objects.filter(unchanged, status=Status.QUEUED).select_for_update(no_key=True, skip_locked=True)
        rows = list(locked.only("id", "status", *FACTS))
        for job in rows:
            Job.objects.filter(pk=job.pk).update(priority=_aged_priority(job, now))
        JobEvent.objects.bulk_create(
            JobEvent(
                job_id=job.pk,
                kind=EventKind.AGED,
                from_status=job.status,
                to_status=job.status,
                reason=f"has waited {_waited_sec(job, now):.0f} s",
                actor_kind=SCHEDULER.kind,
                actor_name=SCHEDULER.name,
                data={"from": job.priority, "to": _aged_priority(job, now)},
            )
            for job in rows
        )
        mark_dirty(*(job.lane_id for job in rows))
    return len(rows)


def _aged_priority(job: Job, now: datetime) -> int:
    flow = Flow.of(job)
    waiting = Waiting(flow, job.base_priority, job.priority, _waited_sec(job, now))
    return min(max(int(conf.policy("FAIRNESS_POLICY").aged(waiting)), job.priority), 100)


def _waited_sec(job: Job, now: datetime) -> float:
    since = job.created_at if job.not_before is None else max(job.created_at, job.not_before)
    return (now - since).total_seconds()
