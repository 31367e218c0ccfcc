"""Advance, close and reopen groups when their members change. Callers hold the group's lock (`transitions.lock_job`).

Without the lock, two last members that finish at the same time would each see the other still running.
"""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from django.db.models import Count
from django.db.models.functions import Now

from jobs import db, signals
from jobs.actors import SCHEDULER, Actor
from jobs.conf import conf
from jobs.engine.facts import find_blocked_members
from jobs.engine.insert import insert_jobs
from jobs.engine.job_spec import build_retry_spec
from jobs.engine.transitions import add_event, apply_transition, queued_gate
from jobs.models import GroupMode, GroupStatus, Job, JobGroup
from jobs.models.expressions import sql_literals
from jobs.models.job import JobQuerySet
from jobs.policies.groups import GroupFailureFacts
from jobs.states import LIVE, SUCCESSFUL, TERMINAL, EventKind, Status

PREDECESSOR_REASONS = {Status.FAILED: "predecessor failed", Status.CANCELLED: "predecessor cancelled"}


def on_member_finished(job: Job) -> None:
    """Release the next member after `job` has finished, or end the rest; close the group after its last member."""
    if job.group_id is None:
        return
    group = JobGroup.objects.get(pk=job.group_id)
    if group.mode == GroupMode.SEQUENTIAL:
        _advance(group, job)
    close_if_done(group)


def is_blocked_by_sibling(job: Job) -> bool:
    """Return whether a new job at this index has to wait for another member."""
    return job.pk in find_blocked_members([job])


def mark_started(group_ids: Iterable[UUID]) -> None:
    """Set groups to RUNNING after a member has started. Locked groups are skipped: a member's finish sets them, too."""
    pending = JobGroup.objects.filter(pk__in=list(group_ids), status=GroupStatus.PENDING)
    with db.atomic():
        locked = list(pending.select_for_update(skip_locked=True, no_key=True).values_list("pk", flat=True))
        if locked:
            JobGroup.objects.filter(pk__in=locked).update(status=GroupStatus.RUNNING)


def reopen_group(job: Job) -> None:
    """Begin another round of the job's group if it is terminal, because the job is retried."""
    if job.group_id is None:
        return
    groups = JobGroup.objects.filter(pk=job.group_id)
    group = groups.first()
    if group is not None and group.is_terminal:
        groups.update(status=GroupStatus.RUNNING, finished_at=None, round=group.round + 1, cancel_requested=False)


def recreate_later_members(job: Job, *, actor: Actor) -> None:
    """Insert a new PENDING job for each later member that ended only because `job` did."""
    if job.group_id is None or not is_unsuccessful(job):
        return
    specs, reason = [], f"place reopened by the retry of {job.pk}"
    later = Job.objects.filter(group_id=job.group_id, group_index__gt=job.group_index, retried_by__isnull=True)
    for member in later.order_by("group_index"):
        if member.status in (Status.FAILED, Status.CANCELLED) and not _is_ended_by_predecessor(member):
            break  # the members after this one ended because of it
        if not _is_ended_by_predecessor(member):
            continue
        specs.append(build_retry_spec(member, status=Status.PENDING, hold=member.hold))
        data = {"retried_by": str(specs[-1].id)}
        add_event(member, EventKind.RETRY_CREATED, actor=actor, reason=reason, data=data)
    if specs:
        insert_jobs(specs, actor=actor, reason=reason)


def is_unsuccessful(job: Job) -> bool:
    """Return whether the job failed, was cancelled, or ended because another member did."""
    return job.status in (Status.FAILED, Status.CANCELLED) or _is_ended_by_predecessor(job)


def _is_ended_by_predecessor(job: Job) -> bool:
    return job.status in (Status.CANCELLED, Status.SKIPPED) and job.status_reason in PREDECESSOR_REASONS.values()


def _advance(group: JobGroup, job: Job) -> None:
    decision = "continue" if job.status in SUCCESSFUL else _decide_on_failure(group, job)
    if decision != "continue":
        verb, target = ("skip", Status.SKIPPED) if decision == "skip" else ("cancel", Status.CANCELLED)
        rest = _pending_members(group).filter(group_index__gt=job.group_index)
        for member in rest.select_for_update(no_key=True):
            apply_transition(member, verb, target, actor=SCHEDULER, reason=PREDECESSOR_REASONS[Status(job.status)])
    following = _pending_members(group).select_for_update(no_key=True).first()
    if following is not None and not following.hold and not is_blocked_by_sibling(following):
        apply_transition(
            following, "release", Status.QUEUED, actor=SCHEDULER, reason="predecessor ended", gate=queued_gate()
        )


def _decide_on_failure(group: JobGroup, job: Job) -> str:
    total = Job.objects.filter(group=group).aggregate(n=Count("group_index", distinct=True))["n"]
    facts = GroupFailureFacts(
        on_failure=group.on_failure, status=Status(job.status), index=job.group_index or 0, total=total
    )
    return str(conf.policy("GROUP_FAILURE_POLICY").decide(facts))


def close_if_done(group: JobGroup) -> None:
    """Set the group's final status and send its signal, if no member is live any more."""
    if live_members(group).exists():
        # Written even if it is RUNNING: a REPEATABLE READ transaction of the host that waits for this row must fail
        # instead of going on with a snapshot in which the member has not ended.
        JobGroup.objects.filter(pk=group.pk).update(status=GroupStatus.RUNNING)
        return
    status = _final_status(group)
    JobGroup.objects.filter(pk=group.pk).update(status=status, finished_at=Now())
    signals.send_after_commit(groups=[signals.FinishedGroup(group.pk, group.tenant, str(status), group.round)])


def _final_status(group: JobGroup) -> GroupStatus:
    latest = Job.objects.filter(group=group, retried_by__isnull=True)
    counts = dict(latest.order_by().values_list("status").annotate(n=Count("pk")))
    total = sum(counts.values())
    cancelled, failed = counts.get(Status.CANCELLED, 0), counts.get(Status.FAILED, 0)
    assert set(counts) <= TERMINAL, counts
    if cancelled and (group.cancel_requested or cancelled == total):
        return GroupStatus.CANCELLED
    if failed == total:
        return GroupStatus.FAILED
    return GroupStatus.PARTIAL if failed or cancelled else GroupStatus.COMPLETED


def _pending_members(group: JobGroup) -> JobQuerySet:
    return live_members(group).filter(status=Status.PENDING).order_by("group_index")


def live_members(group: JobGroup) -> JobQuerySet:
    """Return the members that have not finished."""
    return Job.objects.filter(group=group, status__in=sql_literals(sorted(LIVE)))
