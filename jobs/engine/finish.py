"""The verbs of an executor. Each carries the lease token of its claim; without a match nothing changes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import UUID

from jobs import db, notifications, signals
from jobs.actors import SCHEDULER, Actor
from jobs.engine import groups
from jobs.engine.sql.finish import FinishContext, FinishedRow, ResultRow, finish_jobs
from jobs.engine.transitions import apply_transition, get_job, lock_job, queued_gate, rollup_writer_id
from jobs.ids import uuid7
from jobs.models import Job, JobEvent, JobGroup, JobRun
from jobs.outcomes import Completed, Failed, Skipped
from jobs.states import STATUS_AFTER_STOP, Cause, EventKind, Status, StopMode

STOP_REQUEST_EVENTS = {StopMode.CANCEL: EventKind.CANCEL_REQUESTED, StopMode.PAUSE: EventKind.PAUSE_REQUESTED}
STOPPED_EVENTS = (EventKind.CANCELLED, EventKind.PAUSED)


class FinishStatus(StrEnum):
    DONE = "done"
    REPLAY = "replay"  # this result was recorded before; the reply was lost
    LOST = "lost"  # the lease is another's by now; nothing changed


@dataclass(frozen=True)
class JobResult:
    """The result of one execution. `group_id` as in the claim."""

    job_id: UUID
    token: UUID
    outcome: Completed | Skipped | Failed
    group_id: UUID | None = None


def finish(ends: Sequence[JobResult], *, actor: Actor) -> dict[UUID, FinishStatus]:
    """Record how executions ended: state, run, event, target, group, retry and rollup of each in one transaction.

    Jobs without a group are recorded together; members one by one, each under the lock of its group.
    """
    verdicts: dict[UUID, FinishStatus] = {}
    rows = [to_result_row(end) for end in ends if end.group_id is None]
    if rows:
        with db.atomic_on_sqlite() as connection:
            verdicts |= handle_finished(finish_jobs(connection, rows, build_finish_context(actor)), rows)
    for end in ends:
        if end.group_id is not None:
            with db.atomic():
                JobGroup.objects.select_for_update(no_key=True).get(pk=end.group_id)
                verdicts |= _finish_locked([to_result_row(end)], actor)
    return verdicts


def build_finish_context(actor: Actor) -> FinishContext:
    """Return who records, and whose rows of the rollup are added to."""
    return FinishContext(str(actor.kind), actor.name, actor.name or rollup_writer_id())


def to_result_row(end: JobResult, data: dict[str, Any] | None = None) -> ResultRow:
    """Return the row that the finish statement takes. `data` is added to the event of a failure."""
    match end.outcome:
        case Completed(artifacts, exit_code):
            return ResultRow(end.job_id, end.token, "COMPLETED", "", "", exit_code, artifacts)
        case Skipped(reason, artifacts):
            return ResultRow(end.job_id, end.token, "SKIPPED", reason, "", 0, artifacts)
        case Failed(error, reason, cause, exit_code, artifacts, retry_in):
            event = {**(data or {}), "cause": str(cause)}
            retry_id = None if retry_in is None else uuid7()
            result = (end.job_id, end.token, "FAILED", reason, error, exit_code, artifacts)
            return ResultRow(*result, event, retry_in, retry_id)


def handle_finished(finished: Sequence[FinishedRow], rows: Sequence[ResultRow]) -> dict[UUID, FinishStatus]:
    """Do what follows from recorded results: wake sleepers for retries, advance groups, call receivers."""
    if any(row.retried_by is not None for row in finished):
        notifications.notify(notifications.READY)  # a worker that sleeps until the next due time must learn of this one
    for row in finished:
        if row.in_group and row.retried_by is None:
            groups.on_member_finished(get_job(row.id))
    results = {row.id: row for row in rows}
    done = [row for row in finished if row.finish_status == FinishStatus.DONE]
    if done:
        signals.send_after_commit(
            finished=(_to_signal(row, results[row.id]) for row in done),
            enqueued=(
                signals.EnqueuedJob(row.retried_by, row.job_type or "", row.tenant or "", "QUEUED")
                for row in done
                if row.retried_by is not None
            ),
        )
    return {row.id: FinishStatus(row.finish_status) for row in finished}


def _to_signal(row: FinishedRow, result: ResultRow) -> signals.FinishedJob:
    facts = (row.id, row.job_type or "", row.tenant or "")
    return signals.FinishedJob(*facts, result.status, result.reason, row.retried_by)


def stop(job_id: UUID, token: UUID, *, actor: Actor, artifacts: dict[str, Any] | None = None) -> FinishStatus:
    """Record that a job obeyed its stop request: CANCELLED or PAUSED, as it asked. LOST if there is none."""
    with db.atomic():
        job = lock_job(job_id)
        if job.lease_token != token:
            return _check_replay(job_id, token, STOPPED_EVENTS, actor)
        if not job.cancel_requested:
            return FinishStatus.LOST
        _stop(job, actor, artifacts)
        return FinishStatus.DONE


def hand_back(
    job_id: UUID, token: UUID, *, actor: Actor, reason: str, artifacts: dict[str, Any] | None = None
) -> FinishStatus:
    """Put the job of a worker that goes away back into the queue; one that was asked to stop is stopped."""
    with db.atomic():
        job = lock_job(job_id)
        if job.lease_token != token:
            return _check_replay(job_id, token, {EventKind.HANDED_BACK, *STOPPED_EVENTS}, actor)
        if job.cancel_requested:
            _stop(job, actor, artifacts)
        else:
            _save_artifacts(job, artifacts)
            fields = {**_lane_hold(job, Status.QUEUED), "gate": queued_gate()}
            apply_transition(job, "hand_back", Status.QUEUED, actor=actor, reason=reason, token=token, **fields)
        return FinishStatus.DONE


def expire(
    held: Sequence[Job],
    *,
    cause: Cause,
    error: str,
    describe: Callable[[Job], dict[str, Any]],
    retry_in: Callable[[Job], float | None],
) -> int:
    """End runs whose holder is gone; returns how many. A stop request decides what the job becomes.

    The caller holds the rows' locks (and their groups') and has re-tested under them that the lease is over.
    """
    rows = []
    for job in held:
        data = describe(job)
        if job.cancel_requested:
            reason, data = job.status_reason or error, {**data, "error": error}
            _apply_stop_request(job, "expire", actor=SCHEDULER, reason=reason, data=data)
            continue
        outcome = Failed(error=error, reason=error, cause=cause, retry_in=retry_in(job))
        assert job.lease_token is not None
        rows.append(to_result_row(JobResult(job.pk, job.lease_token, outcome), data))
    if rows:
        _finish_locked(rows, SCHEDULER)
    return len(held)


def _finish_locked(rows: list[ResultRow], actor: Actor) -> dict[UUID, FinishStatus]:
    """Record results in the caller's transaction, which holds the locks of their groups."""
    return handle_finished(finish_jobs(db.connection(), rows, build_finish_context(actor)), rows)


