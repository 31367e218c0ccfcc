"""Insert jobs with their SUBMITTED events and the marks of their targets.

Positions grow with the time of the insert: microseconds × 1024, plus the index within the call. The database's clock
decides whether a job is due.

PostgreSQL has one statement for a single job and one for many. In the second a column that is equal for all jobs is
sent once, any other as one text with a line for each job. For a single job it would take 0.72 ms of CPU (server and
client) instead of 0.54 ms. Sending every column of every job takes 33 µs (arrays) or 48 µs (JSON) a job instead of
19 µs.

A job whose key is taken is not inserted. There are three indexes of keys and ON CONFLICT can name one, so it names
none: a job id is never taken, and the other unique indexes have jobs that were dispatched and retries of a locked job.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from datetime import UTC, datetime, timedelta
from functools import cache
from operator import attrgetter
from typing import Any, NamedTuple
from uuid import UUID

from django.utils import timezone
from pydantic_core import to_json

from jobs import db, notifications
from jobs.actors import Actor
from jobs.db import execute
from jobs.engine.job_spec import COLUMNS, JobSpec, to_row
from jobs.engine.sql.columns import INITIAL_VALUES, SUBMISSION_COLUMNS
from jobs.models import Gate, JobGroup

CLOSED, TIME, LANE, READY = (gate.value for gate in (Gate.CLOSED, Gate.TIME, Gate.LANE, Gate.READY))
HELD_REASON = "held on submission"
PREDECESSOR_REASON = "waits for its predecessor"
NULL_LINE = "\x01"  # validated text has no control characters

_TYPES = {
    **SUBMISSION_COLUMNS,
    "id": "uuid",
    "status": "text",
    "position": "bigint",
    "not_before": "timestamptz",
    "hold": "boolean",
    "holds_lane": "boolean",
    "idempotency_key": "text",
    "idempotency_hash": "text",
    "retry_of_id": "uuid",
    "attempt": "integer",
    "checkpoint": "jsonb",
    "unique_key": "text",
    "unique_until": "text",
}
TYPES = {name: _TYPES[name] for name in COLUMNS}
LINE_TYPES = {name: "text" if kind == "jsonb" else kind for name, kind in TYPES.items()}
STORED_COLUMNS = [name for name in COLUMNS if name != "position"]  # the statement may compute the position


class InsertedJob(NamedTuple):
    """The columns of a new job that the insert computed."""

    id: UUID
    created_at: datetime
    position: int
    gate: int


EventData = Mapping[UUID, Mapping[str, Any]]


class EventFields(NamedTuple):
    """The actor and the reason of the SUBMITTED events, and the data of those that have any, by job id."""

    actor: Actor
    reason: str
    data: EventData | None = None

    def to_params(self) -> dict[str, str | None]:
        data = None if self.data is None else _json({job_id.hex: data for job_id, data in self.data.items()})
        actor = {"actor_kind": str(self.actor.kind), "actor_name": self.actor.name}
        return {**actor, "reason": self.reason, "event_data": data}


def insert_job(connection: Any, spec: JobSpec, event: EventFields) -> InsertedJob | None:
    """Insert one job; return None if its idempotency key or its unique key is taken."""
    if db.is_sqlite(connection):
        ids, now = _insert_sqlite(connection, [spec], event)
        position = _first_position(now) if spec.position is None else spec.position
        return InsertedJob(spec.id, now, position, _compute_gate(spec, now)) if ids else None
    params = dict(zip(COLUMNS, to_row(spec), strict=True))
    rows = execute(connection, INSERT_ONE, {**params, **event.to_params()})
    return InsertedJob(*rows[0][:4]) if rows else None


class KeyTaken(Exception):
    """A member of a new group has the idempotency key of another job."""


def insert_jobs(
    connection: Any, specs: Sequence[JobSpec], event: EventFields, *, group: JobGroup | None = None
) -> list[UUID]:
    """Insert jobs; return the ids of those whose idempotency key and unique key were not taken, in their order.

    With their new group all are inserted, or none, and KeyTaken is raised.
    """
    if db.is_sqlite(connection):
        ids, _now = _insert_sqlite(connection, specs, event, group)
        return ids
    params = {**_column_params(specs), **event.to_params()}
    with db.atomic() if group is not None else nullcontext():
        if group is not None:
            group.save(using=connection.alias, force_insert=True)
        ((count, _notified),) = execute(connection, INSERT_MANY, params)
        if group is not None and count < len(specs):
            raise KeyTaken
    ids = [spec.id for spec in specs]
    if count == len(ids):
        return ids
    present = {job_id for (job_id,) in execute(connection, SELECT_PRESENT, [ids])}
    return [job_id for job_id in ids if job_id in present]


# PostgreSQL, one job

INSERT_ONE = f"""
WITH inserted AS (
    INSERT INTO jobscheduler_job (
        {", ".join(STORED_COLUMNS)},
        priority, created_at, position, gate, {", ".join(INITIAL_VALUES)}
    )
    VALUES (
        {", ".join(f"%({name})s::{TYPES[name]}" for name in STORED_COLUMNS)},
        %(base_priority)s::smallint,
        statement_timestamp(),
        coalesce(%(position)s::bigint, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint * 1024),
        CASE
            WHEN %(status)s::text <> 'QUEUED' THEN {CLOSED}
            WHEN %(not_before)s::timestamptz > statement_timestamp() THEN {TIME}
            WHEN %(lane_id)s::uuid IS NOT NULL THEN {LANE}
            ELSE {READY}
        END,
        {", ".join(INITIAL_VALUES.values())}
    )
    ON CONFLICT DO NOTHING
    RETURNING id, created_at, position, gate, status, hold, lane_id
),
event AS (
    INSERT INTO jobscheduler_jobevent (job_id, at, kind, from_status, to_status, actor_kind, actor_name, reason, data)
    SELECT id, created_at, 'SUBMITTED', '', status, %(actor_kind)s, %(actor_name)s, %(reason)s::text,
           %(event_data)s::jsonb -> replace(id::text, '-', '')
    FROM inserted
    UNION ALL
    SELECT id, created_at, 'HELD', status, status, %(actor_kind)s, %(actor_name)s,
           CASE WHEN hold THEN '{HELD_REASON}' ELSE '{PREDECESSOR_REASON}' END, NULL
    FROM inserted WHERE status = 'PENDING'
),
mark AS (
    INSERT INTO jobscheduler_lanemark (lane_id) SELECT lane_id FROM inserted WHERE gate = {LANE}
)
SELECT id, created_at, position, gate,
       CASE
           WHEN gate <> {CLOSED} AND lane_id IS NOT NULL
               THEN pg_notify('{notifications.CHANNEL}', '{notifications.LANE}')::text
           WHEN gate <> {CLOSED} THEN pg_notify('{notifications.CHANNEL}', '{notifications.READY}')::text
       END
