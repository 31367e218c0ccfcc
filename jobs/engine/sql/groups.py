"""Finish waiting members of a group, and record the retries of finished ones: many rows in a few statements.

The caller holds the locks of the rows and has looked the transition up. The results of members are read without locks.
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


class Place(NamedTuple):
    """The place of a member in its group."""

    group_index: int
    waits_for_others: bool


def find_place(connection: Any, job_id: UUID) -> Place | None:
    """Return the place of a job in its group; None if it is in no group."""
    with connection.cursor() as cursor:
        cursor.execute(_PLACE, {"job_id": db.to_stored_uuid(job_id)})
        row = cursor.fetchone()
    return None if row is None else Place(row[0], bool(row[1]))


def read_results(connection: Any, group_id: UUID, *, before: int, max_bytes: int) -> tuple[int, list[tuple[int, str]]]:
    """Return the bytes of the results of completed members before an index, and their indexes and JSON texts.

    There are no texts if the results have more than `max_bytes`.
    """
    params = {"group_id": db.to_stored_uuid(group_id), "before": before, "max_bytes": max_bytes}
    with connection.cursor() as cursor:
        cursor.execute(db.pick(connection, postgresql=_RESULTS, sqlite=_SQLITE_RESULTS), params)
        rows = cursor.fetchall()
    size = int(rows[0][2]) if rows else 0
    return size, [] if size > max_bytes else [(index, text) for index, text, _size in rows]


_EVENT_COLUMNS = "job_id, kind, from_status, to_status, reason, actor_kind, actor_name"  # `at` has a default


_PLACE = """
    SELECT member.group_index, grp.mode = 'sequential' OR COALESCE(member.group_index = grp.then_index, false)
    FROM jobscheduler_job member JOIN jobscheduler_jobgroup grp ON grp.id = member.group_id
    WHERE member.id = %(job_id)s
"""  # fits both databases


# ---------------------------------------------------------------------- PostgreSQL

_RESULTS = """
    WITH results AS (
        SELECT member.group_index, (run.artifacts -> 'result')::text AS result
        FROM jobscheduler_job member
        JOIN jobscheduler_jobrun run ON run.job_id = member.id
        WHERE member.group_id = %(group_id)s
          AND member.group_index < %(before)s
          AND member.status = 'COMPLETED'
          AND NOT EXISTS (SELECT 1 FROM jobscheduler_job newer WHERE newer.retry_of_id = member.id)
    ), sized AS (
        SELECT group_index, result, sum(octet_length(result)) OVER () AS size FROM results WHERE result IS NOT NULL
    )
    SELECT group_index, CASE WHEN size <= %(max_bytes)s THEN result END, size
    FROM sized
    ORDER BY group_index
"""

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

_SQLITE_RESULTS = """
    WITH results AS (
        SELECT member.group_index, run.artifacts -> 'result' AS result
        FROM jobscheduler_job member
        JOIN jobscheduler_jobrun run ON run.job_id = member.id
        WHERE member.group_id = %(group_id)s
          AND member.group_index < %(before)s
          AND member.status = 'COMPLETED'
          AND NOT EXISTS (SELECT 1 FROM jobscheduler_job newer WHERE newer.retry_of_id = member.id)
    ), sized AS (
        SELECT group_index, result, sum(length(CAST(result AS BLOB))) OVER () AS size
        FROM results WHERE result IS NOT NULL
    )
    SELECT group_index, CASE WHEN size <= %(max_bytes)s THEN result END, size
    FROM sized
    ORDER BY group_index
"""

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