def _stop(job: Job, actor: Actor, artifacts: dict[str, Any] | None) -> None:
    _save_artifacts(job, artifacts)
    _apply_stop_request(job, "stop", actor=actor, reason=job.status_reason, data={})


def _apply_stop_request(job: Job, verb: str, *, actor: Actor, reason: str, data: dict[str, Any]) -> None:
    """Make the job what its stop request asked for. The event names who asked."""
    mode = StopMode(job.cancel_mode)
    target = STATUS_AFTER_STOP[mode]
    data = data | _find_requester(job, mode)
    hold = _lane_hold(job, target)
    ended = apply_transition(
        job, verb, target, actor=actor, reason=reason, data=data or None, token=job.lease_token, **hold
    )
    if target == Status.CANCELLED:
        groups.on_member_finished(ended)


def _find_requester(job: Job, mode: StopMode) -> dict[str, Any]:
    requests = JobEvent.objects.filter(job_id=job.pk, kind=STOP_REQUEST_EVENTS[mode]).order_by("-pk")
    request = requests.values("actor_kind", "actor_name").first()
    return {} if request is None else {"requested_by": {"kind": request["actor_kind"], "name": request["actor_name"]}}


def _save_artifacts(job: Job, artifacts: dict[str, Any] | None) -> None:
    if artifacts:
        JobRun.objects.open().filter(job_id=job.pk).update(artifacts=artifacts)


def _lane_hold(job: Job, target: Status) -> dict[str, Any]:
    return {"holds_lane": job.lane_id is not None and target != Status.CANCELLED}


def _check_replay(job_id: UUID, token: UUID, kinds: Collection[EventKind], actor: Actor) -> FinishStatus:
    """Recovery keeps the token too, so only one's own words count as said before."""
    said = JobEvent.objects.filter(job_id=job_id, token=token, kind__in=kinds)
    own = said.filter(actor_kind=actor.kind, actor_name=actor.name)
    return FinishStatus.REPLAY if own.exists() else FinishStatus.LOST
