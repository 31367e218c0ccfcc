"""Finish waiting members of a group, and record the retries of finished ones: many rows in a few statements.

The caller holds the locks of the rows and has looked the transition up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from pydantic_core import to_json

from jobs import db
from jobs.actors import Actor


class RetriedMember(NamedTuple):
    """A member whose retry was inserted, as its event names it."""

    id: UUID
    retried_by: UUID
    reason: str


def finish_waiting_jobs(
    connection: Any, job_ids: Sequence[UUID], *, kind: str, status: str, reason: str, actor: Actor
) -> None:
    """Write events of this kind and the final status of jobs that wait, were offered or are paused, and of their runs.

    The events come first: their source is the status that the jobs still have.
    """
    params = {
        "ids": _encode_ids(connection, job_ids),
        "kind": kind,
        "status": status,
        "reason": reason,
        "actor_kind": str(actor.kind),
        "actor_name": actor.name,
    }
    statements = db.pick(connection, postgresql=_FINISH_WAITING, sqlite=_SQLITE_FINISH_WAITING)
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement, params)


def record_retries(connection: Any, members: Iterable[RetriedMember], actor: Actor) -> None:
    """Write the RETRY_CREATED events of members, which no longer hold their targets."""
    rows = [
        {"id": db.to_stored_uuid(member.id), "reason": member.reason, "data": {"retried_by": str(member.retried_by)}}
        for member in members
    ]
    params = {"members": _json(rows), "actor_kind": str(actor.kind), "actor_name": actor.name}
    with connection.cursor() as cursor:
        for statement in db.pick(connection, postgresql=_RECORD_RETRIES, sqlite=_SQLITE_RECORD_RETRIES):
            cursor.execute(statement, params)


_EVENT_COLUMNS = "job_id, kind, from_status, to_status, reason, actor_kind, actor_name"  # `at` has a default


# ---------------------------------------------------------------------- PostgreSQL

_FINISH_WAITING = (
    f"""
    INSERT INTO jobscheduler_jobevent ({_EVENT_COLUMNS})
    SELECT id, %(kind)s, status, %(status)s, %(reason)s, %(actor_kind)s, %(actor_name)s
    FROM jobscheduler_job WHERE id = ANY(%(ids)s::uuid[])
    """,
    """
    UPDATE jobscheduler_job
    SET status = %(status)s,
        status_reason = %(reason)s,
        gate = 0,
        holds_lane = false,
        reserved_until = NULL,
        cancel_requested = false,
        cancel_mode = ''
    WHERE id = ANY(%(ids)s::uuid[])
    """,
    """
    UPDATE jobscheduler_jobrun
    SET status = %(status)s, finished_at = statement_timestamp(), error = %(reason)s
    WHERE job_id = ANY(%(ids)s::uuid[]) AND status = 'RUNNING'
    """,
)
_RECORD_RETRIES = (
    f"""
    INSERT INTO jobscheduler_jobevent ({_EVENT_COLUMNS}, data)
    SELECT j.id, 'RETRY_CREATED', j.status, j.status, m.reason, %(actor_kind)s, %(actor_name)s, m.data
    FROM json_to_recordset(%(members)s::json) AS m(id uuid, reason text, data jsonb)
    JOIN jobscheduler_job j ON j.id = m.id
    """,
    """
    UPDATE jobscheduler_job j SET holds_lane = false
    FROM json_to_recordset(%(members)s::json) AS m(id uuid)
    WHERE j.id = m.id AND j.holds_lane
    """,
)


# ---------------------------------------------------------------------- SQLite

_SQLITE_FINISH_WAITING = (
    f"""
    INSERT INTO jobscheduler_jobevent ({_EVENT_COLUMNS})
    SELECT id, %(kind)s, status, %(status)s, %(reason)s, %(actor_kind)s, %(actor_name)s
    FROM jobscheduler_job WHERE id IN (SELECT value FROM json_each(%(ids)s))
    """,
    """
    UPDATE jobscheduler_job
    SET status = %(status)s,
        status_reason = %(reason)s,
        gate = 0,
        holds_lane = false,
        reserved_until = NULL,
        cancel_requested = false,
        cancel_mode = ''
    WHERE id IN (SELECT value FROM json_each(%(ids)s))
    """,
    """
    UPDATE jobscheduler_jobrun
    SET status = %(status)s, finished_at = strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now'), error = %(reason)s
    WHERE job_id IN (SELECT value FROM json_each(%(ids)s)) AND status = 'RUNNING'
    """,
)
_SQLITE_RECORD_RETRIES = (
    f"""
    INSERT INTO jobscheduler_jobevent ({_EVENT_COLUMNS}, data)
    SELECT j.id, 'RETRY_CREATED', j.status, j.status, m.value ->> 'reason', %(actor_kind)s, %(actor_name)s,
           m.value -> 'data'
    FROM json_each(%(members)s) m CROSS JOIN jobscheduler_job j ON j.id = m.value ->> 'id'
    """,
    """
    UPDATE jobscheduler_job SET holds_lane = false
    WHERE id IN (SELECT value ->> 'id' FROM json_each(%(members)s)) AND holds_lane
    """,
)


def _encode_ids(connection: Any, job_ids: Iterable[UUID]) -> str:
    return db.to_array(job_ids) if db.has_server(connection) else _json([job_id.hex for job_id in job_ids])


def _json(value: Any) -> str:
    return to_json(value).decode()
