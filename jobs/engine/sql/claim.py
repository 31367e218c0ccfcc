"""Claim ready jobs, and renew their leases.

A claim sets the lease, opens the run (or continues the open one) and writes the event. The event keeps the lease id in
its data, not in the column `token`, whose index has the starts of remote workers alone. `claim_next` claims the first
ready jobs in dispatch order, and none while any limit is in force; `claim_chosen` claims jobs that a selection round
has chosen under the locks of the limits.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import cache
from typing import Any, NamedTuple
from uuid import UUID, uuid4

from django.utils import timezone

from jobs import db
from jobs.db import NOW, Statement, execute, to_array, to_text_array, to_uuid
from jobs.engine.sql import to_stored
from jobs.engine.sql.columns import CLAIM_COLUMNS
from jobs.engine.sql.limits import IN_FORCE
from jobs.process_identity import read_beat_clock
from jobs.states import ADMITTED_REASON


class Claim(NamedTuple):
    """A claimed job: its handler's input and its lease. Fields as in `CLAIM_COLUMNS`, and the run's artifacts."""

    id: UUID
    lease_token: UUID
    lease_owner: str
    job_type: str
    params: dict[str, Any]
    tenant: str
    target: str | None
    resource: str
    attempt: int
    fence: int
    max_retries: int
    retry_policy: dict[str, Any]
    max_runtime_sec: float | None
    token_limit: int | None
    tokens_used: int
    checkpoint: Any
    group_id: UUID | None
    retry_of_id: UUID | None
    context: dict[str, Any] | None
    traceparent: str | None
    artifacts: dict[str, Any]


class LeaseRequest(NamedTuple):
    """The lease that a claim sets: the worker's name for the events, and the process key, which owns the lease."""

    worker: str
    process: str
    lease_sec: float


class ServedParams(NamedTuple):
    """The jobs that a worker serves, lists in the database's notation. None: every resource, every tenant."""

    types: str
    resources: str | None
    tenant: str | None


def build_served_params(types: Sequence[str], resources: Sequence[str] | None, tenant: str | None) -> ServedParams:
    """Format the lists once: the driver would format them for every claim, which costs 4 % of the loop's CPU."""
    format_list = json.dumps if db.is_sqlite() else to_text_array
    return ServedParams(format_list(types), None if resources is None else format_list(resources), tenant)


def claim_next(
    connection: Any,
    served: ServedParams,
    lease_request: LeaseRequest,
    slots: Sequence[int],
    *,
    limits_locked: bool = False,
) -> list[Claim]:
    """Claim the first ready jobs, one for each slot number, unless some limit is in force.

    `limits_locked` is for a caller that holds the limits' locks and has found room for so many jobs of any kind.
    """
    if db.is_sqlite(connection):
        pick = _pick_next_on_sqlite(connection, served, len(slots), limits_locked)
        return _claim_on_sqlite(connection, pick, lease_request, slots)
    statement = claim_next_statement(served, lease_request, slots, limits_locked)
    return [parse_claim(row) for row in execute(connection, *statement)]


def claim_chosen(
    connection: Any, job_ids: Sequence[UUID], lease_request: LeaseRequest, slots: Sequence[int]
) -> list[Claim]:
    """Claim those of these jobs that are still ready and not locked, one for each slot number."""
    if db.is_sqlite(connection):
        chosen = json.dumps([job_id.hex for job_id in job_ids])
        pick = _SQLITE_PICK_CHOSEN, [chosen, to_stored(connection, timezone.now())]
        return _claim_on_sqlite(connection, pick, lease_request, slots)
    params = {"job_ids": to_array(job_ids), **lease_request._asdict(), "slots": to_array(slots)}
    return [parse_claim(row) for row in execute(connection, CLAIM_CHOSEN, params)]


# ---------------------------------------------------------------------- PostgreSQL


def claim_next_statement(
    served: ServedParams, lease_request: LeaseRequest, slots: Sequence[int], limits_locked: bool = False
) -> Statement:
    """Return the plain claim with its parameters, to be sent alone or in a pipeline with FINISH."""
    params = {**served._asdict(), **lease_request._asdict(), "slots": to_array(slots), "limits_locked": limits_locked}
    return _claim_next(len(slots)), params


