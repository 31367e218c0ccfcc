"""Advance, close and reopen groups when their members change. Callers hold the group's lock (`transitions.lock_job`).

Without the lock, two last members that finish at the same time would each see the other still running.

An action changes many members, at most BATCH_SIZE in one transaction. Its first batch belongs to the transaction that
begins it. If members are left, a row of `GroupAction` keeps the rest: `run_actions` goes on after the commit, or the
maintenance of any worker. Until an action is done, its group releases no member and does not close, and the next
action waits.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from functools import partial
from uuid import UUID

from django.db import Error
from django.db.models import Count, Exists, OuterRef, Q
from django.db.models.functions import Now

from jobs import db, signals
from jobs.actors import SCHEDULER, Actor, ActorKind
from jobs.conf import conf
from jobs.engine.facts import find_blocked_members
from jobs.engine.insert import insert_jobs
from jobs.engine.job_spec import JobSpec, build_retry_spec
from jobs.engine.sql.groups import RetriedMember, record_retries
from jobs.engine.transitions import (
    WaitingMember,
    apply_transition,
    finish_waiting_members,
    queued_gate,
    request_stop,
)
from jobs.models import GroupAction, GroupMode, GroupStatus, GroupVerb, Job, JobGroup
from jobs.models.expressions import sql_literals
from jobs.models.job import JobQuerySet
from jobs.policies.groups import GroupFailureFacts
from jobs.states import LIVE, PREDECESSOR_REASONS, SUCCESSFUL, TERMINAL, Status, StopMode

logger = logging.getLogger("jobs.engine.groups")
BATCH_SIZE = 500  # members that one transaction changes
STOP_BATCH_SIZE = 100  # running members that it requests to stop, each with statements of its own
BATCHES_PER_CALL = 40

action_left = threading.Event()  # set when a transaction of this process has left an action to `run_actions`


def on_member_finished(job: Job) -> None:
    """Release the next member after `job` has finished, or end the rest; close the group after its last member."""
    if job.group_id is None:
        return
    has_actions = Exists(GroupAction.objects.filter(group_id=OuterRef("pk")))
    group = JobGroup.objects.annotate(has_actions=has_actions).get(pk=job.group_id)
    verb = _decide_on_failure(group, job)
    if verb is not None:
        _end_later_members(group, verb, Status(job.status), after_index=job.group_index)
    elif group.has_actions:
        keep_open(group)
    else:
        _settle(group)


def begin_action(
    group: JobGroup,
    verb: GroupVerb,
    *,
    actor: Actor,
    reason: str,
    after_index: int | None = None,
    retried: UUID | None = None,
) -> None:
    """Run the first batch of an action; keep the rest, or all of it behind an unfinished action, for `run_actions`."""
    action = GroupAction(
        group=group,
        verb=verb,
        actor_kind=actor.kind,
        actor_name=actor.name,
        reason=reason,
        after_index=-1 if after_index is None else after_index,
        retried=retried,
    )
    if not group.actions.exists() and _run_batch(group, action):
        _settle(group)
        return
    action.save(using=db.alias(), force_insert=True)
    keep_open(group)
    db.after_commit(action_left.set)


def run_actions_after_commit(group_id: UUID | None) -> None:
    """Go on with the group's actions in this thread, after the commit. What fails is left to maintenance."""
    if group_id is not None:
        db.after_commit(partial(_try_run_actions, group_id))


def _try_run_actions(group_id: UUID) -> None:
    try:
        run_actions(group_id)
    except Error:
        logger.exception("actions of group %s were interrupted; a worker's maintenance goes on with them", group_id)


def run_actions(group_id: UUID, *, batches: int = BATCHES_PER_CALL, skip_locked: bool = False) -> None:
    """Run actions of a group, oldest first, so many batches at most, each in a transaction of its own."""
    actions = GroupAction.objects.filter(group_id=group_id).order_by("pk")
    for _batch in range(batches):
        if not actions.exists():
            return
        with db.atomic():
            locked = JobGroup.objects.select_for_update(no_key=True, skip_locked=skip_locked)
            group = locked.filter(pk=group_id).first()
            if group is None:  # another process goes on with it
                return
            if (action := actions.first()) is not None:
                _run_saved_batch(group, action)


def _run_saved_batch(group: JobGroup, action: GroupAction) -> None:
    if _run_batch(group, action):
        action.delete(using=db.alias())
        _settle(group)
    else:
        action.save(using=db.alias(), update_fields=["after_index", "retried"])
        keep_open(group)


