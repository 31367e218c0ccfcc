"""The first jobs of every flow that has work, for those who let flows take turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jobs.engine.sql.prepared import execute

ORDER = "priority DESC, position, created_at, id"
COLUMNS = "id, tenant, job_type, resource, addon_id, priority, position, created_at"
MOST_FLOWS = 500
Row = tuple[Any, ...]  # id, tenant, job type, resource, addon, priority


def first_of_each(connection: Any, conditions: str, params: Sequence[Any], most: int, *, remote: bool) -> list[Row]:
    """Up to so many jobs of each flow whose head meets the conditions, all in dispatch order."""
    ready = f"gate = 3 AND {'remote' if remote else 'NOT remote'}"
    if connection.vendor == "postgresql":
        rows = execute(connection, _postgres(ready, conditions, most), list(params))
    else:
        rows = _sqlite(connection, ready, conditions, params, most)
    return [row[:6] for row in rows]


def _postgres(ready: str, conditions: str, most: int) -> str:
    return f"""
    WITH RECURSIVE head AS (
        (SELECT flow_id, {COLUMNS} FROM jobscheduler_job WHERE {ready} ORDER BY flow_id, {ORDER} LIMIT 1)
        UNION ALL
        SELECT following.* FROM head CROSS JOIN LATERAL (
            SELECT flow_id, {COLUMNS} FROM jobscheduler_job
            WHERE {ready} AND flow_id > head.flow_id ORDER BY flow_id, {ORDER} LIMIT 1
        ) following
    ),
    best AS MATERIALIZED (SELECT flow_id FROM head WHERE {conditions} ORDER BY {ORDER} LIMIT {MOST_FLOWS:d})
    SELECT job.* FROM best CROSS JOIN LATERAL (
        SELECT {COLUMNS} FROM jobscheduler_job  -- an equation would let the planner walk all flows in dispatch order
        WHERE flow_id BETWEEN best.flow_id AND best.flow_id AND {ready} ORDER BY flow_id, {ORDER} LIMIT {most:d}
    ) job ORDER BY {ORDER}
    """


def _sqlite(connection: Any, ready: str, conditions: str, params: Sequence[Any], most: int) -> list[Row]:
    with connection.cursor() as cursor:
        cursor.execute(
            f"""
            WITH RECURSIVE flow(flow_id) AS (
                SELECT min(flow_id) FROM jobscheduler_job WHERE {ready}
                UNION ALL
                SELECT (SELECT min(flow_id) FROM jobscheduler_job WHERE {ready} AND flow_id > flow.flow_id)
                FROM flow WHERE flow.flow_id IS NOT NULL
            )
            SELECT head.flow_id FROM flow JOIN jobscheduler_job head ON head.id = (
                SELECT id FROM jobscheduler_job j WHERE j.flow_id = flow.flow_id AND {ready}
                ORDER BY {ORDER} LIMIT 1)
            WHERE {conditions} ORDER BY {ORDER} LIMIT {MOST_FLOWS:d}
            """,
            params,
        )
        found: list[Row] = []
        for (flow,) in cursor.fetchall():
            cursor.execute(
                f"SELECT {COLUMNS} FROM jobscheduler_job WHERE flow_id = %s AND {ready} ORDER BY {ORDER} LIMIT {most:d}",
                [flow],
            )
            found += cursor.fetchall()
    return sorted(found, key=lambda row: (-row[5], *row[6:8], row[0]))
