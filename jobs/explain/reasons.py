"""The reasons why a job is not running, from its facts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.utils.text import Truncator
from django.utils.translation import gettext as _

from jobs.explain.facts import Facts, can_run, to_limit
from jobs.models import ConcurrencyLimit, Gate, Job, JobEvent
from jobs.models.job import STATUS_IN_SENTENCE
from jobs.models.limit import LimitScope
from jobs.models.run import describe_actor
from jobs.payload_visibility import get_public_reason
from jobs.rates import Buckets
from jobs.states import ACTIVE, DEFAULT_PAUSE_REASON, EventKind, Status
from jobs.time_text import format_clock, format_time

CAUSE_LENGTH = 500  # of the reason that an operator or a handler gave, within a sentence
NEEDS_OPERATOR = {"held", "paused", "target_paused", "target_blocked", "scope_paused", "no_worker"}


@dataclass(frozen=True)
class Reason:
    code: str
    message: str
    blocking_job_id: UUID | None = None
    since: datetime | None = None
    by: str | None = None
    until: datetime | None = None

    def document(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"code": self.code, "message": self.message}
        if self.blocking_job_id is not None:
            fields["blocking_job_id"] = str(self.blocking_job_id)
        fields |= {name: format_time(at) for name in ("since", "until") if (at := getattr(self, name)) is not None}
        return fields | ({"by": self.by} if self.by else {})


def find_reasons(facts: Facts) -> list[Reason]:
    """Return all reasons but the queue, in the order of `order_reasons`."""
    return order_reasons(_list_reasons(facts))


def order_reasons(reasons: Iterable[Reason]) -> list[Reason]:
    """Put those that need an operator first; the others pass by themselves."""
    return sorted(reasons, key=lambda reason: reason.code not in NEEDS_OPERATOR)


def _list_reasons(facts: Facts) -> list[Reason]:
    match Status(facts.job.status):
        case Status.PENDING:
            return [*_pending_reasons(facts)]
        case Status.PAUSED:
            event = facts.events.get(EventKind.PAUSED)
            job = facts.job
            actor = _find_actor(event)
            is_bare = job.status_reason == DEFAULT_PAUSE_REASON and job.dispatched_at is None  # it had not started
            since = None if event is None else event.at
            message = _("paused") + _describe_cause(
                _describe_initiator(event), since, "" if is_bare else job.status_reason
            )
            return [Reason("paused", message, since=since, by=actor or None)]
        case Status.DISPATCHING:
            until = facts.job.reserved_until
            message = _("reserved for a remote worker until %s") % (format_clock(until) if until else "")
            return [Reason("dispatching", message, until=until)]
        case Status.QUEUED:
            return [*time_reasons(facts), *_target_reasons(facts), *limit_reasons(facts), *worker_reasons(facts)]
    return []


def _pending_reasons(facts: Facts) -> Iterator[Reason]:
    if (other := facts.predecessor) is not None:
        place = (other.group_index or 0) + 1  # counted from 1, as on the group's page
        values = {"job": other.pk, "status": STATUS_IN_SENTENCE[Status(other.status)], "place": place}
        message = _("waiting for job %(job)s, place %(place)s of its group, which is %(status)s") % values
        yield Reason("predecessor", message, blocking_job_id=other.pk)
    elif not facts.job.hold:
        yield Reason("predecessor", _("waiting for the end of an action on its group"))
    if facts.job.hold:
        event = facts.events.get(EventKind.HELD)
        since, actor = None if event is None else event.at, _find_actor(event)
        message = (
            _("on hold") if event is None else _("put on hold") + _describe_cause(_describe_initiator(event), since)
        )
        yield Reason("held", message, since=since, by=actor or None)


def time_reasons(facts: Facts) -> Iterator[Reason]:
    job = facts.job
    if facts.is_denied:
        event = facts.events.get(EventKind.DENIED)
        cause = job.status_reason or _("the machine has no capacity for it now")
        until = job.recheck_at if job.recheck_at is not None and job.recheck_at > facts.now else None
        since = None if event is None else event.at
        yield Reason("admission_denied", _("admission was denied: %s") % cause, since=since, until=until)
    elif job.recheck_at is not None and job.recheck_at > facts.now:
        message = _("no remote worker started it in time; next offer at %s") % format_clock(job.recheck_at)
        yield Reason("backoff", message, until=job.recheck_at)
    if job.not_before is not None and job.not_before > facts.now:
        start = format_clock(job.not_before)
        if job.snooze_count and job.gate == Gate.TIME:
            yield Reason("snoozed", _("snoozed by its handler until %s") % start, until=job.not_before)
        elif job.retry_of_id is not None and job.gate == Gate.TIME:
            message = _("retry scheduled for %s") % start
            yield Reason("backoff", message, blocking_job_id=job.retry_of_id, until=job.not_before)
        else:
            yield Reason("not_before", _("scheduled for %s") % start, until=job.not_before)


def _target_reasons(facts: Facts) -> Iterator[Reason]:
    if facts.job.lane_id is None:
        return
    key, target = facts.job.target, facts.target
    if target is not None and target.paused:
        message = _("target %s paused") % key + _describe_cause(target.paused_by, target.paused_at, target.reason)
        yield Reason("target_paused", message, since=target.paused_at, by=target.paused_by or None)
    other = next((job for job in facts.lane if job.pk not in (facts.job.pk, facts.job.retry_of_id)), None)
    is_first = bool(facts.lane) and facts.lane[0].pk == facts.job.pk
    if other is not None and not is_first:
        yield _occupied_target(str(key), other)


def _occupied_target(key: str, other: Job) -> Reason:
    values = {"target": key, "job": other.pk, "status": STATUS_IN_SENTENCE[Status(other.status)]}
    if other.blocks_target:
        event = other.events.filter(kind=other.status).order_by("-id").first()
        actor, since = _find_actor(event), None if event is None else event.at
        if other.status == Status.FAILED:
            message = _("target %(target)s is blocked: job %(job)s failed") % values
            message += _describe_cause("", since, get_public_reason(other))
        else:
            message = _("target %(target)s is blocked: job %(job)s was paused") % values
            message += _describe_cause(_describe_initiator(event), since, get_public_reason(other))
        return Reason("target_blocked", message, other.pk, since=since, by=actor or None)
    if other.status in ACTIVE:
        return Reason("target_busy", _("target %(target)s is busy: job %(job)s is %(status)s") % values, other.pk)
    return Reason("target_busy", _("queued behind job %(job)s of target %(target)s") % values, other.pk)


def limit_reasons(facts: Facts) -> Iterator[Reason]:
    for row in facts.limits:
        limit = to_limit(row, facts.now)
        in_use = facts.queue.in_use.of(limit)
        if row.paused:
            is_named = facts.viewer_tenant is None or row.scope == LimitScope.TENANT  # not one that tenants share
            actor, reason = (row.paused_by, row.reason) if is_named else ("", "")
            message = _("%s paused") % _name_scope(row) + _describe_cause(actor, row.paused_at, reason)
            yield Reason("scope_paused", message, since=row.paused_at, by=actor or None)
        elif row.max is not None and in_use >= row.max:
            values = {"scope": _name_scope(row), "in_use": in_use, "max": row.max}
            if row.scope == LimitScope.GLOBAL:
                text = _("global limit reached (%(in_use)d of %(max)d running)")
            else:
                text = _("limit of %(scope)s reached (%(in_use)d of %(max)d running)")
            yield Reason("limit", text % values)
        elif (until := limit.buckets.next_start_at(facts.now)) is not None:
            yield _build_rate_reason(row, limit.buckets, until, facts.now)
    for lease in facts.reservations[:1]:
        if facts.is_visible(lease.tenant):
            message = _("a direct call of %s has reserved the next slot") % lease.job_type
            yield Reason("reservation", message, since=lease.requested_at, by=lease.owner)
        else:
            yield Reason("reservation", _("a direct call has reserved the next slot"), since=lease.requested_at)


def worker_reasons(facts: Facts) -> Iterator[Reason]:
    if not facts.job.remote:
        slots = facts.slots
        if not facts.workers:
            yield Reason("no_worker", _describe_missing_worker(facts))
        elif not slots:
            yield Reason("no_worker", _("all slots of the workers that handle it are stuck"))
        elif not facts.free_slots:
            yield Reason("no_slot", _("no free slot: %(busy)d of %(slots)d busy") % {"busy": slots, "slots": slots})
    if not facts.has_recent_poller:
        addon = _(" of addon %s") % facts.job.addon_id if facts.job.addon_id else ""
        yield Reason("no_worker", _("no remote worker%s has polled recently") % addon)


def _describe_missing_worker(facts: Facts) -> str:
    """Distinguish draining workers, which an operator resumes, from missing ones."""
    if any(can_run(worker, facts.flow) for worker in facts.queue.draining):
        return _("all workers that handle %s are draining") % facts.job.job_type
    if not facts.queue.workers and not facts.queue.draining:
        return _("no worker is running")
    return _("no running worker handles %s") % facts.job.job_type


def _name_scope(row: ConcurrencyLimit) -> str:
    match LimitScope(row.scope):
        case LimitScope.GLOBAL:
            return _("all jobs")
        case LimitScope.JOB_TYPE:
            return _("job type %s") % row.key
        case LimitScope.RESOURCE:
            return _("resource %s") % row.key
        case LimitScope.TENANT:
            return _("tenant %s") % row.key
        case LimitScope.ADDON:
            return _("addon %s") % row.key


def _build_rate_reason(row: ConcurrencyLimit, buckets: Buckets, until: datetime, now: datetime) -> Reason:
    """Name the rate that prevents a start: that of the tokens if it takes longer."""
    is_tokens = buckets.tokens is not None and now + timedelta(seconds=buckets.tokens.seconds_until(0.0)) >= until
    values = {"scope": _name_scope(row), "start": format_clock(until, with_seconds=True)}
    if is_tokens:
        message = _("token rate of %(scope)s: %(rate)s; next start %(start)s") % {**values, "rate": row.token_rate}
    else:
        message = _("rate limit of %(scope)s: %(rate)s; next start %(start)s") % {**values, "rate": row.rate}
    return Reason("rate_limit", message, until=until)


def build_queue_reason(ahead: int, limit: int) -> Reason:
    """Build the reason of a job with others ahead; `limit` is where their count stops."""
    if ahead >= limit:
        return Reason("queue", _("more than %d jobs are ahead of it in the queue") % limit)
    return Reason("queue", _("number %d in the queue") % (ahead + 1))


def _find_actor(event: JobEvent | None) -> str:
    """Return the name of the initiator of an event; empty without an event."""
    return "" if event is None else str(event.initiator)


def _describe_initiator(event: JobEvent | None) -> str:
    """Same, with the kind of the actor."""
    return "" if event is None else describe_actor(event.initiator.kind, event.initiator.name)


def _describe_cause(actor: str, at: datetime | None, reason: str = "") -> str:
    parts = [_("by %s") % actor] if actor else []
    parts += [_("at %s") % format_clock(at)] if at is not None else []
    text = " " + " ".join(parts) if parts else ""
    return f"{text}: {Truncator(reason[: CAUSE_LENGTH * 2]).chars(CAUSE_LENGTH)}" if reason else text
