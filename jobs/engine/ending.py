"""The verbs of an executor. Each carries the lease token of its claim; without a match nothing changes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import UUID

from jobs import db, signals
from jobs.actors import SCHEDULER, Actor
from jobs.engine import groups, wakeup
from jobs.engine.journal import writer
from jobs.engine.moves import get, lock, queued_gate, take
from jobs.engine.sql.finish import FinishedRow, Recorder, ResultRow, finish_jobs
from jobs.ids import uuid7
from jobs.models import Job, JobEvent, JobGroup, JobRun
from jobs.outcomes import Completed, Failed, Skipped
from jobs.states import ARROWS, STOPPED_AS, Cause, Status, StopMode


class Verdict(StrEnum):
    DONE = "done"
    REPLAY = "replay"  # this result was recorded before; the reply was lost
    LOST = "lost"  # the lease is another's by now; nothing changed


@dataclass(frozen=True)
class End:
    """The result of one execution. `group_id` as in the claim."""

    job_id: UUID
    token: UUID
    outcome: Completed | Skipped | Failed
    group_id: UUID | None = None


def finish(ends: Sequence[End], *, actor: Actor) -> dict[UUID, Verdict]:
    """Record how executions ended: state, run, event, target, group, retry and rollup of each in one transaction.

    Jobs without a group are recorded together; members one by one, each under the lock of its group.
    """
    verdicts: dict[UUID, Verdict] = {}
    rows = [to_row(end) for end in ends if end.group_id is None]
    if rows:
        with db.atomic_on_sqlite() as connection:
            verdicts |= follow_up(finish_jobs(connection, rows, recorder(actor)), rows)
    for end in ends:
        if end.group_id is not None:
            with db.atomic():
                JobGroup.objects.select_for_update(no_key=True).get(pk=end.group_id)
                verdicts |= _finish_locked([to_row(end)], actor)
    return verdicts


def recorder(actor: Actor) -> Recorder:
    """Return who records, and whose rows of the rollup are added to."""
    return Recorder(str(actor.kind), actor.name, actor.name or writer())


def to_row(end: End, data: dict[str, Any] | None = None) -> ResultRow:
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


def follow_up(finished: Sequence[FinishedRow], rows: Sequence[ResultRow]) -> dict[UUID, Verdict]:
    """Do what follows from recorded results: wake sleepers for retries, advance groups, call receivers."""
    if any(row.retried_by is not None for row in finished):
        wakeup.notify(wakeup.READY)  # a worker that sleeps until the next due time must learn of this one
    for row in finished:
        if row.in_group and row.retried_by is None:
            groups.settle(get(row.id))
    results = {row.id: row for row in rows}
    done = [row for row in finished if row.verdict == Verdict.DONE]
    signals.send_finished(_to_signal(row, results[row.id]) for row in done)
    signals.send_enqueued(
        signals.EnqueuedJob(row.retried_by, row.job_type or "", row.tenant or "", "QUEUED")
        for row in done
        if row.retried_by is not None
    )
    if done:
        signals.send_events_committed()
    return {row.id: Verdict(row.verdict) for row in finished}


def _to_signal(row: FinishedRow, result: ResultRow) -> signals.FinishedJob:
    facts = (row.id, row.job_type or "", row.tenant or "")
    return signals.FinishedJob(*facts, result.status, result.reason, row.retried_by)


def stop(job_id: UUID, token: UUID, *, actor: Actor, artifacts: dict[str, Any] | None = None) -> Verdict:
    """The handler obeyed a stop request: CANCELLED or PAUSED, as it asked."""
    return _leave(job_id, token, "stop", None, actor=actor, reason="", artifacts=artifacts)


def hand_back(
    job_id: UUID, token: UUID, *, actor: Actor, reason: str, artifacts: dict[str, Any] | None = None
) -> Verdict:
    """The executor is going away: the job waits for another one, unless somebody asked it to stop meanwhile."""
    return _leave(job_id, token, "hand_back", Status.QUEUED, actor=actor, reason=reason, artifacts=artifacts)


def expire(
    held: Sequence[Job],
    *,
    cause: Cause,
    error: str,
    tell: Callable[[Job], dict[str, Any]],
    retry_in: Callable[[Job], float | None],
) -> int:
    """End runs whose holder is gone; returns how many. A stop request decides what the job becomes.

    The caller holds the rows' locks (and their groups') and has re-tested under them that the lease is over.
    """
    rows = []
    for job in held:
        data = tell(job)
        if job.cancel_requested:
            _expire_stopped(job, error, data)
            continue
        outcome = Failed(error=error, reason=error, cause=cause, retry_in=retry_in(job))
        assert job.lease_token is not None
        rows.append(to_row(End(job.pk, job.lease_token, outcome), data))
    if rows:
        _finish_locked(rows, SCHEDULER)
    return len(held)


def _expire_stopped(job: Job, error: str, data: dict[str, Any]) -> None:
    wanted = STOPPED_AS[StopMode(job.cancel_mode)]
    hold = _lane_hold(job, wanted)
    why, facts = job.status_reason or error, {**data, "error": error}
    ended = take(job, "expire", wanted, actor=SCHEDULER, reason=why, data=facts, token=job.lease_token, **hold)
    if wanted == Status.CANCELLED:
        groups.settle(ended)


def _finish_locked(rows: list[ResultRow], actor: Actor) -> dict[UUID, Verdict]:
    """Record results in the caller's transaction, which holds the locks of their groups."""
    return follow_up(finish_jobs(db.connection(), rows, recorder(actor)), rows)


def _leave(
    job_id: UUID,
    token: UUID,
    verb: str,
    otherwise: Status | None,
    *,
    actor: Actor,
    reason: str,
    artifacts: dict[str, Any] | None,
) -> Verdict:
    with db.atomic():
        job = lock(job_id)
        if job.lease_token != token:
            return _replay_or_lost(job_id, token, verb, actor)
        target = STOPPED_AS[StopMode(job.cancel_mode)] if job.cancel_requested else otherwise
        if target is None:
            return Verdict.LOST
        if artifacts:
            JobRun.objects.open().filter(job_id=job_id).update(artifacts=artifacts)
        fields = _lane_hold(job, target)
        if target == Status.QUEUED:
            fields["gate"] = queued_gate()
        why = job.status_reason if job.cancel_requested else reason
        ended = take(job, verb, target, actor=actor, reason=why, token=token, **fields)
        if target == Status.CANCELLED:
            groups.settle(ended)
        return Verdict.DONE


def _lane_hold(job: Job, target: Status) -> dict[str, Any]:
    return {"holds_lane": job.lane_id is not None and target != Status.CANCELLED}


def _replay_or_lost(job_id: UUID, token: UUID, verb: str, actor: Actor) -> Verdict:
    """Recovery keeps the token too, so only one's own words count as said before."""
    kinds = {arrow.event for arrow in ARROWS if arrow.verb == verb}
    said = JobEvent.objects.filter(job_id=job_id, token=token, kind__in=kinds)
    own = said.filter(actor_kind=actor.kind, actor_name=actor.name)
    return Verdict.REPLAY if own.exists() else Verdict.LOST
