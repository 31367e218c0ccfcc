"""Record results of jobs.

One result writes the job's new status, its run, its event, the mark on its target, its retry, and the rollup. Nothing
changes unless the lease token matches; a result that was recorded before is reported as a replay.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django.utils import timezone
from pydantic_core import to_json

from jobs import db
from jobs.db import NOW, Statement, execute, execute_together, to_array, to_uuid
from jobs.engine.sql import to_datetime, to_stored
from jobs.engine.sql.claim import Claim, LeaseRequest, ServedParams, claim_next, claim_next_statement, parse_claim
from jobs.engine.sql.columns import INITIAL_VALUES, SUBMISSION_COLUMNS
from jobs.engine.sql.rollup import ADD_ON_CONFLICT, INSERT_INTO_ROLLUP, KEY_COLUMNS, SUM_COLUMNS
from jobs.models.rollup import BUCKETS_SEC
from jobs.notifications import ENDED_CHANNEL


class ResultRow(NamedTuple):
    """One job's result. `data` goes to the event; `retry_in` (seconds) and `retry_id` request a retry."""

    id: UUID
    token: UUID
    status: str
    reason: str
    error: str
    exit_code: int
    artifacts: dict[str, Any]
    data: dict[str, Any] | None = None
    retry_in: float | None = None
    retry_id: UUID | None = None


class FinishedRow(NamedTuple):
    """The finish status of a result (done, replay or lost); the other fields are None unless it is done."""

    id: UUID
    finish_status: str
    tenant: str | None = None
    job_type: str | None = None
    retried_by: UUID | None = None
    in_group: bool = False
    has_waiter: bool = False  # a process waited for its end and was notified; False on SQLite


class FinishContext(NamedTuple):
    """The actor of the events, and the writer of the rollup rows."""

    actor_kind: str
    actor_name: str
    writer: str


def finish_jobs(connection: Any, results: Sequence[ResultRow], context: FinishContext) -> list[FinishedRow]:
    """Record results; return one row for each."""
    if db.is_sqlite(connection):
        return _finish_on_sqlite(connection, results, context)
    return [FinishedRow._make(row) for row in execute(connection, *finish_statement(results, context))]


def finish_and_claim(
    connection: Any,
    results: Sequence[ResultRow],
    context: FinishContext,
    served: ServedParams,
    lease_request: LeaseRequest,
    slots: Sequence[int],
) -> tuple[list[FinishedRow], list[Claim]]:
    """Run `finish_jobs` and `claim_next`: on PostgreSQL in one round trip, on SQLite in the caller's transaction."""
    if db.is_sqlite(connection):
        return finish_jobs(connection, results, context), claim_next(connection, served, lease_request, slots)
    finished, claimed = execute_together(
        connection, finish_statement(results, context), claim_next_statement(served, lease_request, slots)
    )
    return [FinishedRow._make(row) for row in finished], [parse_claim(row) for row in claimed]


# ---------------------------------------------------------------------- PostgreSQL

_BUCKETS = f"ARRAY[{', '.join(map(str, BUCKETS_SEC))}]::double precision[]"

