"""Actions of operators and of the scheduler: one function each, each in one transaction.

An action on many members of a group goes on after its transaction, in batches (`groups.run_actions`).

The actions of workers, which need a lease token, are in `finish`; the claim is in `claim`.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import F
from django.db.models.functions import Coalesce, Now

from jobs import clock, db, notifications
from jobs.actors import Actor
from jobs.engine import groups
from jobs.engine.insert import insert_job
from jobs.engine.job_spec import NO_DEADLINE, build_retry_spec
from jobs.engine.promoter import mark_dirty
from jobs.engine.transitions import (
    add_event,
    apply_transition,
    get_job,
    lock_job,
    queued_gate,
    recompute_gate,
    request_stop,
    require_allowed,
    wrong_state,
)
from jobs.errors import NotFound, UniqueKeyTaken, WrongState
from jobs.models import Gate, GroupVerb, Job, JobGroup, JobRun
from jobs.models.expressions import from_now
from jobs.process_identity import beat_fields
from jobs.redaction import redact
from jobs.states import (
    ADMITTED_REASON,
    ALWAYS_EDITABLE_FIELDS,
    DEFAULT_PAUSE_REASON,
    TERMINAL,
    EventKind,
    Status,
    StopMode,
)
from jobs.time_text import format_time
from jobs.validation.sanitize import sanitize_text


def release(job_id: UUID, *, actor: Actor, reason: str = "") -> Job:
    """Release a job that was put on hold."""
    with db.atomic():
        job = lock_job(job_id)
        require_allowed(job, "release")
        return apply_transition(
            job, "release", Status.QUEUED, actor=actor, reason=reason, hold=False, gate=queued_gate()
        )


def cancel(job_id: UUID, *, actor: Actor, reason: str = "") -> Job:
    """Cancel a waiting job now; request a running one to stop."""
    with db.atomic():
        job = lock_job(job_id)
        require_allowed(job, "cancel")
        if job.status == Status.RUNNING:
            return request_stop(job, StopMode.CANCEL, actor=actor, reason=reason)
        job = apply_transition(job, "cancel", Status.CANCELLED, actor=actor, reason=reason, holds_lane=False)
        groups.on_member_finished(job)
        groups.run_actions_after_commit(job.group_id)
        return job


def pause(job_id: UUID, *, actor: Actor, reason: str = "") -> Job:
    """Pause a waiting job now; request a running one to stop. Its target is blocked until the job is resumed."""
    reason = reason or DEFAULT_PAUSE_REASON
    with db.atomic():
        job = lock_job(job_id)
        require_allowed(job, "pause")
        if job.status == Status.RUNNING:
            return request_stop(job, StopMode.PAUSE, actor=actor, reason=reason)
        return apply_transition(
            job, "pause", Status.PAUSED, actor=actor, reason=reason, holds_lane=job.lane_id is not None
        )


def resume(job_id: UUID, *, actor: Actor, reason: str = "") -> Job:
    """Queue a paused job again; or create the retry of a failed one, at the head of its target."""
    with db.atomic():
        job = lock_job(job_id)
        require_allowed(job, "resume")
        if job.status == Status.PAUSED:
            fields: dict[str, Any] = {"gate": queued_gate(), "holds_lane": _holds_lane(job), "recheck_at": None}
            return apply_transition(job, "resume", Status.QUEUED, actor=actor, reason=reason, **fields)
        return _create_retry(job, actor=actor, reason=reason, position=_head_position(job))


def retry(job_id: UUID, *, actor: Actor, reason: str = "", fresh: bool = False) -> tuple[Job, bool]:
    """Retry the latest attempt of the job's retry chain. Return the retry, and whether it was created now.

    `job_id` names any job of the chain. A latest attempt that waits for its backoff is started at once instead. A
    deadline that has passed is dropped.
    """
    with db.atomic():
        job = latest = lock_job(job_id)
        while (newer := Job.objects.filter(retry_of_id=latest.pk).first()) is not None:
            latest = lock_job(newer.pk)
        require_allowed(job, "retry")
        if latest.status in TERMINAL:
            return _create_retry(latest, actor=actor, reason=reason, fresh=fresh), True
        changes: dict[str, Any] = {"not_before": None}
        if latest.deadline_at is not None and latest.deadline_at <= clock.now():
            changes |= NO_DEADLINE
        Job.objects.filter(pk=latest.pk, status=Status.QUEUED).update(**changes)
        data = describe_changes(latest, changes)
        add_event(latest, EventKind.UPDATED, actor=actor, reason=reason or "retried at once", data=data)
        recompute_gate(latest)
        return get_job(latest.pk), False


def resolve(job_id: UUID, *, actor: Actor, reason: str = "") -> Job:
    """Accept a failure: the job stays FAILED and frees its target."""
    with db.atomic():
        job = lock_job(job_id)
        require_allowed(job, "resolve")
        fields: dict[str, Any] = {"holds_lane": False, "resolved_at": Now()}
        return apply_transition(job, "resolve", Status.FAILED, actor=actor, reason=reason, **fields)


def skip(job_id: UUID, *, actor: Actor, reason: str) -> Job:
    """Skip a job that never started: too late, overlapping, or after a failed predecessor."""
    with db.atomic():
        job = lock_job(job_id)
        if job.status == Status.RUNNING:
            raise wrong_state(job, "skip")
        job = apply_transition(job, "skip", Status.SKIPPED, actor=actor, reason=reason, holds_lane=False)
        groups.on_member_finished(job)
        return job


def offer(job: Job, *, actor: Actor, reserve_sec: float) -> Job:
    """Reserve a job for a remote worker. The caller holds the row's lock, for which it did not wait."""
    if job.gate != Gate.READY:
        raise wrong_state(job, "offer")
    fields = {"reserved_until": from_now(reserve_sec), "holds_lane": job.lane_id is not None, "recheck_at": None}
    dispatched_at = Coalesce("dispatched_at", Now())  # never rewritten: SQLite would format the same time differently
    event: dict[str, Any] = {"actor": actor, "reason": ADMITTED_REASON}
    return apply_transition(job, "offer", Status.DISPATCHING, **event, dispatched_at=dispatched_at, **fields)


