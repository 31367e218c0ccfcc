"""Retry chains: linear, one new job after the tail, the hold on the lane handed on."""

from __future__ import annotations

from jobs.actors import Actor
from jobs.engine import groups, journal
from jobs.engine.insert import insert_job
from jobs.engine.job_spec import copy_of
from jobs.engine.moves import get, jobs, regate
from jobs.literals import literals
from jobs.models import Gate, Job
from jobs.states import EventKind, Status


def follow(job: Job, *, actor: Actor, reason: str, fresh: bool = False, position: int | None = None) -> Job:
    """Make the next job of the chain after its tail `job`, which is locked and terminal."""
    groups.reopen(job)
    status = Status.PENDING if groups.must_wait(job) else Status.QUEUED
    spec = copy_of(job, status=status, position=position, checkpoint=None if fresh else job.checkpoint)
    if job.holds_lane:
        jobs().filter(pk=job.pk).update(holds_lane=False)
    journal.note(job, EventKind.RETRY_CREATED, actor=actor, reason=reason, data={"retried_by": str(spec.id)})
    insert_job(spec, actor=actor, reason=reason or f"retry of {job.pk}")
    groups.bring_back_later_places(job, actor=actor)
    return get(spec.id)


def send_off(job: Job, *, actor: Actor, reason: str) -> Job:
    """End the backoff of a waiting retry."""
    jobs().filter(pk=job.pk, status=Status.QUEUED).update(not_before=None)
    why = reason or "retried at once"
    journal.note(job, EventKind.UPDATED, actor=actor, reason=why, data={"fields": ["not_before"]})
    regate(job)
    return get(job.pk)


def successor(job: Job) -> Job | None:
    return jobs().filter(retry_of_id=job.pk).first()


def holds_lane(job: Job) -> bool:
    """A chain holds its lane from its first dispatch on; a retry inherits the hold of an unresolved failure."""
    if job.lane_id is None:
        return False
    if job.dispatched_at is not None or job.retry_of_id is None:
        return job.dispatched_at is not None
    unresolved = jobs().filter(pk=job.retry_of_id, status=Status.FAILED, resolved_at__isnull=True)
    return unresolved.filter(lane_id=job.lane_id).exists()


def head_position(job: Job) -> int:
    """Before everything of its priority that waits in the job's lane."""
    if job.lane_id is None:
        return job.position
    waiting = jobs().filter(lane_id=job.lane_id, gate__in=literals([Gate.LANE, Gate.READY]))
    first = waiting.filter(priority=job.base_priority).order_by("position").values_list("position", flat=True).first()
    return job.position if first is None else min(job.position, first - 1024)