# `leased` locks the jobs in the order of their ids, and drops those whose lease has ended by then. There is no retry
# after a stop request, and none that would start past the deadline.
_FINISH = f"""
    WITH given AS MATERIALIZED (
        SELECT * FROM json_to_recordset(%(results)s::json) AS t(
            id uuid, token uuid, status text, reason text, error text, exit_code integer, artifacts jsonb, data jsonb,
            retry_in double precision, retry_id uuid)
    ),
    leased AS MATERIALIZED (
        SELECT g.*, (g.retry_in IS NOT NULL AND NOT j.cancel_requested
                     AND (j.deadline_at IS NULL OR {NOW} + g.retry_in * interval '1 second' < j.deadline_at)) AS retried
        FROM jobscheduler_job j JOIN given g ON g.id = j.id AND g.token = j.lease_token
        WHERE j.id = ANY(%(ids)s::uuid[])
        ORDER BY j.id FOR NO KEY UPDATE OF j
    ),
    finished AS (
        UPDATE jobscheduler_job j
        SET status = l.status,
            status_reason = l.reason,
            gate = 0,
            lease_owner = NULL,
            lease_token = NULL,
            lease_expires_at = NULL,
            heartbeat_at = NULL,
            cancel_requested = false,
            cancel_mode = '',
            holds_lane = (j.lane_id IS NOT NULL AND l.status = 'FAILED' AND NOT l.retried)
        FROM leased l
        WHERE j.id = l.id
        RETURNING l.token, l.reason, l.error, l.exit_code, l.artifacts, l.data, l.retry_in, l.retry_id, l.retried,
                  j.status, j.created_at, j.position, j.attempt, j.checkpoint, j.unique_key, j.unique_until, j.id,
                  {", ".join(f"j.{n}" for n in SUBMISSION_COLUMNS)}
    ),
    run AS (
        UPDATE jobscheduler_jobrun r
        SET status = f.status, finished_at = {NOW}, exit_code = f.exit_code, error = f.error, artifacts = f.artifacts
        FROM finished f
        WHERE r.job_id = f.id
        RETURNING f.tenant, f.resource, f.job_type, f.status AS outcome, f.retried::integer AS retried,
                  CASE WHEN f.data->>'cause' IN ('LEASE_EXPIRED', 'CRASH_RECOVERY') THEN 1 ELSE 0 END AS recovered,
                  greatest(extract(epoch FROM r.started_at - f.created_at), 0) AS waited,
                  greatest(extract(epoch FROM {NOW} - r.started_at), 0) AS ran
    ),
    minute AS (
        {INSERT_INTO_ROLLUP}
        SELECT date_trunc('minute', {NOW}), %(writer)s, tenant, resource, job_type, outcome,
               width_bucket(waited, {_BUCKETS}), width_bucket(ran, {_BUCKETS}),
               count(*), sum(waited), sum(ran), sum(retried), sum(recovered)
        FROM run GROUP BY 3, 4, 5, 6, 7, 8 ORDER BY 3, 4, 5, 6, 7, 8
        {ADD_ON_CONFLICT}
    ),
    {{retry}}mark AS (
        INSERT INTO jobscheduler_lanemark (lane_id)
        SELECT DISTINCT lane_id FROM finished WHERE lane_id IS NOT NULL AND status <> 'FAILED'
    ),
    event AS (
        INSERT INTO jobscheduler_jobevent (
            job_id, kind, from_status, to_status, reason, token, data, actor_kind, actor_name, at)
        SELECT e.*, %(actor_kind)s, %(actor_name)s, {NOW} FROM (
            SELECT id, status, 'RUNNING', status, reason, token, data FROM finished
            {{retry_events}}
        ) e
    )
    SELECT g.id,
           CASE WHEN f.id IS NOT NULL THEN 'done'
                WHEN (SELECT true FROM jobscheduler_jobevent x  -- EXISTS may hash all events
                      WHERE x.job_id = g.id AND x.token = g.token AND x.kind = g.status
                        AND x.actor_kind = %(actor_kind)s AND x.actor_name = %(actor_name)s LIMIT 1) THEN 'replay'
                ELSE 'lost' END,
           f.tenant, f.job_type, CASE WHEN f.retried THEN f.retry_id END, f.group_id IS NOT NULL,
           (SELECT pg_notify('{ENDED_CHANNEL}', f.id::text)
            FROM jobscheduler_waiter w WHERE w.job_id = f.id LIMIT 1) IS NOT NULL
    FROM given g LEFT JOIN finished f ON f.id = g.id
"""


# A retry is inserted by the statement that records its failure. A statement that inserts jobs sets up all their
# indexes, even for no row: leaving the insert out where there is no retry saves 15 % of a turn with one slot.
_RETRY = f"""retry AS (
        INSERT INTO jobscheduler_job (
            id, {", ".join(SUBMISSION_COLUMNS)},
            status, gate, priority, position, created_at, not_before, hold, holds_lane,
            idempotency_hash, retry_of_id, attempt, checkpoint, unique_key, unique_until, {", ".join(INITIAL_VALUES)})
        SELECT retry_id, {", ".join(SUBMISSION_COLUMNS)}, 'QUEUED', 1, base_priority, position, {NOW},
               {NOW} + retry_in * interval '1 second', false, lane_id IS NOT NULL,
               '', id, attempt + 1, checkpoint, CASE WHEN unique_until = 'end' THEN unique_key END,
               nullif(unique_until, 'start'), {", ".join(INITIAL_VALUES.values())}
        FROM finished WHERE retried
        ON CONFLICT (retry_of_id) WHERE retry_of_id IS NOT NULL DO NOTHING
        RETURNING id, retry_of_id
    ),
    """
