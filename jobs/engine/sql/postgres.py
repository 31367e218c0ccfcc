"""The hot statements on PostgreSQL: one statement a batch, prepared on the server."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any
from uuid import UUID

from jobs.engine.sql.columns import CLOSED_LANE, LANE_HEAD
from jobs.engine.sql.postgres_moves import BUCKETS
from jobs.engine.sql.postgres_moves import a_claim as a_claim
from jobs.engine.sql.postgres_moves import claim_jobs as claim_jobs
from jobs.engine.sql.postgres_moves import exchange as exchange
from jobs.engine.sql.postgres_moves import finish_jobs as finish_jobs
from jobs.engine.sql.prepared import NOW, execute
from jobs.engine.sql.prepared import execute_together as execute_together
from jobs.engine.sql.rollup import ADD_UP, INTO


def pick_heads(
    connection: Any, conditions: str, params: Sequence[Any], most: int, *, remote: bool = False
) -> list[Any]:
    """The first `most` jobs of the flows that have work and meet the conditions: id and flow, in dispatch order.

    Walks the flows, not the jobs: it does not matter how many jobs of a closed flow stand before.
    """
    ready = f"gate = 3 AND {'remote' if remote else 'NOT remote'}"
    order = "priority DESC, position, created_at, id"
    columns = "id, tenant, job_type, resource, addon_id, priority, position, created_at"
    sql = f"""
    WITH RECURSIVE head AS (
        (SELECT flow_id, {columns} FROM jobscheduler_job WHERE {ready} ORDER BY flow_id, {order} LIMIT 1)
        UNION ALL
        SELECT following.* FROM head CROSS JOIN LATERAL (
            SELECT flow_id, {columns} FROM jobscheduler_job
            WHERE {ready} AND flow_id > head.flow_id ORDER BY flow_id, {order} LIMIT 1
        ) following
    ),
    best AS MATERIALIZED (SELECT flow_id FROM head WHERE {conditions} ORDER BY {order} LIMIT {most:d})
    SELECT job.id, job.tenant, job.job_type, job.resource, job.addon_id FROM best CROSS JOIN LATERAL (
        SELECT {columns} FROM jobscheduler_job  -- an equation would let the planner walk all flows in dispatch order
        WHERE flow_id BETWEEN best.flow_id AND best.flow_id AND {ready} ORDER BY flow_id, {order} LIMIT {most:d}
    ) job ORDER BY {order} LIMIT {most:d}
    """
    return execute(connection, sql, list(params))


def promote(connection: Any, most: int) -> tuple[int, int]:
    """Look at the lanes of the oldest marks again and let exactly the head of each free lane through.

    Call in a transaction. Takes what it can have without waiting; what it could not decide keeps its mark.
    Returns how many marks it looked at, and how many it left.
    """
    ((looked, missing, marks, lanes, ready),) = execute(connection, _promote_look(most), [])
    if missing:
        execute(connection, _MISSING_TARGETS, [])
        ((looked, _, marks, lanes, ready),) = execute(connection, _promote_look(most), [])
    decided = execute(connection, _PROMOTE, {"marks": marks, "lanes": lanes, "ready": ready}) if lanes else []
    return looked, looked - len(decided)


# Enqueue must not insert targets: two callers that name two new ones in opposite order would deadlock.
_MISSING_TARGETS = """
    INSERT INTO jobscheduler_target (id, tenant, key, paused, paused_by, reason)
    SELECT lane.lane_id, job.tenant, job.target, false, '', ''
    FROM (SELECT DISTINCT m.lane_id FROM jobscheduler_lanemark m LEFT JOIN jobscheduler_target t ON t.id = m.lane_id
          WHERE t.id IS NULL) lane
    CROSS JOIN LATERAL (
        SELECT tenant, target FROM jobscheduler_job WHERE lane_id = lane.lane_id AND gate IN (2, 3) LIMIT 1
    ) job
    ORDER BY 1 ON CONFLICT DO NOTHING RETURNING 1
"""


@cache
def _promote_look(most: int) -> str:
    return f"""
    WITH mark AS MATERIALIZED (
        SELECT id, lane_id FROM jobscheduler_lanemark ORDER BY id LIMIT {most:d} FOR UPDATE SKIP LOCKED
    ),
    lane AS MATERIALIZED (
        SELECT id FROM jobscheduler_target WHERE id IN (SELECT lane_id FROM mark) ORDER BY id FOR NO KEY UPDATE SKIP LOCKED
    ),
    ready AS MATERIALIZED (
        SELECT id FROM jobscheduler_job WHERE lane_id IN (SELECT id FROM lane) AND gate = 3 FOR UPDATE SKIP LOCKED
    ),
    new AS (  -- lanes that have no target yet; one without a job that waits never gets one: nothing to decide
        SELECT m.id, EXISTS (SELECT 1 FROM jobscheduler_job j WHERE j.lane_id = m.lane_id AND j.gate IN (2, 3)) AS waits
        FROM mark m WHERE NOT EXISTS (SELECT 1 FROM jobscheduler_target t WHERE t.id = m.lane_id)
    ),
    nobody AS (DELETE FROM jobscheduler_lanemark WHERE id IN (SELECT id FROM new WHERE NOT waits))
    SELECT (SELECT count(*) FROM mark) - (SELECT count(*) FROM new WHERE NOT waits), EXISTS (SELECT 1 FROM new WHERE waits),
           ARRAY(SELECT m.id FROM mark m JOIN lane l ON l.id = m.lane_id), ARRAY(SELECT id FROM lane),
           ARRAY(SELECT id FROM ready)
    """


# A new statement, hence a snapshot taken under those locks.
_PROMOTE = f"""
    WITH lane AS MATERIALIZED (
        SELECT t.id, {CLOSED_LANE} AS closed FROM jobscheduler_target t
        WHERE t.id = ANY(%(lanes)s::uuid[]) AND NOT EXISTS (  -- its ready job is just being claimed: later
            SELECT 1 FROM jobscheduler_job j WHERE j.lane_id = t.id AND j.gate = 3 AND j.id <> ALL(%(ready)s::uuid[]))
    ),
    head AS MATERIALIZED (SELECT t.id AS lane_id, {LANE_HEAD} AS id FROM lane t WHERE NOT t.closed),
    locked AS MATERIALIZED (
        SELECT id FROM jobscheduler_job WHERE id IN (SELECT id FROM head) FOR UPDATE SKIP LOCKED
    ),
    up AS (UPDATE jobscheduler_job SET gate = 3 WHERE id IN (SELECT id FROM locked) AND gate = 2),
    down AS (
        UPDATE jobscheduler_job SET gate = 2
        WHERE id = ANY(%(ready)s::uuid[]) AND gate = 3 AND lane_id IN (SELECT id FROM lane)
          AND id NOT IN (SELECT id FROM head WHERE id IS NOT NULL)
    )
    DELETE FROM jobscheduler_lanemark WHERE id = ANY(%(marks)s::bigint[]) AND lane_id IN (
        SELECT id FROM lane
        EXCEPT SELECT lane_id FROM head WHERE id IS NOT NULL AND id NOT IN (SELECT id FROM locked))
    RETURNING 1
