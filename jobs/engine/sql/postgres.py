"""The hot statements on PostgreSQL: one statement a batch, prepared on the server."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any
from uuid import UUID

from jobs.engine.sql.columns import BLANK, INSERTED, SUBMISSION
from jobs.models.rollup import BUCKETS_SEC

NOW = "statement_timestamp()"
QUEUED_GATE = f"CASE WHEN not_before > {NOW} THEN 1 WHEN lane_id IS NOT NULL THEN 2 ELSE 3 END"
_BUCKETS = f"ARRAY[{', '.join(map(str, BUCKETS_SEC))}]::double precision[]"

_ADD_UP = """
    ON CONFLICT (minute, worker, job_type, outcome, wait_bucket, run_bucket)
    DO UPDATE SET jobs = m.jobs + excluded.jobs, wait_sec = m.wait_sec + excluded.wait_sec,
                  run_sec = m.run_sec + excluded.run_sec
"""


def insert_jobs(connection: Any, rows: Sequence[Sequence[Any]], actor: tuple[str, str], reason: str) -> list[Any]:
    """Insert rows (in the order of INSERTED) with event and mark; returns what was new: id, created_at, position, gate."""
    if len(rows) == 1:
        return execute(connection, _insert_one(), [*rows[0], *actor, reason])
    return execute(connection, _insert_many(), [*(list(column) for column in zip(*rows, strict=True)), *actor, reason])


@cache
def _insert_one() -> str:
    values = ", ".join(f"%s::{kind}" for kind in INSERTED.values())
    return _insert(f"SELECT * FROM (VALUES ({values}, 1)) AS t({', '.join(INSERTED)}, n)")


@cache
def _insert_many() -> str:
    # A jsonb[] parameter is slower to build than text[]: cast each element instead.
    arrays = ", ".join(f"%s::{'text' if kind == 'jsonb' else kind}[]" for kind in INSERTED.values())
    picked = ", ".join(f"{name}::jsonb" if kind == "jsonb" else name for name, kind in INSERTED.items())
    return _insert(f"SELECT {picked}, n FROM unnest({arrays}) WITH ORDINALITY AS t({', '.join(INSERTED)}, n)")


def _insert(source: str) -> str:
    names = [name for name in INSERTED if name != "position"]
    return f"""
    WITH given AS MATERIALIZED ({source}),
    born AS (
        INSERT INTO jobscheduler_job ({", ".join(names)}, priority, position, created_at, gate, {", ".join(BLANK)})
        SELECT {", ".join(names)}, base_priority,
               coalesce(position, (extract(epoch FROM {NOW}) * 1000000)::bigint * 1024 + n - 1), {NOW},
               CASE WHEN status = 'QUEUED' THEN {QUEUED_GATE} ELSE 0 END, {", ".join(BLANK.values())}
        FROM given
        ORDER BY idempotency_key, n  -- in one order, or two batches that share keys would wait for each other
        ON CONFLICT (tenant, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING
        RETURNING id, created_at, position, gate, status, lane_id
    ),
    event AS (
        INSERT INTO jobscheduler_jobevent (job_id, at, kind, from_status, to_status, actor_kind, actor_name, reason)
        SELECT id, {NOW}, 'SUBMITTED', '', status, %s, %s, %s FROM born
    ),
    mark AS (INSERT INTO jobscheduler_lanemark (lane_id) SELECT DISTINCT lane_id FROM born WHERE gate = 2)
    SELECT id, created_at, position, gate FROM born
    """


def finish_jobs(connection: Any, ends: Sequence[Sequence[Any]], actor: tuple[str, str]) -> list[Any]:
    """Record ends (id, token, status, reason, error, exit_code, artifacts, data, retry_in, retry_id).

    Returns a row an end: id, verdict (done | replay | lost), tenant, retried_by, in a group?
    """
    columns = [list(column) for column in zip(*ends, strict=True)]
    retries = any(end[8] is not None for end in ends)
    return execute(connection, _finish(retries), {"actor_kind": actor[0], "actor": actor[1], **_named(columns)})


_END = ("id", "token", "status", "reason", "error", "exit_code", "artifacts", "data", "retry_in", "retry_id")


def _named(columns: list[list[Any]]) -> dict[str, Any]:
    return dict(zip(_END, columns, strict=True))


@cache
def _finish(retries: bool) -> str:
    kept = ", ".join(f"j.{name}" for name in SUBMISSION)
    retry = f"""
    retry AS (
        INSERT INTO jobscheduler_job (id, {", ".join(SUBMISSION)}, status, gate, priority, position, created_at, not_before,
                                      hold, holds_lane, idempotency_hash, retry_of_id, attempt, checkpoint, {", ".join(BLANK)})
        SELECT e.retry_id, {kept}, 'QUEUED', 1, j.base_priority, j.position, {NOW}, {NOW} + e.retry_in * interval '1 second',
               false, j.lane_id IS NOT NULL, '', j.id, j.attempt + 1, j.checkpoint, {", ".join(BLANK.values())}
        FROM ended e JOIN jobscheduler_job j ON j.id = e.id WHERE e.retried
        ON CONFLICT (retry_of_id) DO NOTHING
        RETURNING id, retry_of_id
    ),"""
    retry_events = """
        UNION ALL SELECT retry_of_id, 'RETRY_CREATED', 'FAILED', 'FAILED', '', NULL, jsonb_build_object('retried_by', id)
        FROM retry
        UNION ALL SELECT id, 'SUBMITTED', '', 'QUEUED', 'retry of ' || retry_of_id, NULL, NULL FROM retry"""
    return f"""
    WITH given AS MATERIALIZED (
        SELECT * FROM unnest(%(id)s::uuid[], %(token)s::uuid[], %(status)s::text[], %(reason)s::text[], %(error)s::text[],
                             %(exit_code)s::integer[], %(artifacts)s::text[], %(data)s::text[],
                             %(retry_in)s::double precision[], %(retry_id)s::uuid[])
             AS t({", ".join(_END)})
    ),
    ended AS (
        UPDATE jobscheduler_job j
        SET status = g.status, status_reason = g.reason, gate = 0,
            lease_owner = NULL, lease_token = NULL, lease_expires_at = NULL, heartbeat_at = NULL,
            holds_lane = (j.lane_id IS NOT NULL AND g.status = 'FAILED' AND (g.retry_in IS NULL OR j.cancel_requested))
        FROM given g
        WHERE j.id = ANY(%(id)s::uuid[]) AND j.id = g.id AND j.lease_token = g.token
        RETURNING j.id, g.token, g.status, g.reason, g.error, g.exit_code, g.artifacts, g.data, g.retry_in, g.retry_id,
                  j.job_type, j.tenant, j.lane_id, j.group_id, j.created_at,
                  (g.retry_in IS NOT NULL AND NOT j.cancel_requested) AS retried
    ),
    run AS (
        UPDATE jobscheduler_jobrun r
        SET status = e.status, finished_at = {NOW}, exit_code = e.exit_code, error = e.error, artifacts = e.artifacts::jsonb
        FROM ended e WHERE r.job_id = e.id
        RETURNING e.job_type, e.status AS outcome, greatest(extract(epoch FROM r.started_at - e.created_at), 0) AS waited,
                  greatest(extract(epoch FROM {NOW} - r.started_at), 0) AS ran
    ),{retry if retries else ""}
    event AS (
        INSERT INTO jobscheduler_jobevent
               (job_id, kind, from_status, to_status, reason, token, data, at, actor_kind, actor_name)
        SELECT t.*, {NOW}, %(actor_kind)s, %(actor)s
        FROM (SELECT id, status AS kind, 'RUNNING' AS source, status AS target, reason, token, data::jsonb FROM ended
              {retry_events if retries else ""}) t
    ),
    mark AS (
        INSERT INTO jobscheduler_lanemark (lane_id)
        SELECT DISTINCT lane_id FROM ended WHERE lane_id IS NOT NULL AND status <> 'FAILED'
    ),
    minute AS (
        INSERT INTO jobscheduler_jobminute AS m
               (minute, worker, job_type, outcome, wait_bucket, run_bucket, jobs, wait_sec, run_sec)
        SELECT date_trunc('minute', {NOW}), %(actor)s, job_type, outcome, width_bucket(waited, {_BUCKETS}),
               width_bucket(ran, {_BUCKETS}), count(*), sum(waited), sum(ran)
        FROM run GROUP BY 3, 4, 5, 6 ORDER BY 3, 4, 5, 6
        {_ADD_UP}
    )
    SELECT g.id,
           CASE WHEN e.id IS NOT NULL THEN 'done'
                WHEN EXISTS (SELECT 1 FROM jobscheduler_jobevent x WHERE x.job_id = g.id AND x.token = g.token) THEN 'replay'
                ELSE 'lost' END,
           e.tenant, CASE WHEN e.retried THEN e.retry_id END, e.group_id IS NOT NULL
    FROM given g LEFT JOIN ended e ON e.id = g.id
    """


def count_ends(connection: Any, ids: Sequence[UUID], writer: str) -> None:
    """Add jobs that have just ended, outside of `finish_jobs`, to their minute."""
    execute(connection, _COUNT, {"ids": list(ids), "writer": writer})


_COUNT = f"""
    WITH ended AS (
        SELECT j.job_type, j.status, greatest(extract(epoch FROM r.started_at - j.created_at), 0) AS waited,
               greatest(extract(epoch FROM {NOW} - r.started_at), 0) AS ran, r.started_at IS NOT NULL AS started
        FROM jobscheduler_job j LEFT JOIN jobscheduler_jobrun r ON r.job_id = j.id WHERE j.id = ANY(%(ids)s::uuid[])
    )
    INSERT INTO jobscheduler_jobminute AS m
           (minute, worker, job_type, outcome, wait_bucket, run_bucket, jobs, wait_sec, run_sec)
    SELECT date_trunc('minute', {NOW}), %(writer)s, job_type, status,
           CASE WHEN started THEN width_bucket(waited, {_BUCKETS}) ELSE -1 END,
           CASE WHEN started THEN width_bucket(ran, {_BUCKETS}) ELSE -1 END,
           count(*), sum(coalesce(waited, 0)), sum(coalesce(ran, 0))
    FROM ended GROUP BY 3, 4, 5, 6 ORDER BY 3, 4, 5, 6
    {_ADD_UP}
    RETURNING 1
"""


def execute(connection: Any, sql: str, params: Any) -> list[Any]:
    """Run a statement, prepared on the server unless the host logs or wraps its queries."""
    if connection.queries_logged or connection.execute_wrappers:
        with connection.cursor() as cursor:
            cursor.execute(sql, params)
            return cursor.fetchall()
    import psycopg

    connection.ensure_connection()
    connection.validate_no_broken_transaction()
    raw = connection.connection
    if raw.prepare_threshold is None:
        raw.prepare_threshold = _ONLY_WHEN_ASKED
    with connection.wrap_database_errors, psycopg.Cursor(raw) as cursor:
        cursor.execute(sql, params, prepare=_may_prepare(connection))
        return cursor.fetchall()


_ONLY_WHEN_ASKED = 1_000_000_000  # None would forbid preparing altogether; the host's own statements stay as they were


def _may_prepare(connection: Any) -> bool:
    """Behind a transaction pooler, Django is told to disable server-side cursors; statements cannot be kept either."""
    return not connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS", False)
