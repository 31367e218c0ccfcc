"""The verbs of a remote worker: start what was offered, keep the lease, say how it ended.

The same lease contract as a local worker's: the token of the start is the WHERE of every write. A call that is
repeated because its reply got lost is answered as it was the first time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any
from uuid import UUID, uuid4

from django.db import IntegrityError
from django.db.models import F
from django.db.models.functions import Greatest, Now

from jobs import actors, clock, db
from jobs.actors import Actor
from jobs.conf import conf
from jobs.engine import finish, lifecycle
from jobs.engine.finish import STOPPED_KINDS, End, Verdict
from jobs.engine.maintenance import recovery
from jobs.engine.process_identity import beat_fields
from jobs.engine.remote import starts
from jobs.engine.remote.starts import Holder, Start
from jobs.engine.transitions import from_now, get, jobs, lock, require
from jobs.errors import LeaseLost, NotAsked, SlotBusy
from jobs.models import Job, JobEvent, JobLog, JobRun
from jobs.models.expressions import SqlLiteral
from jobs.outcomes import Completed, Failed, Skipped, Stopped
from jobs.states import TERMINAL, Cause, EventKind, Status, StopMode
from jobs.validation.sanitize import sanitize_json

OVER_BUDGET = "token limit exceeded"

Line = tuple[str, str, datetime | None]  # level, message, when
Word = Completed | Skipped | Failed | Stopped
ENDS: dict[type[Word], Sequence[EventKind]] = {  # the events that a word of a worker leaves
    Completed: (EventKind.COMPLETED,),
    Skipped: (EventKind.SKIPPED,),
    Failed: (EventKind.FAILED,),
    Stopped: STOPPED_KINDS,
}


@dataclass(frozen=True)
class Beat:
    """What came with a heartbeat; None is not said."""

    progress: float | None = None
    message: str | None = None
    tokens_used: int | None = None
    checkpoint: Any = None
    lines: Sequence[Line] = ()


def start(job_id: UUID, holder: Holder, *, pid: int | None = None, host: str | None = None) -> Job:
    """Take what was reserved. One's own start, repeated, is the same lease."""
    try:
        with db.atomic():
            job = lock(job_id)
            if job.status == Status.RUNNING and job.lease_owner == holder.owner:
                return job
            require(job, "start")
            _require_free(holder)
            return lifecycle.start(
                job_id,
                actor=actor_of(holder),
                owner=holder.owner,
                token=uuid4(),
                lease_sec=conf.LEASE_SEC,
                data=starts.event_data(holder, pid, host),
            )
    except IntegrityError:
        _require_free(holder)  # it got a job since we looked; the database is the judge
        raise


def beat(start: Start, reported: Beat) -> Job:
    """Renew the lease, and keep what was reported with it."""
    with db.atomic():
        mine = jobs().filter(pk=start.job_id, lease_token=start.lease_id)
        fields: dict[str, Any] = {"lease_expires_at": from_now(conf.LEASE_SEC), "heartbeat_at": Now(), **beat_fields()}
        if reported.progress is not None:
            fields["progress"] = reported.progress
        if reported.message is not None:
            fields["progress_message"] = reported.message
        if reported.tokens_used is not None:  # an older beat that comes late takes nothing back
            fields["tokens_used"] = Greatest(F("tokens_used"), reported.tokens_used)
        if reported.checkpoint is not None:
            fields["checkpoint"] = reported.checkpoint
        if not mine.update(**fields):
            raise _lost()
        job = get(start.job_id)
        _write_lines(job, reported.lines)
    if starts.is_overdue(job, start, clock.now()):
        recovery.end_overdue([job])
        raise _lost()
    return job


def complete(start: Start, word: Word, *, wanted: StopMode | None = None) -> None:
    """Say how it ended. `wanted` is the stop request that a `Stopped` answers."""
    with db.atomic():
        job = lock(start.job_id)
        if job.lease_token != start.lease_id:
            return _require_said(start, ENDS[type(word)])
        if is_over_budget(job):
            word = Failed(error=OVER_BUDGET, reason=OVER_BUDGET, cause=Cause.TOKEN_LIMIT)
        earlier = JobRun.objects.filter(job_id=job.pk).values_list("artifacts", flat=True).first()  # of the same run
        actor, artifacts = actor_of(start.holder), sanitize_json({**(earlier or {}), **word.artifacts})
        if isinstance(word, Stopped):
            if not job.cancel_requested or job.cancel_mode != wanted:
                asked = f"to {job.cancel_mode.lower()}, not " if job.cancel_requested else ""
                raise NotAsked(f"Job {job.pk} was asked {asked or 'not '}to {str(wanted).lower()}.")
            finish.stop(job.pk, start.lease_id, actor=actor, artifacts=artifacts)
            return None
        if isinstance(word, Failed) and word.cause == Cause.ERROR:
            word = replace(word, retry_in=recovery.retry_in(job, Cause.ERROR))
        end = End(job.pk, start.lease_id, replace(word, artifacts=artifacts), job.group_id)
        verdict = finish.finish([end], actor=actor)[job.pk]
        assert verdict == Verdict.DONE, verdict  # we hold the row, and have seen its token
    return None


def hand_back(start: Start, *, reason: str) -> None:
    """The worker goes away: the job waits for another one, unless it was asked to stop."""
    with db.atomic():
        job = lock(start.job_id)
        if job.lease_token != start.lease_id:
            return _require_said(start, (EventKind.HANDED_BACK, *STOPPED_KINDS))
        if is_over_budget(job):
            return complete(start, Stopped())
        finish.hand_back(job.pk, start.lease_id, actor=actor_of(start.holder), reason=reason)
    return None


def is_over_budget(job: Job) -> bool:
    return job.token_limit is not None and job.tokens_used > job.token_limit


def actor_of(holder: Holder) -> Actor:
    return actors.worker(holder.worker)


def _require_free(holder: Holder) -> None:
    if jobs().filter(status=SqlLiteral(str(Status.RUNNING)), lease_owner=holder.owner).exists():
        raise SlotBusy(f"Slot {holder.slot} of worker {holder.worker} has another job.")


def _lost() -> LeaseLost:
    return LeaseLost("This lease is over; nothing was changed.")


def _require_said(start: Start, kinds: Sequence[EventKind]) -> None:
    """Whether the lease ended by this very word. Past its budget a job fails whatever its worker said."""
    ends = {*TERMINAL, EventKind.PAUSED, EventKind.HANDED_BACK}
    said = JobEvent.objects.filter(job_id=start.job_id, token=start.lease_id, kind__in=sorted(ends))
    actor = actor_of(start.holder)
    for event in said.filter(actor_kind=actor.kind, actor_name=actor.name):
        if event.kind in kinds or (event.data or {}).get("cause") == Cause.TOKEN_LIMIT:
            return
    raise _lost()


def _write_lines(job: Job, lines: Sequence[Line]) -> None:
    """As many as the job may still have; the row is ours until the commit, so nobody else counts meanwhile."""
    if not lines:
        return
    rows = JobLog.objects.all()
    written = rows.filter(job_id=job.pk).count()
    room = max(conf.LOG_LINES_PER_JOB - written, 0)
    kept = [JobLog(job_id=job.pk, level=level, message=message, at=at or Now()) for level, message, at in lines[:room]]
    if len(lines) > room and written <= conf.LOG_LINES_PER_JOB:
        last = f"only the first {conf.LOG_LINES_PER_JOB} lines are kept"
        kept.append(JobLog(job_id=job.pk, level="WARNING", message=last, at=Now()))
    rows.bulk_create(kept)
