"""Jobs in the words of addons. Secrets are masked, except for those who are to work on them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from jobs.api.callers import Caller
from jobs.conf import conf
from jobs.engine import starts
from jobs.engine.starts import Start
from jobs.errors import NotFound
from jobs.models import Job
from jobs.redaction import redact
from jobs.remote_words import STATES
from jobs.shapes import moment
from jobs.states import Status

PLAIN = (
    *("addon_id", "job_type", "cost_units", "priority", "constraints", "expected_duration_sec", "time_sensitive"),
    *("max_runtime_sec", "tags", "tenant", "target"),
)
TIMES = ("created_at", "deadline_at", "reserved_until")


def one(job_id: UUID, caller: Caller, *, bare: bool = False) -> dict[str, Any]:
    """A job as it is now; `bare` is for its worker."""
    row = caller.jobs().filter(pk=job_id).first()
    if row is None:
        raise NotFound(f"There is no job {job_id}.")
    return several([row], caller, bare=bare)[0]


def several(rows: Iterable[Job], caller: Caller, *, bare: bool = False) -> list[dict[str, Any]]:
    found = list(rows)
    begun = starts.of(found)
    return [{**_intent(row, begun.get(row.pk)), "payload": _payload(row, caller, bare)} for row in found]


def started(row: Job) -> dict[str, Any]:
    """All that a worker needs to run it."""
    return {
        "job_id": str(row.pk),
        "lease_id": str(row.lease_token),
        "lease_expires_at": moment(row.lease_expires_at),
        "lease_sec": conf.LEASE_SEC,
        "heartbeat_sec": conf.HEARTBEAT_SEC,
        "payload": row.params,
        "checkpoint": row.checkpoint,
        **{name: getattr(row, name) for name in ("attempt", "fence", "max_runtime_sec", "token_limit", "tokens_used")},
    }


def state_of(row: Job) -> str:
    return STATES[Status(row.status)]


def _intent(row: Job, begun: Start | None) -> dict[str, Any]:
    return {
        "job_id": str(row.pk),
        **{name: getattr(row, name) for name in PLAIN},
        **{name: moment(getattr(row, name)) for name in TIMES},
        "state": state_of(row),
        "attempts": row.attempt,
        "next_earliest_start_at": moment(row.recheck_at or row.not_before),
        "lease_id": None if begun is None else str(begun.lease_id),
        "pid": None if begun is None else begun.pid,
        "reason": row.status_reason,
    }


def _payload(row: Job, caller: Caller, bare: bool) -> Any:
    if bare:
        return row.params
    return redact(row.params) if caller.payload else None
