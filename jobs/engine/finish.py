"""Record results: the actions of a worker. Each needs the lease token of its claim; another token changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import UUID

from django.db.models import F

from jobs import db, notifications, signals
from jobs.actors import SCHEDULER, Actor
from jobs.conf import conf
from jobs.engine import groups
from jobs.engine.sql.finish import FinishContext, FinishedRow, ResultRow, finish_jobs
from jobs.engine.transitions import apply_transition, get_job, lock_job, queued_gate, rollup_writer_id
from jobs.ids import uuid7
from jobs.models import Gate, Job, JobEvent, JobGroup, JobRun
from jobs.models.expressions import from_now
from jobs.outcomes import Completed, Failed, Skipped, Snoozed
from jobs.states import SNOOZE_LIMIT_REASON, STATUS_AFTER_STOP, Cause, EventKind, Status, StopMode

STOP_REQUEST_EVENTS = {StopMode.CANCEL: EventKind.CANCEL_REQUESTED, StopMode.PAUSE: EventKind.PAUSE_REQUESTED}
STOPPED_EVENTS = (EventKind.CANCELLED, EventKind.PAUSED)


class FinishStatus(StrEnum):
    """What the database did with a result."""

    DONE = "done"
    REPLAY = "replay"  # this result was recorded before; the reply was lost
    LOST = "lost"  # the lease has ended; nothing changed


@dataclass(frozen=True)
class JobResult:
    """The result of one execution. `group_id` as in the claim."""

    job_id: UUID
    token: UUID
    outcome: Completed | Skipped | Failed
    group_id: UUID | None = None


def finish(results: Sequence[JobResult], *, actor: Actor) -> dict[UUID, FinishStatus]:
    """Record results: status, run, event, target, group, retry and rollup of each job in one transaction.

    Jobs without a group are recorded together; members one by one, each under the lock of its group.
    """
    statuses: dict[UUID, FinishStatus] = {}
    rows = [to_result_row(result) for result in results if result.group_id is None]
    if rows:
        with db.atomic_on_sqlite() as connection:
            statuses |= handle_finished(finish_jobs(connection, rows, build_finish_context(actor)), rows)
    for result in results:
        if result.group_id is not None:
            with db.atomic():
                JobGroup.objects.select_for_update(no_key=True).get(pk=result.group_id)
                statuses |= _finish_locked([to_result_row(result)], actor)
    return statuses


def build_finish_context(actor: Actor) -> FinishContext:
    """Return the actor of the events and the writer of the rollup rows, as the finish statement takes them."""
    return FinishContext(str(actor.kind), actor.name, actor.name or rollup_writer_id())


def to_result_row(result: JobResult, data: dict[str, Any] | None = None) -> ResultRow:
    """Return the row that the finish statement takes. `data` is added to the event of a failure."""
    match result.outcome:
        case Completed(artifacts, exit_code):
            return ResultRow(result.job_id, result.token, "COMPLETED", "", "", exit_code, artifacts)
        case Skipped(reason, artifacts):
            return ResultRow(result.job_id, result.token, "SKIPPED", reason, "", 0, artifacts)
        case Failed(error, reason, cause, exit_code, artifacts, retry_in):
            event_data = {**(data or {}), "cause": str(cause)}
            retry_id = None if retry_in is None else uuid7()
            values = (result.job_id, result.token, "FAILED", reason, error, exit_code, artifacts)
            return ResultRow(*values, event_data, retry_in, retry_id)


def handle_finished(finished: Sequence[FinishedRow], rows: Sequence[ResultRow]) -> dict[UUID, FinishStatus]:
    """Notify workers of retries, advance groups and send signals, after results were recorded."""
    if any(row.retried_by is not None for row in finished):
        notifications.notify(notifications.READY)  # a worker that waits for the next due time has a new one
        notifications.notify(notifications.DEADLINE)  # a retry keeps the deadline of its job
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
    job = (row.id, row.job_type or "", row.tenant or "")
    return signals.FinishedJob(*job, result.status, result.reason, row.retried_by)


def stop(job_id: UUID, token: UUID, *, actor: Actor, artifacts: dict[str, Any] | None = None) -> FinishStatus:
    """Record that a job obeyed its stop request: CANCELLED or PAUSED, as requested. Return LOST if there is none."""
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
    """Return a job to the queue because its worker shuts down; a job with a stop request is stopped instead."""
    with db.atomic():
        job = lock_job(job_id)
        if job.lease_token != token:
            return _check_replay(job_id, token, {EventKind.HANDED_BACK, *STOPPED_EVENTS}, actor)
        if job.cancel_requested:
            _stop(job, actor, artifacts)
        else:
            _save_artifacts(job, artifacts)
            fields: dict[str, Any] = {"holds_lane": job.lane_id is not None, "gate": queued_gate()}
            apply_transition(job, "hand_back", Status.QUEUED, actor=actor, reason=reason, token=token, **fields)
        return FinishStatus.DONE


def snooze(job_id: UUID, token: UUID, outcome: Snoozed, *, actor: Actor) -> FinishStatus:
    """Return a job to the queue for the time that its handler names; a job with a stop request is stopped instead.

    One that was snoozed SNOOZE_MAX times fails.
    """
    with db.atomic():
        job = lock_job(job_id)
        if job.lease_token != token:
            return _check_replay(job_id, token, {EventKind.SNOOZED, EventKind.FAILED, *STOPPED_EVENTS}, actor)
        if job.cancel_requested:
            _stop(job, actor, outcome.artifacts)
        elif job.snooze_count >= conf.SNOOZE_MAX:
            texts = (SNOOZE_LIMIT_REASON, SNOOZE_LIMIT_REASON)  # of the run and of the job
            failed = Failed(*texts, artifacts=outcome.artifacts, retry_in=outcome.retry_in)
            _finish_locked([to_result_row(JobResult(job_id, token, failed))], actor)
        else:
            _save_artifacts(job, outcome.artifacts)
            fields: dict[str, Any] = {
                "holds_lane": job.lane_id is not None,
                "gate": Gate.TIME,
                "not_before": from_now(outcome.delay_sec),
                "recheck_at": None,
                "snooze_count": F("snooze_count") + 1,
            }
            event: dict[str, Any] = {"reason": outcome.reason, "data": {"delay_sec": outcome.delay_sec}}
            apply_transition(job, "snooze", Status.QUEUED, actor=actor, token=token, **event, **fields)
        return FinishStatus.DONE


def expire(
    jobs: Sequence[Job],
    *,
    cause: Cause,
    error: str,
    describe: Callable[[Job], dict[str, Any]],
    retry_in: Callable[[Job], float | None],
) -> int:
    """Fail jobs whose lease has expired; return how many. A job with a stop request is stopped instead.

    The caller holds the locks of the rows and of their groups, and has re-tested under them that the lease is over.
    `describe` returns the data of a job's event, `retry_in` the seconds until its retry.
    """
    rows = []
    for job in jobs:
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
    return len(jobs)


def _finish_locked(rows: list[ResultRow], actor: Actor) -> dict[UUID, FinishStatus]:
    """Record results in the caller's transaction, which holds the locks of their groups."""
    return handle_finished(finish_jobs(db.connection(), rows, build_finish_context(actor)), rows)


