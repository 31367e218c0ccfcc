"""The reasons why a job is not running, from its facts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.utils import formats, timezone
from django.utils.translation import gettext as _

from jobs.explain.facts import Facts, to_limit
from jobs.models import ConcurrencyLimit, Gate, Job, JobEvent
from jobs.models.limit import LimitScope
from jobs.payload_visibility import get_public_reason
from jobs.policies.concurrency import count_free
from jobs.serializers import format_time
from jobs.states import ACTIVE, DEFAULT_PAUSE_REASON, EventKind, Status

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
    """Return all reasons, in the order in which they must be resolved; none if the job can start."""
    match Status(facts.job.status):
        case Status.PENDING:
            return [*_pending_reasons(facts)]
        case Status.PAUSED:
            event = facts.events.get(EventKind.PAUSED)
            job = facts.job
            is_bare = job.status_reason == DEFAULT_PAUSE_REASON and job.dispatched_at is None  # it had not started
            suffix = f": {job.status_reason}" if job.status_reason and not is_bare else ""
            return [Reason("paused", _("it is paused") + _describe_event(event) + suffix, **_since_and_by(event))]
        case Status.DISPATCHING:
            until = facts.job.reserved_until
            message = _("it is reserved for a remote worker until %s") % _format_time(until)
            return [Reason("dispatching", message, until=until)]
        case Status.QUEUED:
            return [*time_reasons(facts), *_target_reasons(facts), *limit_reasons(facts), *worker_reasons(facts)]
    return []


def _pending_reasons(facts: Facts) -> Iterator[Reason]:
    if (other := facts.predecessor) is not None:
        values = {"job": other.pk, "status": other.status, "place": other.group_index}
        message = _("job %(job)s in place %(place)s of its group is %(status)s") % values
        yield Reason("predecessor", message, blocking_job_id=other.pk)
    if facts.job.hold:
        event = facts.events.get(EventKind.HELD)
        yield Reason("held", _("it is on hold") + _describe_event(event), **_since_and_by(event))


def time_reasons(facts: Facts) -> Iterator[Reason]:
    job = facts.job
    if job.recheck_at is not None and job.recheck_at > facts.now:
        event = facts.events.get(EventKind.DENIED)
        cause = event.reason if event is not None and event.reason else _("the machine has no capacity for it now")
        since = None if event is None else event.at
        yield Reason("admission_denied", _("admission was denied: %s") % cause, since=since, until=job.recheck_at)
    if job.not_before is not None and job.not_before > facts.now:
        start = _format_time(job.not_before)
        if job.retry_of_id is not None and job.gate == Gate.TIME:
            message = _("it is retried at %s") % start
            yield Reason("backoff", message, blocking_job_id=job.retry_of_id, until=job.not_before)
        else:
            yield Reason("not_before", _("scheduled for %s") % start, until=job.not_before)


def _target_reasons(facts: Facts) -> Iterator[Reason]:
    if facts.job.lane_id is None:
        return
    key, target = facts.job.target, facts.target
    if target is not None and target.paused:
        message = _("target %s is paused") % key + _describe_actor(target.paused_by, target.paused_at, target.reason)
        yield Reason("target_paused", message, since=target.paused_at, by=target.paused_by or None)
    other = next((job for job in facts.lane if job.pk not in (facts.job.pk, facts.job.retry_of_id)), None)
    is_first = bool(facts.lane) and facts.lane[0].pk == facts.job.pk
    if other is not None and not is_first:
        yield _occupied_target(str(key), other)


def _occupied_target(key: str, other: Job) -> Reason:
    values = {"target": key, "job": other.pk, "status": other.status}
    if other.blocks_target:
        message = _("target %(target)s is blocked: job %(job)s is %(status)s") % values
        event = other.events.filter(kind=other.status).order_by("-id").first()
        if event is None:
            return Reason("target_blocked", message, other.pk)
        message += _describe_actor(event.actor_name or event.actor_kind, event.at, get_public_reason(other))
        return Reason("target_blocked", message, other.pk, since=event.at)
    if other.status in ACTIVE:
        return Reason("target_busy", _("target %(target)s is busy: job %(job)s is %(status)s") % values, other.pk)
    return Reason("target_busy", _("target %(target)s: job %(job)s goes first") % values, other.pk)


def limit_reasons(facts: Facts) -> Iterator[Reason]:
    for row in facts.limits:
        if row.paused:
            is_named = facts.viewer_tenant is None or row.scope == LimitScope.TENANT  # not one that tenants share
            actor, reason = (row.paused_by, row.reason) if is_named else ("", "")
            message = _("%s is paused") % _describe_limit(row) + _describe_actor(actor, row.paused_at, reason)
            yield Reason("scope_paused", message, since=row.paused_at, by=actor or None)
        elif count_free(to_limit(row), facts.in_use) == 0:
            values = {"scope": _describe_limit(row), "in_use": facts.in_use.of(to_limit(row)), "max": row.max}
            yield Reason("limit", _("%(scope)s is reached (%(in_use)d of %(max)d running)") % values)
    for lease in facts.reservations[:1]:
        if facts.is_visible(lease.tenant):
            message = _("a direct call of %s has reserved the next slot") % lease.job_type
            yield Reason("reservation", message, since=lease.requested_at, by=lease.owner)
        else:
            yield Reason("reservation", _("a direct call has reserved the next slot"), since=lease.requested_at)


def worker_reasons(facts: Facts) -> Iterator[Reason]:
    if not facts.workers and not facts.job.remote:
        yield Reason("no_worker", _("no running worker handles %s") % facts.job.job_type)
    if not facts.has_recent_poller:
        addon = _(" of addon %s") % facts.job.addon_id if facts.job.addon_id else ""
        yield Reason("no_worker", _("no remote worker%s has polled recently") % addon)


def _describe_limit(row: ConcurrencyLimit) -> str:
    match LimitScope(row.scope):
        case LimitScope.GLOBAL:
            return _("the global limit")
        case LimitScope.JOB_TYPE:
            return _("the limit of job type %s") % row.key
        case LimitScope.RESOURCE:
            return _("the limit of resource %s") % row.key
        case LimitScope.TENANT:
            return _("the limit of tenant %s") % row.key
        case LimitScope.ADDON:
            return _("the limit of addon %s") % row.key


def _since_and_by(event: JobEvent | None) -> dict[str, Any]:
    return {} if event is None else {"since": event.at, "by": event.actor_name or event.actor_kind}


def _describe_event(event: JobEvent | None) -> str:
    return "" if event is None else _describe_actor(event.actor_name or event.actor_kind, event.at)


def _describe_actor(actor: str, since: datetime | None, reason: str = "") -> str:
    parts = [_("since %s") % _format_time(since)] if since is not None else []
    parts += [_("by %s") % actor] if actor else []
    text = " " + " ".join(parts) if parts else ""
    return f"{text}: {reason}" if reason else text


def _format_time(moment: datetime | None) -> str:
    if moment is None:
        return ""
    local = timezone.localtime(moment)
    is_today = local.date() == timezone.localdate()
    return formats.date_format(local, "H:i:s" if is_today else "Y-m-d H:i")
