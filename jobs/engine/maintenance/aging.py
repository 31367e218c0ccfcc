"""Aging: what waits long rises, step by step. A duty, and only where a fairness policy is set.

Looks at the first jobs of every priority, along the indexes that claims walk: who stands further back waits behind
them anyway, and is reached when they have gone.
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
from jobs.engine.transitions import jobs, mark_lanes
from jobs.models import Gate, Job, JobEvent
from jobs.models.expressions import SqlLiteral, sql_literals
from jobs.models.job import JobQuerySet
from jobs.policies.concurrency import Flow
from jobs.policies.fairness import Waiting
from jobs.states import EventKind, Status

logger = logging.getLogger("jobs.engine.maintenance.aging")
OF_EACH_PRIORITY = 100
LINES_AT_ONCE = 100  # lanes, and addons with remote jobs; the next round goes on behind them
SOONEST_SEC, LATEST_SEC = 0.2, 5.0
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


class Ager:
    """The duty. It remembers where it was among the lanes."""

    def __init__(self) -> None:
        self._lane, self._addon = FIRST_LANE, ""

    def pause_sec(self) -> float:
        """Twice a step, where the policy says how long one is."""
        step = getattr(conf.policy("FAIRNESS_POLICY"), "every_sec", None)
        return LATEST_SEC if step is None else min(max(float(step) / 2, SOONEST_SEC), LATEST_SEC)

    def age(self) -> int:
        """One round. Returns how many jobs rose."""
        if conf.policy("FAIRNESS_POLICY") is None:
            return 0
        now = clock.now()
        return sum(_age_line(line, now) for line in self._lines())

    def _lines(self) -> Iterator[JobQuerySet]:
        """Every line that jobs stand in: the queue, each addon's remote jobs, and each lane's."""
        yield jobs().ready()
        remote = jobs().filter(gate=SqlLiteral(Gate.READY), remote=True)
        for _ in range(LINES_AT_ONCE):
            addon = remote.filter(addon_id__gt=self._addon).order_by("addon_id").values_list("addon_id", flat=True)
            self._addon = addon.first() or ""
            yield remote.filter(addon_id=self._addon)
            if not self._addon:
                break
        in_lane = jobs().filter(gate__in=sql_literals([Gate.LANE, Gate.READY]))
        for _ in range(LINES_AT_ONCE):
            lane = in_lane.filter(lane_id__gt=self._lane).order_by("lane_id").values_list("lane_id", flat=True).first()
            self._lane = lane or FIRST_LANE
            if lane is None:
                break
            yield in_lane.filter(lane_id=lane)


def _age_line(line: JobQuerySet, now: datetime) -> int:
    aged = 0
    highest = line.order_by().aggregate(found=Max("priority"))["found"]
    while highest is not None:
        first = line.filter(priority=highest).order_by("position", "created_at", "id").only("id", "status", *FACTS)
        aged += _raise([job for job in first[:OF_EACH_PRIORITY] if _risen(job, now) > job.priority], now)
        highest = line.filter(priority__lt=highest).order_by().aggregate(found=Max("priority"))["found"]
    return aged


def _raise(found: Sequence[Job], now: datetime) -> int:
    """Those that nobody has in hand, and that are still what was seen."""
    if not found:
        return 0
    with db.atomic():
        same = Q()
        for job in found:
            same |= Q(pk=job.pk, priority=job.priority)
        held = jobs().filter(same, status=Status.QUEUED).select_for_update(no_key=True, skip_locked=True)
        rows = list(held.only("id", "status", *FACTS))
        for job in rows:
            jobs().filter(pk=job.pk).update(priority=_risen(job, now))
        JobEvent.objects.bulk_create(
            JobEvent(
                job_id=job.pk,
                kind=EventKind.AGED,
                from_status=job.status,
                to_status=job.status,
                reason=f"has waited {_waited(job, now):.0f} s",
                actor_kind=SCHEDULER.kind,
                actor_name=SCHEDULER.name,
                data={"from": job.priority, "to": _risen(job, now)},
            )
            for job in rows
        )
        mark_lanes(*(job.lane_id for job in rows))
    return len(rows)


def _risen(job: Job, now: datetime) -> int:
    flow = Flow(job.tenant, job.job_type, job.resource, job.addon_id)
    waiting = Waiting(flow, job.base_priority, job.priority, _waited(job, now))
    return min(max(int(conf.policy("FAIRNESS_POLICY").aged(waiting)), job.priority), 100)


def _waited(job: Job, now: datetime) -> float:
    since = job.created_at if job.not_before is None else max(job.created_at, job.not_before)
    return (now - since).total_seconds()
