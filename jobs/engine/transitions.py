"""How any move is made: lock, look the arrow up, write the state under a guard, leave its event, mark and signal.

The public verbs are in `lifecycle`, `ending` and `groups`.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterable
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db.models import Case, Value, When
from django.db.models.functions import Now

from jobs import db, notifications, signals
from jobs.actors import Actor
from jobs.engine.facts import gather_facts
from jobs.engine.promoter import mark_dirty
from jobs.engine.sql.finish import add_to_rollup
from jobs.errors import Conflict, NotFound
from jobs.models import Gate, Job, JobEvent, JobGroup, JobRun
from jobs.states import (
    TERMINAL,
    EventKind,
    Status,
    StopMode,
    Transition,
    build_status_refusal,
    find_refusal,
    find_transition,
)


def get_job(job_id: UUID) -> Job:
    job = Job.objects.filter(pk=job_id).first()
    if job is None:
        raise NotFound(f"There is no job {job_id}.")
    return job


def lock_job(job_id: UUID) -> Job:
    """The job's group first, then the job: the order in which everyone takes them."""
    group_id = Job.objects.filter(pk=job_id).values_list("group_id", flat=True).first()
    if group_id is not None:
        JobGroup.objects.select_for_update(no_key=True).get(pk=group_id)
    job = Job.objects.select_for_update(no_key=True).filter(pk=job_id).first()
    if job is None:
        raise NotFound(f"There is no job {job_id}.")
    return job


def require_allowed(job: Job, action: str, fields: Iterable[str] = ()) -> None:
    """Raise what refuses a person's action on this job, whose row is locked."""
    refused = find_refusal(action, gather_facts(job), fields)
    if refused is not None:
        raise Conflict.from_refusal(refused)


def require_transition(job: Job, verb: str, target: Status | None = None) -> Transition:
    """The arrow that `verb` takes from here, or WrongState."""
    way = find_transition(verb, job.status, target)
    if way is None:
        raise wrong_state(job, verb)
    return way


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
    """Walk one arrow: the guarded UPDATE and everything that belongs to it. The job's row must be locked."""
    way = require_transition(job, verb, target)
    source = Status(job.status)
    if target != source:
        obeyed = {"cancel_requested": False, "cancel_mode": ""}  # who asked stays in the events
        fields = _CLEARED_ON_LEAVING.get(source, {}) | {"gate": Gate.CLOSED, **obeyed} | fields
    why = reason if target != source else job.status_reason  # a resolved failure still says why it failed
    _update_if_unchanged(job, verb, target, status_reason=why, **fields)
    has_ended = target in TERMINAL and target != source
    if has_ended:
        JobRun.objects.open().filter(job_id=job.pk).update(status=target, finished_at=Now(), error=reason)
        add_to_rollup(db.connection(), [job.pk], rollup_writer_id())
    add_event(job, way.event, actor=actor, target=target, reason=reason, data=data, token=token)
    mark_dirty(job.lane_id)
    if target == Status.QUEUED:
        notifications.notify(notifications.READY)
    if way.event == EventKind.RUNNING:
        signals.send_after_commit(started=[signals.StartedJob(job.pk, job.job_type, job.tenant)])
    elif has_ended:
        signals.send_after_commit(finished=[signals.FinishedJob(job.pk, job.job_type, job.tenant, str(target), reason)])
    return get_job(job.pk)


def request_stop(job: Job, mode: StopMode, *, actor: Actor, reason: str) -> Job:
    """Leave a stop request for the executor. Repeating one changes nothing; a cancel replaces a pause."""
    if job.cancel_requested and job.cancel_mode == mode:
        return job
    way = require_transition(job, mode.lower(), Status.RUNNING)
    _update_if_unchanged(job, way.verb, Status.RUNNING, cancel_requested=True, cancel_mode=mode, status_reason=reason)
    add_event(job, way.event, actor=actor, reason=reason)
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
    """Record what happened to a job; without a target, something that did not change its state."""
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
    """No two transactions that are open at once may share a minute's row, so each thread writes its own."""
    return f"{socket.gethostname()}:{os.getpid()}:{threading.get_ident()}"[:300]


def queued_gate() -> Case:
    """What a job that becomes QUEUED waits behind, judged by the database's clock."""
    return Case(
        When(not_before__gt=Now(), then=Value(Gate.TIME)),
        When(lane__isnull=False, then=Value(Gate.LANE)),
        default=Value(Gate.READY),
    )


def recompute_gate(job: Job) -> None:
    """Judge again what a QUEUED job waits behind, after its own fields have changed."""
    Job.objects.filter(pk=job.pk, status=Status.QUEUED).update(gate=queued_gate(), recheck_at=None)
    mark_dirty(job.lane_id)
    notifications.notify(notifications.READY)


def from_now(seconds: float) -> Any:
    return Now() + timedelta(seconds=seconds)


def wrong_state(job: Job, verb: str) -> Conflict:
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
    """The guard: nothing changes unless the job still is what was seen, held by the same lease."""
    seen = Job.objects.filter(pk=job.pk, status=job.status, lease_token=job.lease_token)
    if not seen.update(status=target, **fields):
        raise wrong_state(job, verb)
