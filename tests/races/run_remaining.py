"""Runs whatever can still run after a race to its end: what is left must have a reason that a person can see."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from django.db.models import Q

from jobs import actors
from jobs.engine import promoter
from jobs.engine.finish import JobResult, finish
from jobs.models import Gate, GroupMode, Job
from jobs.outcomes import Completed
from jobs.states import LIVE, Status
from tests.races.claim import JobClaimer

BATCH = 50
DRAINER = actors.make_worker_actor("drainer")


def run_remaining_jobs() -> None:
    slots = count()
    taker = JobClaimer(DRAINER.name)
    while True:
        promoter.promote_due()
        marks = promoter.promote()
        taken = taker.take([next(slots) for _ in range(BATCH)])
        finish([JobResult(job.id, job.lease_token, Completed(), job.group_id) for job in taken], actor=DRAINER)
        if not marks and not taken:
            return


def find_stuck_jobs() -> Iterator[str]:
    for job in Job.objects.filter(status__in=sorted(LIVE)).select_related("group"):
        if not _has_a_reason(job):
            yield f"job {job.pk}: stays {job.status} (gate {job.gate}) and nothing says why"


def _has_a_reason(job: Job) -> bool:
    if job.status == Status.PENDING:
        return job.hold or _waits_for_its_turn(job)
    if job.status == Status.QUEUED:
        return job.gate == Gate.TIME or (job.gate == Gate.LANE and _is_shut(job))
    return job.status == Status.PAUSED


def _waits_for_its_turn(job: Job) -> bool:
    """After an earlier place, or after another that has begun."""
    if job.group is None or job.group.mode != GroupMode.SEQUENTIAL:
        return False
    others = job.group.jobs.filter(status__in=sorted(LIVE)).exclude(group_index=job.group_index)
    return others.filter(Q(group_index__lt=job.group_index) | ~Q(status=Status.PENDING)).exists()


def _is_shut(job: Job) -> bool:
    """By a chain that a person must mend, or that waits out its backoff."""
    stopped = Q(status__in=[Status.PAUSED, Status.FAILED]) | Q(gate=Gate.TIME)
    return Job.objects.filter(stopped, lane_id=job.lane_id, holds_lane=True).exists()