FROM inserted
"""


# PostgreSQL, many jobs: `line` has the columns that differ between jobs, and NULL in the others

INSERT_MANY = f"""
WITH spec AS (
    SELECT
        coalesce(line.ordinal, line.ordinality - 1) AS ordinal,
        {", ".join(f"coalesce(line.{name}::{TYPES[name]}, %({name})s::{TYPES[name]}) AS {name}" for name in COLUMNS)}
    FROM unnest(
        string_to_array(%(ordinals)s, chr(10))::integer[],
        {", ".join(f"string_to_array(%({name}_lines)s, chr(10), chr(1))::{LINE_TYPES[name]}[]" for name in COLUMNS)}
    ) WITH ORDINALITY AS line (ordinal, {", ".join(COLUMNS)}, ordinality)
),
inserted AS (
    INSERT INTO jobscheduler_job (
        {", ".join(STORED_COLUMNS)},
        priority, created_at, position, gate, {", ".join(INITIAL_VALUES)}
    )
    SELECT
        {", ".join(STORED_COLUMNS)},
        base_priority,
        statement_timestamp(),
        coalesce(position, (extract(epoch FROM statement_timestamp()) * 1000000)::bigint * 1024 + ordinal),
        CASE
            WHEN status <> 'QUEUED' THEN {CLOSED}
            WHEN not_before > statement_timestamp() THEN {TIME}
            WHEN lane_id IS NOT NULL THEN {LANE}
            ELSE {READY}
        END,
        {", ".join(INITIAL_VALUES.values())}
    FROM spec
    ON CONFLICT DO NOTHING
    RETURNING id, created_at, gate, status, hold, lane_id
),
event AS (
    INSERT INTO jobscheduler_jobevent (job_id, at, kind, from_status, to_status, actor_kind, actor_name, reason, data)
    SELECT id, created_at, 'SUBMITTED', '', status, %(actor_kind)s, %(actor_name)s, %(reason)s::text,
           %(event_data)s::jsonb -> replace(id::text, '-', '')
    FROM inserted
    UNION ALL
    SELECT id, created_at, 'HELD', status, status, %(actor_kind)s, %(actor_name)s,
           CASE WHEN hold THEN '{HELD_REASON}' ELSE '{PREDECESSOR_REASON}' END, NULL
    FROM inserted WHERE status = 'PENDING'
),
mark AS (
    INSERT INTO jobscheduler_lanemark (lane_id) SELECT DISTINCT lane_id FROM inserted WHERE gate = {LANE}
)
SELECT count(*),
       CASE
           WHEN bool_or(gate <> {CLOSED} AND lane_id IS NOT NULL)
               THEN pg_notify('{notifications.CHANNEL}', '{notifications.LANE}')::text
           WHEN bool_or(gate <> {CLOSED}) THEN pg_notify('{notifications.CHANNEL}', '{notifications.READY}')::text
       END