def _stop(job: Job, actor: Actor, artifacts: dict[str, Any] | None) -> None:
    _save_artifacts(job, artifacts)
    _apply_stop_request(job, "stop", actor=actor, reason=job.status_reason, data={})


def _apply_stop_request(job: Job, verb: str, *, actor: Actor, reason: str, data: dict[str, Any]) -> None:
    """Cancel or pause the job, as its stop request says. The event names the requester."""
    mode = StopMode(job.cancel_mode)
    target = STATUS_AFTER_STOP[mode]
    data = data | _find_requester(job, mode)
    fields: dict[str, Any] = {"holds_lane": job.lane_id is not None and target != Status.CANCELLED}
    event: dict[str, Any] = {"actor": actor, "reason": reason, "data": data or None, "token": job.lease_token}
    stopped = apply_transition(job, verb, target, **event, **fields)
    if target == Status.CANCELLED:
        groups.on_member_finished(stopped)


def _find_requester(job: Job, mode: StopMode) -> dict[str, Any]:
    requests = JobEvent.objects.filter(job_id=job.pk, kind=STOP_REQUEST_EVENTS[mode]).order_by("-pk")
    request = requests.values("actor_kind", "actor_name").first()
    return {} if request is None else {"requested_by": {"kind": request["actor_kind"], "name": request["actor_name"]}}


def _save_artifacts(job: Job, artifacts: dict[str, Any] | None) -> None:
    if artifacts:
        JobRun.objects.open().filter(job_id=job.pk).update(artifacts=artifacts)


def _check_replay(job_id: UUID, token: UUID, kinds: Collection[EventKind], actor: Actor) -> FinishStatus:
    """Return REPLAY if this actor recorded the result before; recovery records the same token as another actor."""
    recorded = JobEvent.objects.filter(job_id=job_id, token=token, kind__in=kinds)
    own = recorded.filter(actor_kind=actor.kind, actor_name=actor.name)
    return FinishStatus.REPLAY if own.exists() else FinishStatus.LOST
