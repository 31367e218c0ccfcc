"""The actions of a remote worker: start an offered job, renew its lease, record its result, hand it back.

The same lease rules as for a local worker: the token of the start is the WHERE of every write. A call that is
repeated because its reply was lost gets the same answer as the first one.
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
from jobs.engine import finish, groups, lifecycle
from jobs.engine.executors.run import ERROR_LENGTH, LINE_LENGTH, MESSAGE_LENGTH
from jobs.engine.finish import STOPPED_EVENTS, FinishStatus, JobResult
from jobs.engine.maintenance import deadlines, recovery
from jobs.engine.remote import starts
from jobs.engine.remote.starts import RemoteSlot, RemoteStart
from jobs.engine.transitions import get_job, lock_job, log_after_commit, require_transition, wrong_state
from jobs.errors import LeaseLost, NotAsked, SlotBusy
from jobs.models import Job, JobEvent, JobLog, JobRun
from jobs.models.expressions import SqlLiteral, from_now
from jobs.outcomes import Completed, Failed, Skipped, Snoozed, Stopped
from jobs.process_identity import beat_fields
from jobs.redaction import clean_text, find_secrets
from jobs.states import TERMINAL, TOKEN_LIMIT_REASON, Cause, EventKind, Status, StopMode
from jobs.validation.fields import REASON_LENGTH
from jobs.validation.sanitize import sanitize_json

LogLine = tuple[str, str, datetime | None]  # level, message, time
RemoteOutcome = Completed | Skipped | Failed | Snoozed | Stopped
EVENT_KINDS: dict[type[RemoteOutcome], Sequence[EventKind]] = {  # the events that a reported outcome may lead to
    Completed: (EventKind.COMPLETED,),
    Skipped: (EventKind.SKIPPED,),
    Failed: (EventKind.FAILED,),
    Snoozed: (EventKind.SNOOZED, EventKind.FAILED, *STOPPED_EVENTS),
    Stopped: STOPPED_EVENTS,
}


@dataclass(frozen=True)
class HeartbeatReport:
    """The contents of a heartbeat; None: not reported."""

    progress: float | None = None
    message: str | None = None
    tokens_used: int | None = None
    checkpoint: Any = None
    lines: Sequence[LogLine] = ()


def start_job(job_id: UUID, holder: RemoteSlot, *, pid: int | None = None, host: str | None = None) -> Job:
    """Start an offered job in this slot. A repeated start of the same slot returns the same lease."""
    try:
        with db.atomic():
            job = lock_job(job_id)
            if job.status == Status.RUNNING and job.lease_owner == holder.owner:
                return job
            require_transition(job, "start")
            _require_free_slot(holder)
            if not deadlines.is_late(job):
                return lifecycle.start(
                    job_id,
                    actor=_build_actor(holder),
                    owner=holder.owner,
                    token=uuid4(),
                    lease_sec=conf.LEASE_SEC,
                    data=starts.build_event_data(holder, pid, host),
                )
            deadlines.skip_late_offer(job)
    except IntegrityError:
        _require_free_slot(holder)  # the slot got a job since the first look: the constraint decides
        raise
    raise wrong_state(get_job(job_id), "start")  # after the commit, which keeps that it is skipped


def renew_job_lease(start: RemoteStart, report: HeartbeatReport) -> Job:
    """Renew the lease and write the report. Raise LeaseLost if the lease has ended or the job is overdue."""
    with db.atomic():
        row = Job.objects.filter(pk=start.job_id, lease_token=start.lease_id)
        if report.message or report.lines:
            report = _scrub_report(report, row.values_list("params", flat=True).first())
        fields: dict[str, Any] = {"lease_expires_at": from_now(conf.LEASE_SEC), "heartbeat_at": Now(), **beat_fields()}
        if report.progress is not None:
            fields["progress"] = report.progress
        if report.message is not None:
            fields["progress_message"] = report.message
        if report.tokens_used is not None:  # an older heartbeat that arrives late does not lower the count
            fields["tokens_used"] = Greatest(F("tokens_used"), report.tokens_used)
        if report.checkpoint is not None:
            fields["checkpoint"] = report.checkpoint
        if not row.update(**fields):
            raise _lease_lost()
        job = get_job(start.job_id)
        _write_log_lines(job, report.lines)
    if starts.is_overdue(job, start, clock.now()):
        recovery.end_overdue_jobs([job])
        raise _lease_lost()
    return job


def complete_job(start: RemoteStart, outcome: RemoteOutcome, *, stop_mode: StopMode | None = None) -> None:
    """Record the result of a job. `stop_mode` is the stop request that a `Stopped` obeyed.

    `retry_in` of a failure is the delay that its worker names; the retry policy decides whether there is a retry.
    """
    with db.atomic():
        job = lock_job(start.job_id)
        if job.lease_token != start.lease_id:
            return _require_recorded(start, EVENT_KINDS[type(outcome)])
        outcome = _scrub_outcome(outcome, job.params)
        if is_over_token_limit(job):
            outcome = Failed(error=TOKEN_LIMIT_REASON, reason=TOKEN_LIMIT_REASON, cause=Cause.TOKEN_LIMIT)
        earlier = JobRun.objects.filter(job_id=job.pk).values_list("artifacts", flat=True).first()  # of the same run
        actor, artifacts = _build_actor(start.holder), sanitize_json({**(earlier or {}), **outcome.artifacts})
        if isinstance(outcome, Stopped):
            if not job.cancel_requested or job.cancel_mode != stop_mode:
                requested = f"a {job.cancel_mode.lower()}" if job.cancel_requested else "no stop"
                raise NotAsked(f"Job {job.pk} has {requested} request; it cannot stop for a {str(stop_mode).lower()}.")
            finish.stop(job.pk, start.lease_id, actor=actor, artifacts=artifacts)
            groups.run_actions_after_commit(job.group_id)
            return None
        if isinstance(outcome, Failed) and outcome.cause == Cause.ERROR:
            outcome = replace(outcome, retry_in=recovery.decide_retry_delay(job, Cause.ERROR, outcome.retry_in))
        if isinstance(outcome, Snoozed):
            outcome = replace(outcome, artifacts=artifacts, retry_in=recovery.decide_retry_delay(job, Cause.ERROR))
            finish.snooze(job.pk, start.lease_id, outcome, actor=actor)
            groups.run_actions_after_commit(job.group_id)
            return None
        result = JobResult(job.pk, start.lease_id, replace(outcome, artifacts=artifacts), job.group_id)
        status = finish.finish([result], actor=actor)[job.pk]
        assert status == FinishStatus.DONE, status  # the row is locked, and its token was compared
        reason = "" if isinstance(outcome, Completed) else outcome.reason
        log_after_commit([(job.pk, job.job_type)], EVENT_KINDS[type(outcome)][0], actor=actor, reason=reason)
        groups.run_actions_after_commit(job.group_id)
    return None


def hand_back_job(start: RemoteStart, *, reason: str) -> None:
    """Put the job of a worker that goes away back into the queue; a job with a stop request is stopped."""
    with db.atomic():
        job = lock_job(start.job_id)
        if job.lease_token != start.lease_id:
            return _require_recorded(start, (EventKind.HANDED_BACK, *STOPPED_EVENTS))
        if is_over_token_limit(job):
            return complete_job(start, Stopped())
        finish.hand_back(job.pk, start.lease_id, actor=_build_actor(start.holder), reason=reason)
        groups.run_actions_after_commit(job.group_id)
    return None


def is_over_token_limit(job: Job) -> bool:
    """Return whether the job has used more tokens than it may."""
    return job.token_limit is not None and job.tokens_used > job.token_limit


def _scrub_report(report: HeartbeatReport, params: Any) -> HeartbeatReport:
    """Mask the secrets of the job's params in the texts of a heartbeat, and cut the texts."""
    secrets = find_secrets(params)
    lines = [(level, clean_text(message, secrets, LINE_LENGTH), at) for level, message, at in report.lines]
    message = None if report.message is None else clean_text(report.message, secrets, MESSAGE_LENGTH)
    return replace(report, message=message, lines=lines)