def start(
    job_id: UUID, *, actor: Actor, owner: str, token: UUID, lease_sec: float, data: dict[str, Any] | None = None
) -> Job:
    """Start a job that was offered to a remote worker. The event records the lease token, and `data` of the worker."""
    data = {**(data or {}), "lease_id": str(token)}
    with db.atomic():
        job = lock_job(job_id)
        lease = {"lease_owner": owner, "lease_token": token, "lease_expires_at": from_now(lease_sec)}
        fields = {"fence": F("fence") + 1, **lease, "heartbeat_at": Now(), **beat_fields()}
        job = apply_transition(job, "start", Status.RUNNING, actor=actor, data=data, token=token, **fields)
        JobRun.objects.get_or_create(job_id=job.pk, defaults={"worker": owner})
        if job.group_id is not None:
            groups.mark_started([job.group_id])
        return job


def withdraw(
    job_id: UUID, *, actor: Actor, reason: str = "not started in time", retry_after_sec: float | None = None
) -> Job:
    """Expire an offer; the job can be offered again after so many seconds, or at once."""
    with db.atomic():
        job = lock_job(job_id)
        fields = (
            {"gate": queued_gate()}
            if retry_after_sec is None
            else {"gate": Gate.TIME, "recheck_at": from_now(retry_after_sec)}
        )
        return apply_transition(job, "withdraw", Status.QUEUED, actor=actor, reason=reason, **fields)


def update(job_id: UUID, fields: dict[str, Any], *, actor: Actor, reason: str = "") -> Job:
    """Edit a waiting job. After its first dispatch, params and target cannot change; tags can change at any time."""
    with db.atomic():
        job = lock_job(job_id)
        changed = {name: value for name, value in fields.items() if getattr(job, name) != value}
        if not changed:
            return job
        names = list(dict.fromkeys(_FIELD_OF.get(name, name) for name in changed))
        require_allowed(job, "update", names)
        if "lane_id" in changed:  # the job no longer holds the old target; it holds the new one only if it is paused
            changed["holds_lane"] = job.status == Status.PAUSED and changed["lane_id"] is not None
            mark_dirty(job.lane_id, changed["lane_id"])
        Job.objects.filter(pk=job.pk).update(**changed)
        if "deadline_at" in changed:
            notifications.notify(notifications.DEADLINE)
        add_event(job, EventKind.UPDATED, actor=actor, reason=reason, data=describe_changes(job, changed))
        if job.status == Status.QUEUED and set(names) - ALWAYS_EDITABLE_FIELDS:
            recompute_gate(get_job(job.pk))
        return get_job(job.pk)


def describe_changes(job: Job, changed: dict[str, Any]) -> dict[str, Any]:
    """Return the data of an event: the names of the changed fields, their old and their new values.

    Secrets are masked and long values cut. Of params, only those that differ are included.
    """
    new = {name: value for name, value in changed.items() if name not in _DERIVED_COLUMNS}
    old = {name: getattr(job, name) for name in new}
    if "base_priority" in changed:  # the priority before aging raised it
        old["priority"], new["priority"] = job.base_priority, changed["base_priority"]
    if "params" in new:
        old["params"], new["params"] = _diff(old["params"], new["params"]), _diff(new["params"], old["params"])
    return {"fields": sorted(new), "old": _shorten_values(old), "new": _shorten_values(new)}


