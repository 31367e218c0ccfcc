"""Serialize rows as JSON documents of the API. Secrets are masked; times are UTC with a Z."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Any
from uuid import UUID

from jobs.conf import conf
from jobs.models import Job, JobEvent, JobGroup, JobLog, JobRun, JobTemplate, Lease, Worker
from jobs.redaction import redact
from jobs.time_text import format_time

if TYPE_CHECKING:
    from jobs.registry import Handler
    from jobs.services.activity_list import Entry
    from jobs.services.limits import LimitState
    from jobs.services.targets import TargetState

JOB_COLUMNS = (
    *("id", "job_type", "status", "status_reason", "tenant", "target", "addon_id", "resource", "priority", "position"),
    *("tags", "cost_units", "constraints", "time_sensitive", "expected_duration_sec", "max_runtime_sec", "hold"),
    *("token_limit", "tokens_used", "max_retries", "cancel_requested", "cancel_mode", "progress", "progress_message"),
    *("attempt", "group_index", "idempotency_key", "blocks_target", "permanently_failed", "created_at", "not_before"),
    *("retry_policy", "snooze_count", "deadline_at", "dispatched_at", "resolved_at", "group_id", "schedule_id"),
    *("fire_time", "unique_key", "unique_until"),
)
TEMPLATE_COLUMNS = (
    *("id", "name", "job_type", "tenant", "priority", "target", "max_runtime_sec", "token_limit", "cost_units"),
    *("tags", "overridable", "created_at"),
)
PAYLOAD_FIELDS = ("params", "url")  # of activities: the path of a webhook's URL may be a secret
RETRY_POLICY_FIELDS = ("max_attempts", "base_sec", "backoff", "max_sec", "jitter")


def serialize_job(row: Job) -> dict[str, Any]:
    """Serialize a job. Read it with `select_related("run", "retried_by")` to avoid two queries."""
    retry = getattr(row, "retried_by", None)
    run_row = getattr(row, "run", None)
    times = {"expires_at": format_time(row.lease_expires_at), "heartbeat_at": format_time(row.heartbeat_at)}
    return {
        **serialize_columns(row, JOB_COLUMNS),
        "position": str(row.position),  # JavaScript rounds numbers beyond 2^53
        "params": redact(row.params),
        "retry_of": None if row.retry_of_id is None else str(row.retry_of_id),
        "retried_by": None if retry is None else str(retry.pk),
        "lease": None if row.lease_owner is None else {"owner": row.lease_owner, **times},
        "run": None if run_row is None else serialize_run(run_row),
        **mark_truncated(row),
    }


def serialize_run(row: JobRun) -> dict[str, Any]:
    columns = ("job_id", "status", "started_at", "finished_at", "exit_code", "error", "worker")
    document = {"id": str(row.job_id), **serialize_columns(row, columns), "artifacts": redact(row.artifacts)}
    return {**document, **mark_truncated(row)}


def serialize_event(row: JobEvent) -> dict[str, Any]:
    return {
        **serialize_columns(row, ("id", "at", "kind", "reason")),
        "from": row.from_status,
        "to": row.to_status,
        "actor": {"kind": row.actor_kind, "name": row.actor_name},
        "data": redact(row.data),
        **mark_truncated(row),
    }


def serialize_activity(entry: Entry, *, with_payload: bool = True) -> dict[str, Any]:
    return {
        **serialize_columns(entry, ("id", "at", "tenant", "action", "reason")),
        "actor": {"kind": entry.actor_kind, "id": entry.actor_id, "name": entry.actor_name},
        "object": {"kind": entry.object_kind, "id": entry.object_id, "name": entry.object_name},
        "before": hide_payload_fields(entry.before, with_payload),
        "after": hide_payload_fields(entry.after, with_payload),
    }


def hide_payload_fields(fields: Mapping[str, Any] | None, with_payload: bool) -> Mapping[str, Any] | None:
    """Return the changed fields of an activity; without payload, PAYLOAD_FIELDS among them are null."""
    if fields is None or with_payload:
        return fields
    return {name: None if name in PAYLOAD_FIELDS else value for name, value in fields.items()}


def serialize_log(row: JobLog) -> dict[str, Any]:
    return serialize_columns(row, ("id", "at", "level", "message"))


def serialize_target(state: TargetState) -> dict[str, Any]:
    return {
        **serialize_columns(state.target, ("key", "tenant", "paused", "paused_by", "paused_at", "reason")),
        "holder": None if state.holder is None else str(state.holder.pk),
        "blocked_by": None if state.blocked_by is None else str(state.blocked_by.pk),
        "queued": state.queued,
        "oldest_queued_at": format_time(state.oldest_queued_at),
    }


def serialize_limit(state: LimitState) -> dict[str, Any]:
    times = {name: format_time(getattr(state, name)) for name in ("paused_at", "next_start_at")}
    return {**asdict(state), **times}


def serialize_template(row: JobTemplate) -> dict[str, Any]:
    """Serialize a template; fields that it does not set are null or empty."""
    return {
        **serialize_columns(row, TEMPLATE_COLUMNS),
        "resource": row.resource or None,
        "params": redact(row.params),
        "retry_policy": {name: row.retry_policy.get(name) for name in RETRY_POLICY_FIELDS},
        **mark_truncated(row),
    }


def serialize_worker(row: Worker) -> dict[str, Any]:
    columns = ("id", "name", "host", "pid", "version", "state", "slots", "busy", "stuck", "serves")
    return serialize_columns(row, (*columns, "started_at", "heartbeat_at"))


def serialize_direct_call(row: Lease) -> dict[str, Any]:
    columns = ("id", "job_type", "tenant", "resource", "owner", "requested_at", "granted_at", "heartbeat_at")
    return serialize_columns(row, (*columns, "expires_at", "ended_at", "outcome"))


def serialize_job_type(handler: Handler[..., Any]) -> dict[str, Any]:
    options = handler.options
    return {
        "name": handler.name,
        "params_schema": handler.signature.get_schema(),
        "resource": options.resource,
        "remote": options.remote,
        "direct": options.direct,
        "max_retries": conf.RETRY_MAX_RETRIES if options.max_retries is None else options.max_retries,
        "doc": handler.doc,
    }


def serialize_group(row: JobGroup, progress: dict[str, Any]) -> dict[str, Any]:
    columns = ("id", "tenant", "name", "mode", "on_failure", "then_index", "status", "cancel_requested", "round")
    return {**serialize_columns(row, (*columns, "created_at", "finished_at")), "progress": progress}


def serialize_columns(row: object, names: Iterable[str]) -> dict[str, Any]:
    """Return the named columns of a row; ids become text."""
    document = {name: getattr(row, name) for name in names}
    for name, value in document.items():
        if isinstance(value, datetime):
            document[name] = format_time(value)
        elif isinstance(value, UUID):
            document[name] = str(value)
    return document


def mark_truncated(row: object) -> dict[str, bool]:
    """Return the field that tells that a list left out payload of this row (see `jobs.models.payload`)."""
    return {"truncated": True} if getattr(row, "is_truncated", False) else {}


FieldReader = Callable[[Sequence[UUID]], Mapping[UUID, Any]]
_readers: dict[str, FieldReader] = {}


def register_extra_field(name: str, reader: FieldReader) -> None:
    """Register a reader of an extra field; the same name replaces it. Jobs without a value do not get the field."""
    _readers[name] = reader


def read_extra_fields(ids: Sequence[UUID]) -> dict[UUID, dict[str, Any]]:
    """Read the extra fields of other apps for many jobs, with one statement for each field."""
    extra_fields: dict[UUID, dict[str, Any]] = {job_id: {} for job_id in ids}
    for name, reader in _readers.items() if ids else ():
        for job_id, value in reader(ids).items():
            extra_fields[job_id][name] = value
    return extra_fields
