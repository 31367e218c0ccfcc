"""How a job is born: rows in, with their events and lane marks, in one statement a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic_core import to_json

from jobs import db, signals, tracing
from jobs.actors import Actor
from jobs.engine.sql import is_sqlite, postgres_insert, sqlite_insert
from jobs.engine.sql.batch import AT, Row
from jobs.engine.sql.columns import BIRTH, SUBMISSION
from jobs.ids import uuid7
from jobs.models import Job
from jobs.states import Status


def submit(rows: Sequence[Row], *, actor: Actor, reason: str = "") -> list[Any]:
    """Insert rows in the order of INSERTED. Returns the new ones: id, created_at, position, gate (of many, the id).

    A row whose idempotency key is taken is left out; a peer's open transaction with that key is waited for.
    """
    if not tracing.is_on():
        return _submit(rows, actor, reason)
    with tracing.sending(rows[0][AT["resource"]], [row[AT["id"]] for row in rows]) as traceparent:
        for row in rows if traceparent else ():
            row[AT["traceparent"]] = traceparent
        return _submit(rows, actor, reason)


def copy_of(
    job: Job,
    *,
    status: Status = Status.QUEUED,
    position: int | None = None,
    checkpoint: Any = None,
    hold: bool = False,
) -> Row:
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
    return [*(birth[name] for name in BIRTH), *kept]


def dump(value: Any) -> str:
    """JSON on one line, of what has passed the gate."""
    return to_json(value).decode()


def _submit(rows: Sequence[Row], actor: Actor, reason: str) -> list[Any]:
    who = (str(actor.kind), actor.name)
    with db.atomic_on_sqlite() as connection:
        insert = sqlite_insert if is_sqlite(connection) else postgres_insert
        inserted: list[Any] = insert.insert_jobs(connection, rows, who, reason)
    new = {row[0] for row in inserted}
    names = ("id", "job_type", "tenant", "status")
    signals.send_enqueued(
        signals.EnqueuedJob(*(row[AT[name]] for name in names)) for row in rows if row[AT["id"]] in new
    )
    signals.send_events_committed()
    return inserted