def _diff(params: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in params.items() if name not in others or others[name] != value}


def _shorten_values(values: dict[str, Any]) -> dict[str, Any]:
    """Return masked values; one that is longer than CHANGE_LENGTH as JSON becomes the beginning of its text."""
    shown: dict[str, Any] = {}
    for name, value in values.items():
        masked = redact(format_time(value) if isinstance(value, datetime) else value)
        text = json.dumps(masked, ensure_ascii=False)
        shown[name] = masked if len(text) <= CHANGE_LENGTH else sanitize_text(text, CHANGE_LENGTH)
    return shown


EDITABLE = {
    "priority",
    "not_before",
    "deadline_at",
    "time_sensitive",
    "expected_duration_sec",
    "max_runtime_sec",
    "tags",
    "params",
    "target",
}

_FIELD_OF = {"base_priority": "priority", "lane_id": "target"}  # columns that are derived from a field
_DERIVED_COLUMNS = frozenset({*_FIELD_OF, "holds_lane"})
CHANGE_LENGTH = 2000  # characters of one value in the event of a change


def cancel_group(group_id: UUID, *, actor: Actor, reason: str = "") -> JobGroup:
    """Cancel waiting members now, request running ones to stop. The group is CANCELLED after its last member."""
    with db.atomic():
        group = _lock_group(group_id)
        if group.is_terminal:
            raise WrongState(
                f"Group {group_id} is {group.status} and cannot be cancelled; allowed: retry.",
                status=group.status,
                allowed=["retry"],
            )
        group.cancel_requested = True
        group.save(using=db.alias(), update_fields=["cancel_requested"])
        groups.begin_action(group, GroupVerb.CANCEL, actor=actor, reason=reason or "group cancelled")
        groups.run_actions_after_commit(group.pk)
    return JobGroup.objects.get(pk=group.pk)


def retry_group(group_id: UUID, *, actor: Actor, reason: str = "") -> JobGroup:
    """Retry every unsuccessful member, in order."""
    with db.atomic():
        group = _lock_group(group_id)
        if not groups.unsuccessful_members(group).exists():
            raise WrongState(
                f"Group {group_id} has no failed or cancelled member to retry.",
                status=group.status,
                allowed=[] if group.is_terminal else ["cancel"],
            )
        groups.begin_action(group, GroupVerb.RETRY, actor=actor, reason=reason or "group retried")
        groups.run_actions_after_commit(group.pk)
    return JobGroup.objects.get(pk=group.pk)


def _lock_group(group_id: UUID) -> JobGroup:
    group = JobGroup.objects.select_for_update(no_key=True).filter(pk=group_id).first()
    if group is None:
        raise NotFound(f"There is no group {group_id}.")
    return group


def _create_retry(job: Job, *, actor: Actor, reason: str, fresh: bool = False, position: int | None = None) -> Job:
    """Insert the next attempt after `job`, which is locked, terminal, and the latest of its retry chain."""
    groups.reopen_group(job)
    status = Status.PENDING if groups.is_blocked_by_sibling(job) else Status.QUEUED
    spec = build_retry_spec(job, status=status, position=position, checkpoint=None if fresh else job.checkpoint)
    if job.holds_lane:
        Job.objects.filter(pk=job.pk).update(holds_lane=False)
    add_event(job, EventKind.RETRY_CREATED, actor=actor, reason=reason, data={"retried_by": str(spec.id)})
    if insert_job(spec, actor=actor, reason=reason or f"retry of {job.pk}") is None:  # its unique key was taken since
        require_allowed(job, "retry")
        raise UniqueKeyTaken(f"The unique key of job {job.pk} is in use; try again.")
    groups.recreate_later_members(job, actor=actor)
    groups.run_actions_after_commit(job.group_id)
    return get_job(spec.id)


def _holds_lane(job: Job) -> bool:
    """Return whether the job holds its target: from the first dispatch on; a retry, as its unresolved failure did."""
    if job.lane_id is None:
        return False
    if job.dispatched_at is not None or job.retry_of_id is None:
        return job.dispatched_at is not None
    unresolved = Job.objects.filter(pk=job.retry_of_id, status=Status.FAILED, resolved_at__isnull=True)
    return unresolved.filter(lane_id=job.lane_id).exists()


def _head_position(job: Job) -> int:
    """Return the position before all waiting jobs of the same priority and target."""
    if job.lane_id is None:
        return job.position
    waiting = Job.objects.in_lanes().filter(lane_id=job.lane_id)
    first = waiting.filter(priority=job.base_priority).order_by("position").values_list("position", flat=True).first()
    return job.position if first is None else min(job.position, first - 1024)