FROM inserted
"""


SELECT_PRESENT = "SELECT id FROM jobscheduler_job WHERE id = ANY(%s)"
_MANY_PARAMS = ("ordinals", *COLUMNS, *(f"{name}_lines" for name in COLUMNS))


def _column_params(specs: Sequence[JobSpec]) -> dict[str, Any]:
    params: dict[str, Any] = dict.fromkeys(_MANY_PARAMS)
    if any(spec.idempotency_key is not None or spec.unique_key is not None for spec in specs):
        # In a fixed order, or two calls that share keys would wait for each other.
        ordinals = sorted(range(len(specs)), key=lambda index: _get_keys(specs[index]))
        specs = [specs[ordinal] for ordinal in ordinals]
        params["ordinals"] = "\n".join(map(str, ordinals))
    for name in COLUMNS:
        column = list(map(attrgetter(name), specs))
        if name != "id" and column.count(column[0]) == len(column):
            params[name] = column[0]
        else:
            params[f"{name}_lines"] = _encode_lines(name, column)
    return params


def _get_keys(spec: JobSpec) -> tuple[str, str, str]:
    """Return what the order of inserts depends on. Jobs of one unique key keep theirs: the last replacement wins."""
    return spec.tenant, spec.unique_key or "", spec.idempotency_key or "" if spec.unique_key is None else ""


def _encode_lines(name: str, column: Sequence[Any]) -> str:
    encode = _ENCODERS.get(TYPES[name], str)
    lines = map(encode, column) if None not in column else (NULL_LINE if v is None else encode(v) for v in column)
    text = "\n".join(lines)
    if text.count("\n") != len(column) - 1:
        raise ValueError(f"A value of {name} contains a line break.")  # validation rejects it; rows must not shift
    return text


_ENCODERS: dict[str, Callable[[Any], str]] = {"uuid": attrgetter("hex"), "timestamptz": datetime.isoformat}


# SQLite: its clock is that of this process. It has no arrays: columns that differ between jobs are sent as JSON, the
# others once. Binding every column of every job takes three times as long, reading every column from JSON twice.


@cache
def insert_sqlite(differing: tuple[str, ...]) -> str:
    """Return the statement that reads these columns from the lines, and all others from parameters."""
    value = {name: f"line.value ->> '{name}'" if name in differing else f"%({name})s" for name in COLUMNS}
    return f"""
    INSERT INTO jobscheduler_job (
        {", ".join(STORED_COLUMNS)},
        priority, created_at, position, gate, {", ".join(INITIAL_VALUES)}
    )
    SELECT
        {", ".join(value[name] for name in STORED_COLUMNS)},
        {value["base_priority"]},
        %(now)s,
        coalesce({value["position"]}, %(first_position)s + line.key),
        CASE
            WHEN {value["status"]} <> 'QUEUED' THEN {CLOSED}
            WHEN {value["not_before"]} > %(now)s THEN {TIME}
            WHEN {value["lane_id"]} IS NOT NULL THEN {LANE}
            ELSE {READY}
        END,
        {", ".join(INITIAL_VALUES.values())}
    FROM json_each(%(lines)s) line
    WHERE true
    ON CONFLICT DO NOTHING
    """


SELECT_PRESENT_SQLITE = "SELECT id FROM jobscheduler_job WHERE id IN (SELECT value FROM json_each(%s))"
SUBMITTED_SQLITE = """
INSERT INTO jobscheduler_jobevent (job_id, kind, from_status, to_status, reason, at, actor_kind, actor_name, data)
SELECT job.id, 'SUBMITTED', '', job.status, %(reason)s, %(now)s, %(actor_kind)s, %(actor_name)s,
       json_extract(%(event_data)s, '$."' || job.id || '"')