_RETRY_EVENTS = """UNION ALL
            SELECT retry_of_id, 'RETRY_CREATED', 'FAILED', 'FAILED', '', NULL, jsonb_build_object('retried_by', id)
            FROM retry
            UNION ALL
            SELECT id, 'SUBMITTED', '', 'QUEUED', 'retry of ' || retry_of_id, NULL, NULL FROM retry"""
FINISH = _FINISH.replace("{retry}", "").replace("{retry_events}", "")
FINISH_AND_RETRY = _FINISH.replace("{retry}", _RETRY).replace("{retry_events}", _RETRY_EVENTS)


def finish_statement(results: Sequence[ResultRow], context: FinishContext) -> Statement:
    """Return FINISH with its parameters, to be sent alone or in a pipeline with a claim."""
    params = {
        "ids": to_array(result.id for result in results),
        "results": to_json([result._asdict() for result in results]).decode(),
        **context._asdict(),
    }
    return FINISH if all(result.retry_in is None for result in results) else FINISH_AND_RETRY, params


# ---------------------------------------------------------------------- SQLite

_SQLITE_SELECT_LEASED = """
    SELECT j.id, j.tenant, j.resource, j.job_type, j.lane_id, j.group_id, j.cancel_requested, j.created_at,
           j.deadline_at
    FROM json_each(%s) g CROSS JOIN jobscheduler_job j
    WHERE j.id = json_extract(g.value, '$[0]') AND j.lease_token = json_extract(g.value, '$[1]')
"""
_SQLITE_FINISH = """
    UPDATE jobscheduler_job
    SET status = g.status,
        status_reason = g.reason,
        gate = 0,
        lease_owner = NULL,
        lease_token = NULL,
        lease_expires_at = NULL,
        heartbeat_at = NULL,
        beat_clock = NULL,
        cancel_requested = false,
        cancel_mode = '',
        holds_lane = (lane_id IS NOT NULL AND g.status = 'FAILED' AND NOT g.retried)
    FROM (SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS status,
                 json_extract(value, '$[2]') AS reason, json_extract(value, '$[3]') AS retried
          FROM json_each(%s)) g
    WHERE jobscheduler_job.id = g.id
"""
_SQLITE_CLOSE_RUNS = """
    UPDATE jobscheduler_jobrun
    SET status = g.status, finished_at = %s, exit_code = g.exit_code, error = g.error, artifacts = g.artifacts
    FROM (SELECT json_extract(value, '$[0]') AS id, json_extract(value, '$[1]') AS status,
                 json_extract(value, '$[2]') AS error, json_extract(value, '$[3]') AS exit_code,
                 json_extract(value, '$[4]') AS artifacts
          FROM json_each(%s)) g
    WHERE job_id = g.id
    RETURNING job_id, started_at
"""
_SQLITE_RETRY = f"""
    INSERT INTO jobscheduler_job (
        id, {", ".join(SUBMISSION_COLUMNS)}, status, gate, priority, position, created_at, not_before, hold, holds_lane,
        idempotency_hash, retry_of_id, attempt, checkpoint, unique_key, unique_until, {", ".join(INITIAL_VALUES)})
    SELECT %s, {", ".join(SUBMISSION_COLUMNS)},
           'QUEUED', 1, base_priority, position, %s, %s, false, lane_id IS NOT NULL,
           '', id, attempt + 1, checkpoint, CASE WHEN unique_until = 'end' THEN unique_key END,
           nullif(unique_until, 'start'), {", ".join(INITIAL_VALUES.values())}
    FROM jobscheduler_job WHERE id = %s
    ON CONFLICT (retry_of_id) DO NOTHING
"""
_SQLITE_MARK = "INSERT INTO jobscheduler_lanemark (lane_id) SELECT DISTINCT value FROM json_each(%s)"
_SQLITE_EVENT = """
    INSERT INTO jobscheduler_jobevent (
        job_id, kind, from_status, to_status, reason, token, data, actor_kind, actor_name, at)
    VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s, %s)
"""
_SQLITE_SELECT_REPLAYED = """
    SELECT e.job_id FROM json_each(%s) g CROSS JOIN jobscheduler_jobevent e
    WHERE e.job_id = json_extract(g.value, '$[0]') AND e.token = json_extract(g.value, '$[1]')
      AND e.kind = json_extract(g.value, '$[2]') AND e.actor_kind = %s AND e.actor_name = %s
"""
_SQLITE_MINUTE = f"{INSERT_INTO_ROLLUP} VALUES ({', '.join(['%s'] * len(KEY_COLUMNS + SUM_COLUMNS))}) {ADD_ON_CONFLICT}"