"""


def wake_due(connection: Any, most: int) -> int:
    """Jobs whose time has come step forward: to their lane, or to the front."""
    sql = f"""
    WITH due AS MATERIALIZED (
        SELECT id FROM jobscheduler_job WHERE gate = 1 AND coalesce(recheck_at, not_before) <= {NOW}
        ORDER BY coalesce(recheck_at, not_before) LIMIT {most:d} FOR UPDATE SKIP LOCKED
    ),
    woken AS (
        UPDATE jobscheduler_job SET gate = CASE WHEN lane_id IS NULL THEN 3 ELSE 2 END, recheck_at = NULL
        WHERE id IN (SELECT id FROM due) RETURNING lane_id
    ),
    mark AS (INSERT INTO jobscheduler_lanemark (lane_id) SELECT DISTINCT lane_id FROM woken WHERE lane_id IS NOT NULL)
    SELECT count(*) FROM woken
    """
    return int(execute(connection, sql, [])[0][0])


def look_ahead(connection: Any) -> tuple[float | None, bool, bool]:
    """Seconds until the next job's time comes, whether some lane has a mark, and whether some job is ready."""
    sql = f"""
    SELECT (SELECT extract(epoch FROM min(coalesce(recheck_at, not_before)) - {NOW}) FROM jobscheduler_job WHERE gate = 1),
           EXISTS (SELECT 1 FROM jobscheduler_lanemark),
           (SELECT true FROM jobscheduler_job WHERE gate = 3 AND NOT remote
            ORDER BY priority DESC, position, created_at, id LIMIT 1) IS NOT NULL -- the order makes it a look into its index
    """
    ((until, marked, ready),) = execute(connection, sql, [])
    return None if until is None else float(until), marked, ready


def beat(
    connection: Any, leases: Sequence[tuple[UUID, UUID]], lease_sec: float, clock: str | None = None
) -> dict[UUID, tuple[bool, str]]:
    """Renew leases (job, token) whose rows are not locked. Returns the stop request of each renewed one.

    A job that is missing was locked, or is lost: look again.
    """
    sql = f"""
    UPDATE jobscheduler_job SET lease_expires_at = {NOW} + %s * interval '1 second', heartbeat_at = {NOW}
    WHERE id = ANY(ARRAY(SELECT id FROM jobscheduler_job WHERE id = ANY(%s::uuid[]) AND lease_token = ANY(%s::uuid[])
                         ORDER BY id FOR NO KEY UPDATE SKIP LOCKED))
    RETURNING id, cancel_requested, cancel_mode
    """
    ids, tokens = ([lease[side] for lease in leases] for side in (0, 1))
    return {row[0]: (row[1], row[2]) for row in execute(connection, sql, [lease_sec, ids, tokens])}


def count_ends(connection: Any, ids: Sequence[UUID], writer: str) -> None:
    """Add jobs that have just ended, outside of `finish_jobs`, to their minute."""
    execute(connection, _COUNT, {"ids": list(ids), "writer": writer})


_COUNT = f"""
    WITH ended AS (
        SELECT j.tenant, j.resource, j.job_type, j.status, greatest(extract(epoch FROM r.started_at - j.created_at), 0) AS waited,
               greatest(extract(epoch FROM {NOW} - r.started_at), 0) AS ran, r.started_at IS NOT NULL AS started
        FROM jobscheduler_job j LEFT JOIN jobscheduler_jobrun r ON r.job_id = j.id WHERE j.id = ANY(%(ids)s::uuid[])
    )
    {INTO}
    SELECT date_trunc('minute', {NOW}), %(writer)s, tenant, resource, job_type, status,
           CASE WHEN started THEN width_bucket(waited, {BUCKETS}) ELSE -1 END,
           CASE WHEN started THEN width_bucket(ran, {BUCKETS}) ELSE -1 END,
           count(*), sum(coalesce(waited, 0)), sum(coalesce(ran, 0)), 0, 0
    FROM ended GROUP BY 3, 4, 5, 6, 7, 8 ORDER BY 3, 4, 5, 6, 7, 8
    {ADD_UP}
    RETURNING 1
"""
