"""Reorder waiting jobs: a position is a number, and two neighbours nearly always have room for one between them."""

from __future__ import annotations

import time
from uuid import UUID

from django.db.models import Q

from jobs import db, notifications
from jobs.actors import Actor
from jobs.engine.promoter import mark_dirty
from jobs.engine.sql.spread import spread_positions
from jobs.engine.transitions import add_event, get_job, lock_job, require_allowed
from jobs.errors import InvalidInput, WrongState
from jobs.models import Job
from jobs.models.job import JobQuerySet
from jobs.states import WAITING, EventKind

SPACING = 1024
SPREAD_SIZE = 500  # jobs that are spread at first
ATTEMPTS, PAUSE_SEC = 100, 0.02  # where other transactions hold jobs to spread
LARGEST_POSITION = 2**63 - 1
ORDER = ("position", "created_at", "id")


class NoRoom(Exception):
    """Two neighbours have adjacent positions."""


def move_beside(job_id: UUID, other_id: UUID, *, after: bool, actor: Actor, reason: str = "") -> Job:
    """Move a job right before or after another one of its tenant and priority."""
    if job_id == other_id:
        raise InvalidInput("after" if after else "before", "a job cannot be moved beside itself")
    for _attempt in range(ATTEMPTS):
        try:
            return _try_move_beside(job_id, other_id, after, actor, reason)
        except NoRoom:
            if not make_room(other_id):
                time.sleep(PAUSE_SEC)
    raise WrongState(f"Job {job_id} was not moved: other transactions hold the jobs around job {other_id}. Try again.")


def move_to_end(job_id: UUID, *, top: bool, actor: Actor, reason: str = "") -> Job:
    """Move a job to the first or last position of its tenant and priority."""
    with db.atomic():
        job = _lock_movable(job_id)
        outermost = _peers(job).exclude(pk=job.pk).order_by("position" if top else "-position").first()
        if outermost is None:
            return job
        position = outermost.position - SPACING if top else outermost.position + SPACING
        return _set_position(job, max(-LARGEST_POSITION, min(LARGEST_POSITION, position)), actor, reason)


def make_room(job_id: UUID) -> bool:
    """Spread the jobs from `job_id` on evenly, in their order, as many as needed. Return whether it was possible.

    It waits for no lock, because the holder of one may wait for another. If any of the jobs is locked, nothing changes.
    """
    with db.atomic() as connection:
        job = get_job(job_id)
        followers = _peers(job).exclude(_before(job)).order_by(*ORDER)
        previous = _peers(job).filter(_before(job)).order_by(*(f"-{name}" for name in ORDER)).first()
        size = SPREAD_SIZE
        while (high := followers.values_list("position", flat=True)[size : size + 1].first()) is not None:
            low = previous.position if previous else job.position - SPACING * size
            if high - low > 2 * (size + 1):
                break
            size *= 2
        size = followers[:size].count()
        low = previous.position if previous else job.position - SPACING * size
        step = SPACING if high is None else (high - low) // (size + 1)
        unlocked = Job.objects.select_for_update(no_key=True, skip_locked=True)
        locked = set(unlocked.filter(pk__in=followers.values("pk")[:size]).values_list("pk", flat=True))
        if locked != set(followers.values_list("pk", flat=True)[:size]):
            return False
        spread_positions(connection, locked, low=low, step=step)
        return True


def _try_move_beside(job_id: UUID, other_id: UUID, after: bool, actor: Actor, reason: str) -> Job:
    with db.atomic():
        job, other = _lock_movable(job_id), get_job(other_id)
        if (other.tenant, other.priority) != (job.tenant, job.priority):
            raise WrongState(
                f"Job {job.pk} cannot be moved beside job {other.pk}: tenant or priority differs.", status=job.status
            )
        if other.status not in WAITING:
            raise WrongState(f"Job {other.pk} is {other.status} and no longer waits.", status=other.status)
        peers = _peers(job).exclude(pk=job.pk)
        if after:
            neighbour = peers.exclude(_before(other)).exclude(pk=other.pk).order_by(*ORDER).first()
            low, high = other.position, neighbour.position if neighbour else other.position + 2 * SPACING
        else:
            neighbour = peers.filter(_before(other)).order_by(*(f"-{name}" for name in ORDER)).first()
            low, high = neighbour.position if neighbour else other.position - 2 * SPACING, other.position
        if high - low < 2:
            raise NoRoom
        return _set_position(job, (low + high) // 2, actor, reason)


def _lock_movable(job_id: UUID) -> Job:
    job = lock_job(job_id)
    require_allowed(job, "move")
    return job


def _peers(job: Job) -> JobQuerySet:
    return Job.objects.waiting().filter(tenant=job.tenant, priority=job.priority)


def _before(job: Job) -> Q:
    return (
        Q(position__lt=job.position)
        | Q(position=job.position, created_at__lt=job.created_at)
        | Q(position=job.position, created_at=job.created_at, id__lt=job.pk)
    )


def _set_position(job: Job, position: int, actor: Actor, reason: str) -> Job:
    if position == job.position:
        return job
    Job.objects.filter(pk=job.pk).update(position=position)
    data = {"from": str(job.position), "to": str(position)}  # as in the serialized job
    add_event(job, EventKind.MOVED, actor=actor, reason=reason, data=data)
    mark_dirty(job.lane_id)
    notifications.notify(notifications.READY)
    return get_job(job.pk)
