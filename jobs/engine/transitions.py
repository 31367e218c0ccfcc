"""Apply one transition to a job, or to a batch: lock, look it up, update the row if unchanged, record the event.

The public actions are in `lifecycle`, `finish` and `groups`.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import Case, Value, When
from django.db.models.functions import Now

from jobs import db, notifications, signals
from jobs.actors import Actor
from jobs.engine.facts import gather_facts
from jobs.engine.promoter import mark_dirty
from jobs.engine.sql.finish import add_to_rollup
from jobs.engine.sql.groups import finish_waiting_jobs
from jobs.engine.sql.waiters import notify_waiters
from jobs.errors import Conflict, NotFound
from jobs.log_formats import batch_fields, job_fields
from jobs.models import Gate, Job, JobEvent, JobGroup, JobRun
from jobs.states import (
    TERMINAL,
    EventKind,
    Status,
    StopMode,
    Transition,
    build_status_refusal,
    find_transition,
    refusal,
)

logger = logging.getLogger("jobs.engine.transitions")
NAMES_IN_LINE = 10


def get_job(job_id: UUID) -> Job:
    """Return the job; raise NotFound if there is none."""
    job = Job.objects.filter(pk=job_id).first()
    if job is None:
        raise NotFound(f"There is no job {job_id}.")
    return job


def lock_job(job_id: UUID) -> Job:
    """Lock and return the job, its group first: all code takes these two locks in this order. Raise NotFound."""
    group_id = Job.objects.filter(pk=job_id).values_list("group_id", flat=True).first()
    if group_id is not None:
        JobGroup.objects.select_for_update(no_key=True).get(pk=group_id)
    job = Job.objects.select_for_update(no_key=True).filter(pk=job_id).first()
    if job is None:
        raise NotFound(f"There is no job {job_id}.")
    return job


def require_allowed(job: Job, action: str, fields: Iterable[str] = ()) -> None:
    """Raise Conflict if an operator's action cannot be applied to this job, whose row is locked."""
    if (reason := refusal(action, gather_facts(job), fields)) is not None:
        raise Conflict.from_refusal(reason)


def require_transition(job: Job, verb: str, target: Status | None = None) -> Transition:
    """Return the transition that `verb` makes from the job's status; raise WrongState if there is none."""
    transition = find_transition(verb, job.status, target)
    if transition is None:
        raise wrong_state(job, verb)
    return transition


def apply_transition(
    job: Job,
    verb: str,
    target: Status,
    *,
    actor: Actor,
    reason: str = "",
    data: dict[str, Any] | None = None,
    token: UUID | None = None,
    **fields: Any,
) -> Job:
    """Update the job's row and its run, record the event, notify and signal. Return the job as it is afterwards.

    The job's row must be locked. `fields` are further columns of the job. Raise WrongState if `verb` does not lead
    from the job's status to `target`.
    """
    transition = require_transition(job, verb, target)
    source = Status(job.status)
    if target != source:
        no_request = {"cancel_requested": False, "cancel_mode": ""}  # the requester is recorded in the events
        fields = _CLEARED_ON_LEAVING.get(source, {}) | {"gate": Gate.CLOSED, **no_request} | fields
    status_reason = reason if target != source else job.status_reason  # a resolved job keeps the reason of its failure
    _update_if_unchanged(job, verb, target, status_reason=status_reason, **fields)
    is_finished = target in TERMINAL and target != source
    if is_finished:
        JobRun.objects.open().filter(job_id=job.pk).update(status=target, finished_at=Now(), error=reason)
        add_to_rollup(db.connection(), [job.pk], rollup_writer_id())
        notify_waiters(db.connection(), [job.pk])
    add_event(job, transition.event, actor=actor, target=target, reason=reason, data=data, token=token)
    if is_finished or target == Status.PAUSED or transition.event in (EventKind.HANDED_BACK, EventKind.SNOOZED):
        log_after_commit([(job.pk, job.job_type)], transition.event, actor=actor, reason=reason)
    mark_dirty(job.lane_id)
    if target == Status.QUEUED:
        notifications.notify(notifications.READY)
        if job.deadline_at is not None:
            notifications.notify(notifications.DEADLINE)
    if transition.event == EventKind.RUNNING:
        signals.send_after_commit(started=[signals.StartedJob(job.pk, job.job_type, job.tenant)])
    elif is_finished:
        signals.send_after_commit(finished=[signals.FinishedJob(job.pk, job.job_type, job.tenant, str(target), reason)])
    return get_job(job.pk)