FROM json_each(%(ids)s) inserted CROSS JOIN jobscheduler_job job ON job.id = inserted.value
"""
HELD_SQLITE = f"""
INSERT INTO jobscheduler_jobevent (job_id, kind, from_status, to_status, reason, at, actor_kind, actor_name)
SELECT job.id, 'HELD', job.status, job.status, CASE WHEN job.hold THEN '{HELD_REASON}' ELSE '{PREDECESSOR_REASON}' END,
       %(now)s, %(actor_kind)s, %(actor_name)s
FROM json_each(%(ids)s) inserted CROSS JOIN jobscheduler_job job ON job.id = inserted.value
WHERE job.status = 'PENDING'
"""
MARK_SQLITE = f"""
INSERT INTO jobscheduler_lanemark (lane_id)
SELECT DISTINCT job.lane_id
FROM json_each(%(ids)s) inserted CROSS JOIN jobscheduler_job job ON job.id = inserted.value
WHERE job.gate = {LANE}
"""


def _insert_sqlite(
    connection: Any, specs: Sequence[JobSpec], event: EventFields, group: JobGroup | None = None
) -> tuple[list[UUID], datetime]:
    """Return the ids of the inserted jobs, and the time of the insert.

    The parameters of thousands of jobs are prepared before the write lock is taken.
    """
    params: dict[str, Any] = {}
    differing: dict[str, list[Any]] = {}
    for name in COLUMNS:
        column = list(map(attrgetter(name), specs))
        if column.count(column[0]) == len(column):
            params[name] = _adapt(connection, column[0])
        else:
            differing[name] = [_adapt(connection, value) for value in column]
    lines = [dict(zip(differing, row, strict=True)) for row in zip(*differing.values(), strict=True)]
    params["lines"] = _json(lines or [{}])
    ids = [spec.id for spec in specs]
    with db.atomic(), connection.cursor() as cursor:
        now = timezone.now()  # after the wait for the writer's lock: positions follow the order of the commits
        params |= {"now": _adapt(connection, now), "first_position": _first_position(now)}
        if group is not None:
            group.save(using=connection.alias, force_insert=True)
        cursor.execute(insert_sqlite(tuple(differing)), params)
        if cursor.rowcount < len(ids):
            if group is not None:
                raise KeyTaken
            cursor.execute(SELECT_PRESENT_SQLITE, [_json([job_id.hex for job_id in ids])])
            present = {UUID(hex=job_id) for (job_id,) in cursor.fetchall()}
            ids = [job_id for job_id in ids if job_id in present]
        inserted = {**event.to_params(), "now": params["now"], "ids": _json([job_id.hex for job_id in ids])}
        cursor.execute(SUBMITTED_SQLITE, inserted)
        if any(spec.status == "PENDING" for spec in specs):
            cursor.execute(HELD_SQLITE, inserted)
        if any(spec.lane_id is not None for spec in specs):
            cursor.execute(MARK_SQLITE, inserted)
    return ids, now


def _adapt(connection: Any, value: Any) -> Any:
    if isinstance(value, datetime):
        return connection.ops.adapt_datetimefield_value(value)
    return value.hex if isinstance(value, UUID) else value


def _first_position(now: datetime) -> int:
    return (now - _EPOCH) // timedelta(microseconds=1) * 1024


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def _compute_gate(spec: JobSpec, now: datetime) -> int:
    """Return the gate that the statement computes."""
    if spec.status != "QUEUED":
        return CLOSED
    if spec.not_before is not None and spec.not_before > now:
        return TIME
    return READY if spec.lane_id is None else LANE


def _json(value: Any) -> str:
    return to_json(value).decode()
