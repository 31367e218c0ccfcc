"""What persons do to whole groups: cancel, retry. Each one transaction, under the group's lock."""

from __future__ import annotations

from uuid import UUID

from jobs import db
from jobs.actors import Actor
from jobs.engine import chains, groups
from jobs.engine.moves import ask, jobs, lock, take
from jobs.errors import NotFound, WrongState
from jobs.models import JobGroup
from jobs.states import Status, StopMode


def cancel(group_id: UUID, *, actor: Actor, reason: str = "") -> JobGroup:
    """End what waits now, ask what runs to stop. The group is CANCELLED when its last member has ended."""
    with db.atomic():
        group = locked(group_id)
        if group.is_terminal:
            raise WrongState(f"Group {group_id} has ended.", status=group.status, allowed=["retry"])
        JobGroup.objects.filter(pk=group.pk).update(cancel_requested=True)
        why = reason or "group cancelled"
        for job_id in list(groups.live(group).order_by("pk").values_list("pk", flat=True)):
            job = lock(job_id)
            if job.status == Status.RUNNING:
                ask(job, StopMode.CANCEL, actor=actor, reason=why)
            else:
                take(job, "cancel", Status.CANCELLED, actor=actor, reason=why, holds_lane=False)
        groups.close_if_done(JobGroup.objects.get(pk=group.pk))
        return JobGroup.objects.get(pk=group.pk)


def retry(group_id: UUID, *, actor: Actor, reason: str = "") -> JobGroup:
    """Run again, in order, every place that did not end well."""
    with db.atomic():
        group = locked(group_id)
        again = [
            job
            for job in jobs().filter(group=group, retried_by__isnull=True).order_by("group_index")
            if groups.ended_badly(job)
        ]
        if not again:
            raise WrongState(
                f"Every place of group {group_id} ended well or is still at work.",
                status=group.status,
                allowed=[] if group.is_terminal else ["cancel"],
            )
        for job in again:
            if chains.successor(job) is None:  # the retry of an earlier place may have brought it back
                chains.follow(lock(job.pk), actor=actor, reason=reason or "group retried")
        return JobGroup.objects.get(pk=group.pk)


def locked(group_id: UUID) -> JobGroup:
    group = JobGroup.objects.select_for_update(no_key=True).filter(pk=group_id).first()
    if group is None:
        raise NotFound(f"There is no group {group_id}.")
    return group
