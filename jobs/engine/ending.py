"""The verbs of an executor. Each carries the lease token of its claim; without a match nothing changes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any
from uuid import UUID

from jobs import db, hooks
from jobs.actors import SCHEDULER, Actor
from jobs.engine import groups, wakeup
from jobs.engine.job_spec import dump
from jobs.engine.journal import writer
from jobs.engine.moves import get, lock, queued_gate, take
from jobs.engine.sql import dialect
from jobs.ids import uuid7
from jobs.models import Job, JobEvent, JobGroup, JobRun
from jobs.outcomes import Completed, Failed, Skipped
from jobs.states import ARROWS, STOPPED_AS, Cause, EventKind, Status, StopMode


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
            verdicts |= _finish_member(end, end.group_id, actor)
    return verdicts


def finish_and(claim: Any, ends: Sequence[End], *, actor: Actor) -> tuple[dict[UUID, Verdict], list[Any]] | None:
    """Finish jobs that have neither lane nor group, and claim, in one statement; None if a hook must be called."""
    rows, connection = [_row(end) for end in ends], db.connection()
    clauses = hooks.for_ends(*_kinds(rows))
    if clauses is None:
        return None
    answers, claimed = dialect(connection).exchange(connection, rows, *_signed(actor), clauses, claim)
    verdicts = _settled(answers)
    if undone := [row for row in rows if row[0] not in verdicts]:  # the guard refused, or it is lost or a replay
        verdicts |= _record_told(undone, actor)
    return verdicts, claimed


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
        rows.append(_row(End(job.pk, job.lease_token, outcome), data))
    if rows:
        _record(rows, SCHEDULER)
    return len(held)


def _expire_stopped(job: Job, error: str, data: dict[str, Any]) -> None:
    wanted = STOPPED_AS[StopMode(job.cancel_mode)]
    hold = _lane_hold(job, wanted)
    why, facts = job.status_reason or error, {**data, "error": error}
    ended = take(job, "expire", wanted, actor=SCHEDULER, reason=why, data=facts, token=job.lease_token, **hold)
    if wanted == Status.CANCELLED:
        groups.settle(ended)


def _finish(ends: Sequence[End], actor: Actor) -> dict[UUID, Verdict]:
    rows, connection = [_row(end) for end in ends], db.connection()
    clauses = None if db.is_sqlite() else hooks.for_ends(*_kinds(rows))
    if clauses is not None:
        answers = dialect(connection).finish_jobs(connection, rows, *_signed(actor), clauses)
        if answers:  # an end is always answered, unless the guard refused
            return _settled(answers)
    return _record_told(rows, actor)


def _record_told(rows: list[tuple[Any, ...]], actor: Actor) -> dict[UUID, Verdict]:
    with db.atomic():
        return _record(rows, actor)


def _finish_member(end: End, group_id: UUID, actor: Actor) -> dict[UUID, Verdict]:
    with db.atomic():
        JobGroup.objects.select_for_update(no_key=True).get(pk=group_id)
        return _record([_row(end)], actor)


def _record(rows: list[tuple[Any, ...]], actor: Actor) -> dict[UUID, Verdict]:
    """In a transaction, with the hooks told. Groups of members must be locked by the caller."""
    connection = db.connection()
    answers = dialect(connection).finish_jobs(connection, rows, *_signed(actor))
    if hooks.anyone_listens():
        by_id = {row[0]: row for row in rows}
        hooks.tell([move for a in answers if a[1] == Verdict.DONE for move in _moves(by_id[a[0]], a)])
    return _settled(answers)


def _signed(actor: Actor) -> tuple[tuple[str, str], str]:
    """Who says it, and in whose row of the minute it counts."""
    return (str(actor.kind), actor.name), actor.name or writer()


def _settled(answers: list[Any]) -> dict[UUID, Verdict]:
    """What follows from ends that are written."""
    if any(answer[3] is not None for answer in answers):
        wakeup.notify(wakeup.READY)  # whoever sleeps until the next job's time must learn of this one's
    for job_id, verdict, _, retried_by, in_group in answers:
        if in_group and verdict == Verdict.DONE and retried_by is None:
            groups.settle(get(job_id))
    return {answer[0]: Verdict(answer[1]) for answer in answers}


def _row(end: End, data: dict[str, Any] | None = None) -> tuple[Any, ...]:
    """See `sql.postgres_moves.finish_jobs` for the order."""
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


def _kinds(rows: list[tuple[Any, ...]]) -> tuple[list[EventKind], list[EventKind]]:
    """What these ends are told as, and their retries."""
    births = [EventKind.SUBMITTED] if any(row[9] is not None for row in rows) else []
    return sorted({EventKind(row[2]) for row in rows}), births


def _moves(row: tuple[Any, ...], answer: tuple[Any, ...]) -> Iterator[hooks.Moved]:
    """The end of a job, and the birth of its retry if it has one."""
    job_id, status, reason = row[0], Status(row[2]), row[3]
    _, _, tenant, retry, _ = answer
    yield hooks.Moved(job_id, EventKind(status), Status.RUNNING, status, tenant, reason, retry)
    if retry is not None:
        yield hooks.Moved(retry, EventKind.SUBMITTED, None, Status.QUEUED, tenant, f"retry of {job_id}")


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
