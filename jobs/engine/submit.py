"""How a job is born: rows in, with their events and lane marks, in one statement a batch."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from jobs import db, hooks
from jobs.actors import Actor
from jobs.engine import wakeup
from jobs.engine.sql import dialect
from jobs.engine.sql.columns import BIRTH, INSERTED, SUBMISSION
from jobs.ids import uuid7
from jobs.models import Gate, Job
from jobs.states import EventKind, Status

_AT = {name: index for index, name in enumerate(INSERTED)}


def submit(rows: Sequence[Sequence[Any]], *, actor: Actor, reason: str = "") -> list[Any]:
    """Insert rows in the order of INSERTED. Returns the new ones: id, created_at, position, gate.

    A row whose idempotency key is taken is left out; a peer's open transaction with that key is waited for.
    """
    with db.atomic() as connection:
        born = dialect(connection).insert_jobs(connection, rows, (str(actor.kind), actor.name), reason)
        gates = {gate for _, _, _, gate in born}
        if gates - {Gate.CLOSED}:
            wakeup.notify(wakeup.READY)
        if hooks.anyone_listens():
            new = {each[0] for each in born}
            hooks.tell([_moved(row, reason) for row in rows if row[_AT["id"]] in new])
    return born


def copy_of(
    job: Job,
    *,
    status: Status = Status.QUEUED,
    position: int | None = None,
    checkpoint: Any = None,
    hold: bool = False,
) -> tuple[Any, ...]:
    """A row for `submit` that follows `job` in its chain: every submission field, none of the state."""
    birth: dict[str, Any] = {
        "id": uuid7(),
        "status": str(status),
        "position": job.position if position is None else position,
        "not_before": None,
        "hold": hold,
        "holds_lane": job.holds_lane and status == Status.QUEUED,  # who waits for a predecessor lets it through
        "idempotency_key": None,
        "idempotency_hash": "",
        "retry_of_id": job.pk,
        "attempt": job.attempt + 1,
        "checkpoint": None if checkpoint is None else dump(checkpoint),
    }
    kept = (dump(getattr(job, name)) if kind == "jsonb" else getattr(job, name) for name, kind in SUBMISSION.items())
    return (*(birth[name] for name in BIRTH), *kept)


def dump(value: Any) -> str:
    return _encode(value) if value else _EMPTY.get(type(value)) or _encode(value)


_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode
_EMPTY: dict[type, str] = {dict: "{}", list: "[]"}


def _moved(row: Sequence[Any], reason: str) -> hooks.Moved:
    job_id: UUID = row[_AT["id"]]
    return hooks.Moved(job_id, EventKind.SUBMITTED, None, Status(row[_AT["status"]]), row[_AT["tenant"]], reason)
