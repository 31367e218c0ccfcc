"""Rows as JSON documents, in the contract's field names. Secrets are masked; times are UTC with a Z."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from jobs.models import Job, JobEvent, JobLog, JobRun
from jobs.redaction import redact

PLAIN = (
    *("job_type", "status", "status_reason", "tenant", "target", "addon_id", "resource", "priority", "position"),
    *("tags", "cost_units", "constraints", "time_sensitive", "expected_duration_sec", "max_runtime_sec", "hold"),
    *("token_limit", "tokens_used", "max_retries", "cancel_requested", "cancel_mode", "progress", "progress_message"),
    *("attempt", "group_index", "idempotency_key", "blocks_target", "permanently_failed"),
)
TIMES = ("created_at", "not_before", "deadline_at", "dispatched_at", "resolved_at")
REFERENCES = {"retry_of": "retry_of_id", "group_id": "group_id", "schedule_id": "schedule_id"}


def job(row: Job) -> dict[str, Any]:
    """Read with `select_related("run", "retried_by")`, or this asks for them."""
    follower = getattr(row, "retried_by", None)
    run_row = getattr(row, "run", None)
    return {
        "id": str(row.pk),
        **{name: getattr(row, name) for name in PLAIN},
        **{name: moment(getattr(row, name)) for name in TIMES},
        **{name: _text(getattr(row, column)) for name, column in REFERENCES.items()},
        "params": redact(row.params),
        "retried_by": None if follower is None else str(follower.pk),
        "lease": _lease(row),
        "run": None if run_row is None else run(run_row),
    }


def run(row: JobRun) -> dict[str, Any]:
    return {
        "id": str(row.job_id),
        "job_id": str(row.job_id),
        "status": row.status,
        "started_at": moment(row.started_at),
        "finished_at": moment(row.finished_at),
        "exit_code": row.exit_code,
        "error": row.error,
        "artifacts": redact(row.artifacts),
        "worker": row.worker,
    }


def event(row: JobEvent) -> dict[str, Any]:
    return {
        "id": row.pk,
        "at": moment(row.at),
        "kind": row.kind,
        "from": row.from_status,
        "to": row.to_status,
        "reason": row.reason,
        "actor": {"kind": row.actor_kind, "name": row.actor_name},
        "data": redact(row.data),
    }


def log(row: JobLog) -> dict[str, Any]:
    return {"id": row.pk, "at": moment(row.at), "level": row.level, "message": row.message}


def moment(value: datetime | None) -> str | None:
    return None if value is None else value.astimezone(UTC).isoformat().replace("+00:00", "Z")


def _lease(row: Job) -> dict[str, Any] | None:
    if row.lease_owner is None:
        return None
    times = {"expires_at": moment(row.lease_expires_at), "heartbeat_at": moment(row.heartbeat_at)}
    return {"owner": row.lease_owner, **times}


def _text(value: object) -> str | None:
    return None if value is None else str(value)