# Locked rows are skipped. A job past its deadline that was never dispatched is left to the deadlines task.
_PICK_NEXT = f"""
    WITH picked AS MATERIALIZED (
        SELECT id, priority, position, created_at FROM jobscheduler_job
        WHERE gate = 3 AND NOT remote
          AND job_type = ANY(%(types)s::text[])
          AND (%(resources)s::text[] IS NULL OR resource = ANY(%(resources)s::text[]))
          AND (%(tenant)s::text IS NULL OR tenant = %(tenant)s)
          AND NOT (deadline_at IS NOT NULL AND deadline_at <= {NOW} AND dispatched_at IS NULL)
          AND (%(limits_locked)s::boolean
               OR NOT EXISTS (SELECT 1 FROM jobscheduler_concurrencylimit WHERE {IN_FORCE}))
        ORDER BY priority DESC, position, created_at, id
        LIMIT {{limit:d}} FOR UPDATE SKIP LOCKED
    ),"""

_PICK_CHOSEN = f"""
    WITH picked AS MATERIALIZED (
        SELECT id, priority, position, created_at FROM jobscheduler_job
        WHERE id = ANY(%(job_ids)s::uuid[]) AND gate = 3 AND NOT remote
          AND NOT (deadline_at IS NOT NULL AND deadline_at <= {NOW} AND dispatched_at IS NULL)
        ORDER BY priority DESC, position, created_at, id
        FOR UPDATE SKIP LOCKED
    ),"""

_CLAIM = f"""
    claimed AS (
        UPDATE jobscheduler_job j
        SET status = 'RUNNING',
            status_reason = '',
            gate = 0,
            lease_owner = %(process)s || '#' || (%(slots)s::integer[])[p.slot],
            lease_token = gen_random_uuid(),
            lease_expires_at = {NOW} + %(lease_sec)s * interval '1 second',
            heartbeat_at = {NOW},
            holds_lane = (j.lane_id IS NOT NULL),
            recheck_at = NULL,
            cancel_requested = false,
            cancel_mode = '',
            dispatched_at = coalesce(j.dispatched_at, {NOW}),
            fence = j.fence + 1
        FROM (SELECT id, row_number() OVER (ORDER BY priority DESC, position, created_at, id) AS slot FROM picked) p
        WHERE j.id = ANY(ARRAY(SELECT id FROM picked)) AND j.id = p.id
        RETURNING {", ".join(f"j.{name}" for name in CLAIM_COLUMNS)}
    ),
    run AS (
        INSERT INTO jobscheduler_jobrun (job_id, status, started_at, error, artifacts, worker)
        SELECT id, 'RUNNING', {NOW}, '', '{{}}', %(worker)s FROM claimed
        ON CONFLICT (job_id) DO NOTHING
    ),
    event AS (
        INSERT INTO jobscheduler_jobevent (
            job_id, kind, from_status, to_status, reason, data, actor_kind, actor_name, at)
        SELECT id, 'RUNNING', 'QUEUED', 'RUNNING', '{ADMITTED_REASON}', jsonb_build_object('lease_id', lease_token),
               'worker', %(worker)s, {NOW}
        FROM claimed
    )
    SELECT {", ".join(CLAIM_COLUMNS)},
           CASE WHEN fence > 1 THEN (SELECT artifacts FROM jobscheduler_jobrun r WHERE r.job_id = claimed.id) END
    FROM claimed
"""

CLAIM_CHOSEN = _PICK_CHOSEN + _CLAIM


@cache
def _claim_next(limit: int) -> str:
    """Return the statement with a literal LIMIT: a generic plan assumes that a parameter is a tenth of the table."""
    return _PICK_NEXT.format(limit=limit) + _CLAIM


_JSON_COLUMNS = [Claim._fields.index(name) for name in ("params", "retry_policy", "checkpoint", "context", "artifacts")]


