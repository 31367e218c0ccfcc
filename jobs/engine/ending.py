"""The verbs of an executor. Each carries the lease token of its claim; without a match nothing changes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import UUID

from django.db.models.functions import Now

from jobs import db, hooks
from jobs.actors import SCHEDULER, Actor
from jobs.engine import groups, journal
from jobs.engine.moves import get, jobs, lock, queued_gate, take
from jobs.engine.sql import dialect
from jobs.engine.submit import dump
from jobs.ids import uuid7
from jobs.models import Job, JobEvent, JobGroup, JobRun
from jobs.outcomes import Completed, Failed, Skipped
from jobs.states import STOPPED_AS, Cause, EventKind, Status, StopMode


class Verdict(StrEnum):
    DONE = "done"
    REPLAY = "replay"  # this very end was recorded before; its reply got lost
    LOST = "lost"  # the lease is no longer ours; nothing changed


@dataclass(frozen=True)
class End:
    """One executor's word on one job. `group_id` as the claim told it."""

    job_id: UUID
    token: UUID
    outcome: Completed | Skipped | Failed
    group_id: UUID | None = None


def finish(ends: Sequence[End], *, actor: Actor) -> dict[UUID, Verdict]:
    """Record how executions ended: state, run, event, lane, group, retry and rollup of each in one transaction."""
    verdicts: dict[UUID, Verdict] = {}
    alone = [end for end in ends if end.group_id is None]
    if alone:
        verdicts |= _finish(alone, actor)
    for end in ends:
        if end.group_id is not None:
            verdicts |= _finish_member(end, actor)
    return verdicts


def stop(job_id: UUID, token: UUID, *, actor: Actor, artifacts: dict[str, Any] | None = None) -> Verdict:
    """The handler obeyed a stop request: CANCELLED or PAUSED, as it asked."""
    return _leave(job_id, token, "stop", None, actor=actor, reason="", artifacts=artifacts)


def hand_back(
    job_id: UUID, token: UUID, *, actor: Actor, reason: str, artifacts: dict[str, Any] | None = None
) -> Verdict:
    """The executor is going away: the job waits for another one, unless somebody asked it to stop meanwhile."""
    return _leave(job_id, token, "hand_back", Status.QUEUED, actor=actor, reason=reason, artifacts=artifacts)


def expire(
    job: Job, *, cause: Cause, error: str, retry_in: float | None, data: dict[str, Any], actor: Actor = SCHEDULER
) -> Verdict:
    """End a run whose holder is gone. The caller holds the row's lock and has re-tested that it may."""
    token = job.lease_token
    assert token is not None
    wanted = STOPPED_AS[StopMode(job.cancel_mode)] if job.cancel_requested else None
    if wanted is not None:
        ended = take(
            job, "expire", wanted, actor=actor, reason=error, data=data, token=token, **_lane_hold(job, wanted)
        )
        if wanted == Status.CANCELLED:
            groups.settle(ended)
        return Verdict.DONE
    outcome = Failed(error=error, reason=error, cause=cause, retry_in=retry_in)
    return _record([_row(End(job.pk, token, outcome), data)], actor)[job.pk]


def _finish(ends: Sequence[End], actor: Actor) -> dict[UUID, Verdict]:
    if hooks.anyone_listens() or db.connection().vendor == "sqlite":
        with db.atomic():
            return _record([_row(end) for end in ends], actor)
    return _record([_row(end) for end in ends], actor)


def _finish_member(end: End, actor: Actor) -> dict[UUID, Verdict]:
    with db.atomic():
        JobGroup.objects.using(db.alias()).select_for_update(no_key=True).get(pk=end.group_id)
        return _record([_row(end)], actor)


def _record(rows: list[tuple[Any, ...]], actor: Actor) -> dict[UUID, Verdict]:
    """Groups of members must be locked by the caller."""
    connection = db.connection()
    answers = dialect(connection).finish_jobs(connection, rows, (str(actor.kind), actor.name))
    by_id = {row[0]: row for row in rows}
    if hooks.anyone_listens():
        hooks.tell([_moved(by_id[a[0]], a) for a in answers if a[1] == Verdict.DONE])
    for job_id, verdict, _, retried_by, in_group in answers:
        if in_group and verdict == Verdict.DONE and retried_by is None:
            groups.settle(get(job_id))
    return {answer[0]: Verdict(answer[1]) for answer in answers}


def _row(end: End, data: dict[str, Any] | None = None) -> tuple[Any, ...]:
    """See `sql.postgres.finish_jobs` for the order."""
    match end.outcome:
        case Completed(artifacts, exit_code):
            return (end.job_id, end.token, "COMPLETED", "", "", exit_code, dump(artifacts), None, None, None)
        case Skipped(reason, artifacts):
            return (end.job_id, end.token, "SKIPPED", reason, "", 0, dump(artifacts), None, None, None)
        case Failed(error, reason, cause, exit_code, artifacts, retry_in):
            kept = dump({**(data or {}), "cause": str(cause)})
            retry_id = None if retry_in is None else uuid7()
            art = dump(artifacts)
            return (end.job_id, end.token, "FAILED", reason, error, exit_code, art, kept, retry_in, retry_id)


def _moved(row: tuple[Any, ...], answer: tuple[Any, ...]) -> hooks.Moved:
    status = Status(row[2])
    return hooks.Moved(row[0], EventKind(row[2]), Status.RUNNING, status, answer[2], row[3], answer[3])


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
            return _replay_or_lost(job_id, token)
        target = STOPPED_AS[StopMode(job.cancel_mode)] if job.cancel_requested else otherwise
        if target is None:
            return Verdict.LOST
        if artifacts:
            JobRun.objects.using(db.alias()).open().filter(job_id=job_id).update(artifacts=artifacts)
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


def _replay_or_lost(job_id: UUID, token: UUID) -> Verdict:
    same = JobEvent.objects.using(db.alias()).filter(job_id=job_id, token=token)
    return Verdict.REPLAY if same.exists() else Verdict.LOST