class _LeasedJob(NamedTuple):
    id: str
    tenant: str
    resource: str
    job_type: str
    lane_id: str | None
    group_id: str | None
    cancel_requested: bool
    created_at: str
    deadline_at: str | None

    def allows_retry(self, starts_at: datetime) -> bool:
        """Return whether a retry may be created: not after a stop request, and not past the deadline."""
        is_late = self.deadline_at is not None and starts_at >= to_datetime(self.deadline_at)
        return not self.cancel_requested and not is_late


def _finish_on_sqlite(connection: Any, results: Sequence[ResultRow], context: FinishContext) -> list[FinishedRow]:
    now = timezone.now()
    at = to_stored(connection, now)
    with connection.cursor() as cursor:
        cursor.execute(_SQLITE_SELECT_LEASED, [json.dumps([(result.id.hex, result.token.hex) for result in results])])
        leased = {to_uuid(row[0]): _LeasedJob(*row) for row in cursor.fetchall()}
        done = [result for result in results if result.id in leased]
        retried = {
            result.id: result
            for result in done
            if result.retry_in is not None and leased[result.id].allows_retry(now + timedelta(seconds=result.retry_in))
        }
        states = [(result.id.hex, result.status, result.reason, result.id in retried) for result in done]
        cursor.execute(_SQLITE_FINISH, [json.dumps(states)])
        runs = [(r.id.hex, r.status, r.error, r.exit_code, to_json(r.artifacts).decode()) for r in done]
        cursor.execute(_SQLITE_CLOSE_RUNS, [at, json.dumps(runs)])
        started_at = {to_uuid(job_id): started for job_id, started in cursor.fetchall()}
        for result in retried.values():
            not_before = to_stored(connection, now + timedelta(seconds=result.retry_in or 0.0))
            cursor.execute(_SQLITE_RETRY, [to_stored(connection, result.retry_id), at, not_before, result.id.hex])
        lanes = [
            leased[result.id].lane_id for result in done if result.status != "FAILED" and leased[result.id].lane_id
        ]
        if lanes:
            cursor.execute(_SQLITE_MARK, [json.dumps(lanes)])
        cursor.executemany(
            _SQLITE_EVENT,
            [
                [to_stored(connection, value) for value in (*event, context.actor_kind, context.actor_name, now)]
                for result in done
                for event in _build_events(result, result.id in retried)
            ],
        )
        entries = [
            _to_rollup_entry(result, leased[result.id], started_at.get(result.id), result.id in retried)
            for result in done
        ]
        _add_entries(connection, cursor, entries, now, context.writer)
        missing = [(r.id.hex, r.token.hex, r.status) for r in results if r.id not in leased]
        replayed: set[UUID] = set()
        if missing:
            cursor.execute(_SQLITE_SELECT_REPLAYED, [json.dumps(missing), context.actor_kind, context.actor_name])
            replayed = {to_uuid(job_id) for (job_id,) in cursor.fetchall()}
    return [_to_finished_row(result, leased.get(result.id), result.id in retried, replayed) for result in results]


def _build_events(result: ResultRow, retried: bool) -> list[tuple[Any, ...]]:
    """Return job, kind, from, to, reason, token and data of each event that a result writes."""
    data = None if result.data is None else to_json(result.data).decode()
    events: list[tuple[Any, ...]] = [
        (result.id, result.status, "RUNNING", result.status, result.reason, result.token, data)
    ]
    if retried:
        retried_by = json.dumps({"retried_by": str(result.retry_id)})
        events.append((result.id, "RETRY_CREATED", "FAILED", "FAILED", "", None, retried_by))
        events.append((result.retry_id, "SUBMITTED", "", "QUEUED", f"retry of {result.id}", None, None))
    return events