def _scrub_outcome(outcome: RemoteOutcome, params: Any) -> RemoteOutcome:
    """Mask the secrets of the job's params in the texts of a result, and cut the texts."""
    match outcome:
        case Skipped(reason) | Snoozed(reason=reason):
            return replace(outcome, reason=clean_text(reason, find_secrets(params), REASON_LENGTH))
        case Failed(error, reason):
            secrets = find_secrets(params)
            texts = clean_text(error, secrets, ERROR_LENGTH), clean_text(reason, secrets, MESSAGE_LENGTH)
            return replace(outcome, error=texts[0], reason=texts[1])
    return outcome


def _build_actor(holder: RemoteSlot) -> Actor:
    if not holder.token_name:  # the event of its start has none
        return actors.make_worker_actor(holder.worker)
    return actors.make_remote_worker_actor(holder.token_name, holder.worker)


def _require_free_slot(holder: RemoteSlot) -> None:
    if Job.objects.filter(status=SqlLiteral(str(Status.RUNNING)), lease_owner=holder.owner).exists():
        raise SlotBusy(f"Slot {holder.slot} of worker {holder.worker} has another job.")


def _lease_lost() -> LeaseLost:
    return LeaseLost("This lease is over; nothing was changed.")


def _require_recorded(start: RemoteStart, kinds: Sequence[EventKind]) -> None:
    """Raise LeaseLost unless this lease ended with one of these events, recorded for the same worker.

    A job over its token limit fails whatever its worker reports: that counts as recorded, too.
    """
    end_kinds = {*TERMINAL, EventKind.PAUSED, EventKind.HANDED_BACK, EventKind.SNOOZED}
    ends = JobEvent.objects.filter(job_id=start.job_id, token=start.lease_id, kind__in=sorted(end_kinds))
    actor = _build_actor(start.holder)
    for event in ends.filter(actor_kind=actor.kind, actor_name=actor.name):
        if event.kind in kinds or (event.data or {}).get("cause") == Cause.TOKEN_LIMIT:
            return
    raise _lease_lost()


def _write_log_lines(job: Job, lines: Sequence[LogLine]) -> None:
    """Write as many lines as the job may still have. The caller holds the row's lock, so the count stays true."""
    if not lines:
        return
    logs = JobLog.objects.all()
    written = logs.filter(job_id=job.pk).count()
    room = max(conf.LOG_LINES_PER_JOB - written, 0)
    rows = [JobLog(job_id=job.pk, level=level, message=message, at=at or Now()) for level, message, at in lines[:room]]
    if len(lines) > room and written <= conf.LOG_LINES_PER_JOB:
        message = f"only the first {conf.LOG_LINES_PER_JOB} lines are kept"
        rows.append(JobLog(job_id=job.pk, level="WARNING", message=message, at=Now()))
    logs.bulk_create(rows)