def _run_batch(group: JobGroup, action: GroupAction) -> bool:
    """Change the next members. Return whether the action is done."""
    actor = Actor(ActorKind(action.actor_kind), action.actor_name)
    if action.verb == GroupVerb.CANCEL:
        return _cancel_members(group, action, actor)
    if action.verb in (GroupVerb.RETRY, GroupVerb.REOPEN):
        return _retry_members(group, action, actor)
    verb, target = ("skip", Status.SKIPPED) if action.verb == GroupVerb.SKIP else ("cancel", Status.CANCELLED)
    rest = _pending_members(group).filter(group_index__gt=action.after_index)
    members = _lock_waiting(rest)
    finish_waiting_members(members, verb, target, actor=actor, reason=action.reason)
    return len(members) < BATCH_SIZE


def _cancel_members(group: JobGroup, action: GroupAction, actor: Actor) -> bool:
    """Cancel members that wait, request running ones to stop. Return whether none is left.

    A claim does not take the group's lock: it may start a member up to the moment in which its row is locked. Running
    members are looked for by the first batch and by the last, which begins again if it finds any other member.
    """
    is_requested = Q(status=Status.RUNNING, cancel_requested=True, cancel_mode=StopMode.CANCEL)
    left = live_members(group).exclude(is_requested).order_by("group_index")
    waiting = _lock_waiting(left.exclude(status=Status.RUNNING).filter(group_index__gt=action.after_index))
    finish_waiting_members(waiting, "cancel", Status.CANCELLED, actor=actor, reason=action.reason)
    is_full = len(waiting) == BATCH_SIZE
    if action.after_index < 0 or not is_full:
        for job in left.filter(status=Status.RUNNING).select_for_update(no_key=True)[:STOP_BATCH_SIZE]:
            request_stop(job, StopMode.CANCEL, actor=actor, reason=action.reason)
    action.after_index = waiting[-1].group_index if is_full else -1
    return not is_full and not left.exists()


def _lock_waiting(members: JobQuerySet) -> list[WaitingMember]:
    locked = members.select_for_update(no_key=True).values_list("pk", *WaitingMember._fields[1:])
    return [WaitingMember(*row) for row in locked[:BATCH_SIZE]]


def _retry_members(group: JobGroup, action: GroupAction, actor: Actor) -> bool:
    """Retry unsuccessful members in order; recreate those that ended because of a retried one. Return whether done."""
    ended = unsuccessful_members(group).filter(group_index__gt=action.after_index).order_by("group_index")
    members = list(ended[:BATCH_SIZE])
    is_done = len(members) < BATCH_SIZE
    specs: dict[str, list[JobSpec]] = {}  # by reason
    retried = []
    is_sequential = group.mode == GroupMode.SEQUENTIAL
    for job in members:
        waits_for_others = is_sequential or job.group_index == group.then_index
        if waits_for_others and action.retried is not None and _is_ended_by_predecessor(job):
            reason = f"place reopened by the retry of {action.retried}"
            spec = build_retry_spec(job, status=Status.PENDING, hold=job.hold)
        elif action.verb == GroupVerb.REOPEN:  # the members after this one ended because of it
            is_done = True
            break
        else:
            reason, action.retried = action.reason, job.pk
            is_blocked = waits_for_others and (bool(specs) or is_blocked_by_sibling(job))
            status = Status.PENDING if is_blocked else Status.QUEUED
            spec = build_retry_spec(job, status=status, checkpoint=job.checkpoint)
        action.after_index = job.group_index or 0
        specs.setdefault(reason, []).append(spec)
        retried.append(RetriedMember(job.pk, spec.id, reason))
    if specs:
        _reopen(group)
        record_retries(db.connection(), retried, actor)
        for reason, retries in specs.items():
            insert_jobs(retries, actor=actor, reason=reason)
    return is_done


def _settle(group: JobGroup) -> None:
    """Release the next member, unless another action waits; close the group after its last member.

    A final job for which a failure of the parallel members decides otherwise is ended instead.
    """
    if group.is_terminal:
        return
    following = _find_next_member(group)
    if following is not None:
        failure = _find_decisive_failure(group) if group.mode == GroupMode.PARALLEL else None
        if failure is not None:
            _end_later_members(group, *failure, after_index=(group.then_index or 0) - 1)
            return  # the end of the final job has settled the group
        if not following.hold:
            reason = "predecessor ended" if group.mode == GroupMode.SEQUENTIAL else "all other members ended"
            apply_transition(following, "release", Status.QUEUED, actor=SCHEDULER, reason=reason, gate=queued_gate())
    close_if_done(group)


def _find_next_member(group: JobGroup) -> Job | None:
    """Return the locked PENDING member that no other one blocks: the next of a sequence, or a final job."""
    is_parallel = group.mode == GroupMode.PARALLEL
    # Asked first, after the end of every member: it reads two rows, however many members are live.
    if is_parallel and (group.then_index is None or has_live_members(group, other_than=group.then_index)):
        return None
    following = _pending_members(group).select_for_update(no_key=True).first()
    return None if following is None or is_blocked_by_sibling(following) else following


def _end_later_members(group: JobGroup, verb: GroupVerb, status: Status, *, after_index: int | None) -> None:
    """Cancel or skip the members that wait behind one that ended with this status."""
    begin_action(group, verb, actor=SCHEDULER, reason=PREDECESSOR_REASONS[status], after_index=after_index)