def parse_claim(row: Sequence[Any]) -> Claim:
    """Build a claim from a row that the statement returned. JSON columns arrive as text."""
    values = list(row)
    for index in _JSON_COLUMNS:
        if (text := values[index]) is not None:
            values[index] = json.loads(text) if text != "{}" else {}
    values[-1] = values[-1] or {}
    return Claim._make(values)


# ---------------------------------------------------------------------- SQLite

_SQLITE_PICK_NEXT = f"""
    SELECT id FROM jobscheduler_job
    WHERE gate = 3 AND NOT remote
      AND job_type IN (SELECT value FROM json_each(%s))
      AND (%s IS NULL OR resource IN (SELECT value FROM json_each(%s)))
      AND (%s IS NULL OR tenant = %s)
      AND NOT (deadline_at IS NOT NULL AND deadline_at <= %s AND dispatched_at IS NULL)
      AND (%s OR NOT EXISTS (SELECT 1 FROM jobscheduler_concurrencylimit WHERE {IN_FORCE}))
    ORDER BY priority DESC, position, created_at, id
    LIMIT %s
"""
_SQLITE_PICK_CHOSEN = """
    SELECT id FROM jobscheduler_job
    WHERE id IN (SELECT value FROM json_each(%s)) AND gate = 3 AND NOT remote
      AND NOT (deadline_at IS NOT NULL AND deadline_at <= %s AND dispatched_at IS NULL)
    ORDER BY priority DESC, position, created_at, id
"""
_SQLITE_CLAIM = f"""
    UPDATE jobscheduler_job
    SET status = 'RUNNING',
        status_reason = '',
        gate = 0,
        lease_owner = g.owner,
        lease_token = g.token,
        lease_expires_at = %s,
        heartbeat_at = %s,
        beat_clock = %s,
        holds_lane = (lane_id IS NOT NULL),
        recheck_at = NULL,
        cancel_requested = false,
        cancel_mode = '',
        dispatched_at = coalesce(dispatched_at, %s),
        fence = fence + 1
    FROM (SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS token,
                 json_extract(value, '$[2]') AS owner FROM json_each(%s)) g
    WHERE jobscheduler_job.id = g.id
    RETURNING {", ".join(f"jobscheduler_job.{name}" for name in CLAIM_COLUMNS)}
"""
_SQLITE_OPEN_RUNS = """
    INSERT INTO jobscheduler_jobrun (job_id, status, started_at, error, artifacts, worker)
    SELECT value, 'RUNNING', %s, '', '{}', %s FROM json_each(%s)
    WHERE NOT EXISTS (SELECT 1 FROM jobscheduler_jobrun WHERE job_id = value)
"""
_SQLITE_EVENTS = f"""
    INSERT INTO jobscheduler_jobevent (job_id, kind, from_status, to_status, reason, data, actor_kind, actor_name, at)
    SELECT json_extract(value, '$[0]'), 'RUNNING', 'QUEUED', 'RUNNING', '{ADMITTED_REASON}',
           json_object('lease_id', json_extract(value, '$[1]')), 'worker', %s, %s
    FROM json_each(%s)
"""
_SQLITE_ARTIFACTS = """
    SELECT job_id, artifacts FROM jobscheduler_jobrun WHERE job_id IN (SELECT value FROM json_each(%s))
"""


def _pick_next_on_sqlite(connection: Any, served: ServedParams, limit: int, limits_locked: bool) -> Statement:
    now = to_stored(connection, timezone.now())
    wanted = [served.types, served.resources, served.resources, served.tenant, served.tenant, now]
    return _SQLITE_PICK_NEXT, [*wanted, limits_locked, limit]