def log_after_commit(jobs: Sequence[tuple[UUID, str]], kind: EventKind, *, actor: Actor, reason: str) -> None:
    """Log the end of jobs, given by id and type, in one line after the commit, with its actor and its reason."""
    if not logger.isEnabledFor(logging.INFO):
        return
    names = ", ".join(f"{job_id} ({job_type})" for job_id, job_type in jobs[:NAMES_IN_LINE])
    hidden = f" and {len(jobs) - NAMES_IN_LINE} more" if len(jobs) > NAMES_IN_LINE else ""
    subject = f"job {names}" if len(jobs) == 1 else f"{len(jobs)} jobs, {names}{hidden}"
    fields = job_fields(*jobs[0]) if len(jobs) == 1 else batch_fields(jobs)
    arguments = (subject, kind.lower().replace("_", " "), actor, f": {reason}" if reason else "")
    db.after_commit(lambda: logger.info("%s: %s (%s)%s", *arguments, extra=fields))


class WaitingMember(NamedTuple):
    """The columns of a member of a group that does not run."""

    id: UUID
    status: str
    lane_id: UUID | None
    job_type: str
    tenant: str
    group_index: int


def finish_waiting_members(
    jobs: Sequence[WaitingMember], verb: str, target: Status, *, actor: Actor, reason: str
) -> None:
    """Finish jobs that do not run, whose rows are locked, in a few statements: the same rows as `apply_transition`."""
    if not jobs:
        return
    transitions = [find_transition(verb, source, target) for source in {job.status for job in jobs}]
    assert all(transitions), f"{verb} does not lead from all of these jobs to {target}"
    (kind,) = {transition.event for transition in transitions if transition is not None}
    connection, job_ids = db.connection(), [job.id for job in jobs]
    finish_waiting_jobs(connection, job_ids, kind=kind, status=target, reason=reason, actor=actor)
    add_to_rollup(connection, job_ids, rollup_writer_id())
    notify_waiters(connection, job_ids)
    log_after_commit([(job.id, job.job_type) for job in jobs], kind, actor=actor, reason=reason)
    mark_dirty(*(job.lane_id for job in jobs))
    signals.send_after_commit(
        finished=(signals.FinishedJob(job.id, job.job_type, job.tenant, str(target), reason) for job in jobs)
    )


def request_stop(job: Job, mode: StopMode, *, actor: Actor, reason: str) -> Job:
    """Record a stop request, which the executor obeys. Repeating one is a no-op; a cancel replaces a pause."""
    if job.cancel_requested and job.cancel_mode == mode:
        return job
    transition = require_transition(job, mode.lower(), Status.RUNNING)
    request: dict[str, Any] = {"cancel_requested": True, "cancel_mode": mode, "status_reason": reason}
    _update_if_unchanged(job, transition.verb, Status.RUNNING, **request)
    add_event(job, transition.event, actor=actor, reason=reason)
    notifications.notify(notifications.STOP)
    return get_job(job.pk)


def add_event(
    job: Job,
    kind: EventKind,
    *,
    actor: Actor,
    target: Status | None = None,
    reason: str = "",
    data: dict[str, Any] | None = None,
    token: UUID | None = None,
) -> None:
    """Record an event of a job. Without a target, the event changed no status."""
    JobEvent.objects.create(
        job_id=job.pk,
        kind=kind,
        from_status=job.status,
        to_status=target or job.status,
        reason=reason,
        actor_kind=actor.kind,
        actor_name=actor.name,
        data=data,
        token=token,
    )
    signals.send_after_commit()


def rollup_writer_id() -> str:
    """Return the writer of this thread's rollup rows: transactions that share a row would wait for each other."""
    return f"{socket.gethostname()}:{os.getpid()}:{threading.get_ident()}"[:300]


def queued_gate() -> Case:
    """Return the expression for the gate of a job that becomes QUEUED, by the database's clock."""
    return Case(
        When(not_before__gt=Now(), then=Value(Gate.TIME)),
        When(lane__isnull=False, then=Value(Gate.LANE)),
        default=Value(Gate.READY),
    )


def recompute_gate(job: Job) -> None:
    """Write the gate of a QUEUED job again, after its own fields have changed."""
    Job.objects.filter(pk=job.pk, status=Status.QUEUED).update(gate=queued_gate(), recheck_at=None)
    mark_dirty(job.lane_id)
    notifications.notify(notifications.READY)


def wrong_state(job: Job, verb: str) -> Conflict:
    """Return the error to raise where `verb` does not fit the job's status."""
    return Conflict.from_refusal(build_status_refusal(verb, gather_facts(job)))


_CLEARED_ON_LEAVING: dict[Status, dict[str, Any]] = {
    Status.RUNNING: {
        "lease_owner": None,
        "lease_token": None,
        "lease_expires_at": None,
        "heartbeat_at": None,
        "beat_clock": None,
    },
    Status.DISPATCHING: {"reserved_until": None},
}


def _update_if_unchanged(job: Job, verb: str, target: Status, **fields: Any) -> None:
    """Write the job's row if its status and lease are those that were read; else raise WrongState."""
    unchanged = Job.objects.filter(pk=job.pk, status=job.status, lease_token=job.lease_token)
    if not unchanged.update(status=target, **fields):
        raise wrong_state(job, verb)