def is_blocked_by_sibling(job: Job) -> bool:
    """Return whether a new job at this index has to wait for another member, or until an action is done."""
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
    if job.group_id is not None and (group := JobGroup.objects.filter(pk=job.group_id).first()) is not None:
        _reopen(group)


def _reopen(group: JobGroup) -> None:
    if group.is_terminal:
        group.status, group.finished_at, group.cancel_requested = GroupStatus.RUNNING, None, False
        group.round += 1
        group.save(using=db.alias(), update_fields=["status", "finished_at", "cancel_requested", "round"])


def recreate_later_members(job: Job, *, actor: Actor) -> None:
    """Insert a new PENDING job for each later member that ended only because `job`, which is retried, did."""
    if job.group_id is None or not is_unsuccessful(job):
        return
    group = JobGroup.objects.get(pk=job.group_id)
    if group.mode == GroupMode.SEQUENTIAL:
        after_index = job.group_index
    elif group.then_index is not None:
        after_index = group.then_index - 1
    else:
        return
    begin_action(group, GroupVerb.REOPEN, actor=actor, reason="", after_index=after_index, retried=job.pk)


def is_unsuccessful(job: Job) -> bool:
    """Return whether the job failed, was cancelled, or ended because another member did."""
    return job.status in (Status.FAILED, Status.CANCELLED) or _is_ended_by_predecessor(job)


def unsuccessful_members(group: JobGroup) -> JobQuerySet:
    """Return the latest attempts of members for which `is_unsuccessful` is true."""
    is_skipped = Q(status=Status.SKIPPED, status_reason__in=PREDECESSOR_REASONS.values())
    latest = Job.objects.filter(~Exists(Job.objects.filter(retry_of_id=OuterRef("pk"))), group=group)
    return latest.filter(Q(status__in=[Status.FAILED, Status.CANCELLED]) | is_skipped)


def _is_ended_by_predecessor(job: Job) -> bool:
    return job.status in (Status.CANCELLED, Status.SKIPPED) and job.status_reason in PREDECESSOR_REASONS.values()


def _decide_on_failure(group: JobGroup, job: Job) -> GroupVerb | None:
    """Return how the members of a sequence behind this one end; None if they go on."""
    if group.mode != GroupMode.SEQUENTIAL or job.status in SUCCESSFUL:
        return None
    total = Job.objects.filter(group=group).aggregate(n=Count("group_index", distinct=True))["n"]
    return _decide(group, Status(job.status), job.group_index or 0, total)


def _find_decisive_failure(group: JobGroup) -> tuple[GroupVerb, Status] | None:
    """Return how the final job of a parallel group ends, and because of which status; None if it starts.

    Decided after the last other member has ended: until then, a retry may replace a failure.
    """
    then_index = group.then_index or 0
    ended = unsuccessful_members(group).filter(group_index__lt=then_index).order_by("group_index")
    for status, index in ended.exclude(status=Status.SKIPPED).values_list("status", "group_index"):
        if (verb := _decide(group, Status(status), index or 0, then_index + 1)) is not None:
            return verb, Status(status)
    return None


def _decide(group: JobGroup, status: Status, index: int, total: int) -> GroupVerb | None:
    facts = GroupFailureFacts(on_failure=group.on_failure, status=status, index=index, total=total)
    decision = str(conf.policy("GROUP_FAILURE_POLICY").decide(facts))
    if decision == "continue":
        return None
    return GroupVerb.SKIP if decision == "skip" else GroupVerb.STOP


def close_if_done(group: JobGroup) -> None:
    """Set the group's final status and send its signal, if no member is live any more."""
    if has_live_members(group):
        keep_open(group)
        return
    status = _final_status(group)
    JobGroup.objects.filter(pk=group.pk).update(status=status, finished_at=Now())
    signals.send_after_commit(groups=[signals.FinishedGroup(group.pk, group.tenant, str(status), group.round)])


def keep_open(group: JobGroup) -> None:
    """Set the group to RUNNING, unless it is terminal until a waiting action reopens it.

    Written even if it is RUNNING: a REPEATABLE READ transaction of the host that waits for this row must fail instead
    of going on with a snapshot in which the member has not ended.
    """
    if not group.is_terminal:
        JobGroup.objects.filter(pk=group.pk).update(status=GroupStatus.RUNNING)


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


def has_live_members(group: JobGroup, *, other_than: int | None = None) -> bool:
    """Return whether a member has not finished, apart from the one at this index."""
    indexes = live_members(group).order_by().values_list("group_index", flat=True)
    return any(index != other_than for index in indexes[:2])


def live_members(group: JobGroup) -> JobQuerySet:
    """Return the members that have not finished."""
    return Job.objects.filter(group=group, status__in=sql_literals(sorted(LIVE)))