def _to_finished_row(result: ResultRow, job: _LeasedJob | None, retried: bool, replayed: set[UUID]) -> FinishedRow:
    if job is None:
        return FinishedRow(result.id, "replay" if result.id in replayed else "lost")
    retried_by = result.retry_id if retried else None
    return FinishedRow(result.id, "done", job.tenant, job.job_type, retried_by, job.group_id is not None)


# ---------------------------------------------------------------------- rollup of jobs that were finished otherwise


def add_to_rollup(connection: Any, job_ids: Sequence[UUID], writer: str) -> None:
    """Add jobs that were just finished, outside of `finish_jobs`, to the rollup."""
    if db.is_sqlite(connection):
        _add_to_rollup_on_sqlite(connection, job_ids, writer)
    else:
        execute(connection, ADD_TO_ROLLUP, {"ids": to_array(job_ids), "writer": writer})


ADD_TO_ROLLUP = f"""
    WITH finished AS (
        SELECT j.tenant, j.resource, j.job_type, j.status, r.started_at IS NOT NULL AS started,
               greatest(extract(epoch FROM r.started_at - j.created_at), 0) AS waited,
               greatest(extract(epoch FROM {NOW} - r.started_at), 0) AS ran
        FROM jobscheduler_job j LEFT JOIN jobscheduler_jobrun r ON r.job_id = j.id
        WHERE j.id = ANY(%(ids)s::uuid[])
    )
    {INSERT_INTO_ROLLUP}
    SELECT date_trunc('minute', {NOW}), %(writer)s, tenant, resource, job_type, status,
           CASE WHEN started THEN width_bucket(waited, {_BUCKETS}) ELSE -1 END,
           CASE WHEN started THEN width_bucket(ran, {_BUCKETS}) ELSE -1 END,
           count(*), sum(coalesce(waited, 0)), sum(coalesce(ran, 0)), 0, 0
    FROM finished GROUP BY 3, 4, 5, 6, 7, 8 ORDER BY 3, 4, 5, 6, 7, 8
    {ADD_ON_CONFLICT}
    RETURNING 1
"""
_SQLITE_SELECT_FINISHED = """
    SELECT j.tenant, j.resource, j.job_type, j.status, j.created_at, r.started_at
    FROM jobscheduler_job j LEFT JOIN jobscheduler_jobrun r ON r.job_id = j.id
    WHERE j.id IN (SELECT value FROM json_each(%s))
"""


class _RollupEntry(NamedTuple):
    tenant: str
    resource: str
    job_type: str
    outcome: str
    created_at: str | datetime
    started_at: str | datetime | None
    retried: bool = False
    recovered: bool = False


def _to_rollup_entry(result: ResultRow, job: _LeasedJob, started_at: str | None, retried: bool) -> _RollupEntry:
    recovered = (result.data or {}).get("cause") in ("LEASE_EXPIRED", "CRASH_RECOVERY")
    facts = (job.tenant, job.resource, job.job_type, result.status, job.created_at, started_at)
    return _RollupEntry(*facts, retried=retried, recovered=recovered)


def _add_to_rollup_on_sqlite(connection: Any, job_ids: Sequence[UUID], writer: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(_SQLITE_SELECT_FINISHED, [json.dumps([job_id.hex for job_id in job_ids])])
        entries = [_RollupEntry(*row) for row in cursor.fetchall()]
        _add_entries(connection, cursor, entries, timezone.now(), writer)


def _add_entries(connection: Any, cursor: Any, entries: Iterable[_RollupEntry], now: datetime, writer: str) -> None:
    sums: dict[tuple[Any, ...], list[float]] = {}
    for entry in entries:
        waited = ran = 0.0
        buckets = (-1, -1)
        if entry.started_at is not None:
            started_at = to_datetime(entry.started_at)
            waited = max((started_at - to_datetime(entry.created_at)).total_seconds(), 0.0)
            ran = max((now - started_at).total_seconds(), 0.0)
            buckets = (bisect_right(BUCKETS_SEC, waited), bisect_right(BUCKETS_SEC, ran))
        key = (entry.tenant, entry.resource, entry.job_type, entry.outcome, *buckets)
        added = sums.setdefault(key, [0, 0.0, 0.0, 0, 0])
        for index, value in enumerate((1, waited, ran, entry.retried, entry.recovered)):
            added[index] += value
    minute = to_stored(connection, now.replace(second=0, microsecond=0))
    cursor.executemany(_SQLITE_MINUTE, [(minute, writer, *key, *added) for key, added in sums.items()])