def _claim_on_sqlite(
    connection: Any, pick: Statement, lease_request: LeaseRequest, slots: Sequence[int]
) -> list[Claim]:
    now = timezone.now()
    at = to_stored(connection, now)
    expires_at = to_stored(connection, now + timedelta(seconds=lease_request.lease_sec))
    with connection.cursor() as cursor:
        cursor.execute(*pick)
        picked = [row[0] for row in cursor.fetchall()]
        if not picked:
            return []
        leases = [
            (job_id, uuid4().hex, f"{lease_request.process}#{slot}")
            for job_id, slot in zip(picked, slots, strict=False)
        ]
        cursor.execute(_SQLITE_CLAIM, [expires_at, at, read_beat_clock(), at, json.dumps(leases)])
        rows = {row[0]: row for row in cursor.fetchall()}
        job_ids = json.dumps([job_id for job_id in picked if job_id in rows])
        cursor.execute(_SQLITE_OPEN_RUNS, [at, lease_request.worker, job_ids])
        starts = json.dumps([(job_id, str(UUID(token))) for job_id, token, _owner in leases if job_id in rows])
        cursor.execute(_SQLITE_EVENTS, [lease_request.worker, at, starts])
        cursor.execute(_SQLITE_ARTIFACTS, [job_ids])
        artifacts = dict(cursor.fetchall())
    return [_parse_sqlite_claim(rows[job_id], artifacts[job_id]) for job_id in picked if job_id in rows]


_UUID_COLUMNS = [CLAIM_COLUMNS.index(name) for name in ("id", "lease_token", "group_id", "retry_of_id")]


def _parse_sqlite_claim(row: Sequence[Any], artifacts: str) -> Claim:
    values = list(row)
    for index in _UUID_COLUMNS:
        values[index] = to_uuid(values[index])
    return parse_claim([*values, artifacts])


# ---------------------------------------------------------------------- heartbeat


class StopRequest(NamedTuple):
    """The stop request of a running job, as its row has it."""

    cancel_requested: bool
    cancel_mode: str


def renew_leases(
    connection: Any,
    leases: Sequence[tuple[UUID, UUID]],
    lease_sec: float,
    clock: str | None = None,
    *,
    not_after: datetime | None = None,
) -> dict[UUID, StopRequest]:
    """Renew leases (job, token) whose rows are not locked. Return the stop request of each renewed job.

    A missing job is locked, or its lease is lost: check again. `clock` is the monotonic clock that SQLite stores, too.
    PostgreSQL may execute the statement long after it was sent: past `not_after`, it renews nothing.
    """
    if db.is_sqlite(connection):
        return _renew_on_sqlite(connection, leases, lease_sec, clock)
    params = {
        "lease_sec": lease_sec,
        "job_ids": to_array(job_id for job_id, _ in leases),
        "tokens": to_array(token for _, token in leases),
        "not_after": not_after,
    }
    rows = execute(connection, RENEW, params)
    return {job_id: StopRequest(requested, mode) for job_id, requested, mode in rows}


RENEW = f"""
    UPDATE jobscheduler_job
    SET lease_expires_at = {NOW} + %(lease_sec)s * interval '1 second', heartbeat_at = {NOW}
    WHERE id = ANY(ARRAY(
        SELECT id FROM jobscheduler_job WHERE id = ANY(%(job_ids)s::uuid[]) AND lease_token = ANY(%(tokens)s::uuid[])
          AND clock_timestamp() <= coalesce(%(not_after)s::timestamptz, 'infinity')
        ORDER BY id FOR NO KEY UPDATE SKIP LOCKED))
    RETURNING id, cancel_requested, cancel_mode
"""
_SQLITE_RENEW = """
    UPDATE jobscheduler_job SET lease_expires_at = %s, heartbeat_at = %s, beat_clock = %s
    WHERE id IN (SELECT json_extract(value, '$[0]') FROM json_each(%s))
      AND lease_token IN (SELECT json_extract(value, '$[1]') FROM json_each(%s))
    RETURNING id, cancel_requested, cancel_mode
"""


def _renew_on_sqlite(
    connection: Any, leases: Sequence[tuple[UUID, UUID]], lease_sec: float, clock: str | None
) -> dict[UUID, StopRequest]:
    now = timezone.now()
    expires_at = to_stored(connection, now + timedelta(seconds=lease_sec))
    pairs = json.dumps([(job_id.hex, token.hex) for job_id, token in leases])
    with connection.cursor() as cursor:
        cursor.execute(_SQLITE_RENEW, [expires_at, to_stored(connection, now), clock, pairs, pairs])
        return {to_uuid(job_id): StopRequest(bool(requested), mode) for job_id, requested, mode in cursor.fetchall()}
