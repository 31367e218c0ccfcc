"""Find ready jobs in dispatch order, past the limits that are full.

First in a window at the head of the queue. Where that is short, by a walk over the flows (combinations of tenant, job
type, resource and addon) that have ready jobs: its cost does not grow with the jobs of a full limit that stand ahead.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from jobs import db
from jobs.engine.sql import to_uuid
from jobs.engine.sql.prepared import execute
from jobs.policies.concurrency import Flow

WINDOW = 1000
ORDER = "priority DESC, position, created_at, id"
COLUMNS = "id, tenant, job_type, resource, addon_id, priority, position, created_at"


class ReadyJob(NamedTuple):
    id: UUID
    flow: Flow
    priority: int


class Filter(NamedTuple):
    """Conditions on ready jobs: SQL and its parameters; empty SQL stands for no condition."""

    sql: str = ""
    params: Sequence[Any] = ()

    def __and__(self, other: Filter) -> Filter:
        return Filter(" AND ".join(filter(None, (self.sql, other.sql))), [*self.params, *other.params])


def find_in_window(connection: Any, limit: int, index: Filter, wanted: Filter) -> list[ReadyJob]:
    """Return the first `limit` wanted jobs among the WINDOW first ones. `index` is what the window's index starts with."""
    sql = f"""
    SELECT {COLUMNS} FROM (
        SELECT {COLUMNS} FROM jobscheduler_job WHERE gate = 3 AND {index.sql} ORDER BY {ORDER} LIMIT {WINDOW}
    ) first WHERE {wanted.sql or "1 = 1"} ORDER BY {ORDER} LIMIT {limit:d}
    """
    params = [*index.params, *wanted.params]
    if not db.is_sqlite(connection):
        return [_to_ready_job(row) for row in execute(connection, sql, params)]
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return [_to_ready_job(row) for row in cursor.fetchall()]


def find_across_flows(
    connection: Any, limit: int, wanted: Filter, *, remote: bool = False, flows: int | None = None
) -> list[ReadyJob]:
    """Return the first `limit` jobs of flows whose head is wanted, in dispatch order; with `flows`, so many of each."""
    ready = f"gate = 3 AND {'remote' if remote else 'NOT remote'}"
    if db.is_sqlite(connection):
        return _find_across_flows_on_sqlite(connection, ready, wanted, limit, flows)
    heads, total = (limit, f"LIMIT {limit:d}") if flows is None else (flows, "")
    sql = f"""
    WITH RECURSIVE head AS (
        (SELECT flow_id, {COLUMNS} FROM jobscheduler_job WHERE {ready} ORDER BY flow_id, {ORDER} LIMIT 1)
        UNION ALL
        SELECT following.* FROM head CROSS JOIN LATERAL (
            SELECT flow_id, {COLUMNS} FROM jobscheduler_job
            WHERE {ready} AND flow_id > head.flow_id ORDER BY flow_id, {ORDER} LIMIT 1
        ) following
    ),
    best AS MATERIALIZED (SELECT flow_id FROM head WHERE {wanted.sql or "1 = 1"} ORDER BY {ORDER} LIMIT {heads:d})
    SELECT job.* FROM best CROSS JOIN LATERAL (
        SELECT {COLUMNS} FROM jobscheduler_job  -- an equation would let the planner walk all flows in dispatch order
        WHERE flow_id BETWEEN best.flow_id AND best.flow_id AND {ready} ORDER BY flow_id, {ORDER} LIMIT {limit:d}
    ) job ORDER BY {ORDER} {total}
    """
    return [_to_ready_job(row) for row in execute(connection, sql, list(wanted.params))]


def _find_across_flows_on_sqlite(
    connection: Any, ready: str, wanted: Filter, limit: int, flows: int | None
) -> list[ReadyJob]:
    heads = f"""
    WITH RECURSIVE flow(flow_id) AS (
        SELECT min(flow_id) FROM jobscheduler_job WHERE {ready}
        UNION ALL
        SELECT (SELECT min(flow_id) FROM jobscheduler_job WHERE {ready} AND flow_id > flow.flow_id)
        FROM flow WHERE flow.flow_id IS NOT NULL
    )
    SELECT head.flow_id FROM flow JOIN jobscheduler_job head ON head.id = (
        SELECT id FROM jobscheduler_job j WHERE j.flow_id = flow.flow_id AND {ready} ORDER BY {ORDER} LIMIT 1)
    WHERE {wanted.sql or "1 = 1"} ORDER BY {ORDER} LIMIT {flows or limit:d}
    """
    jobs = f"SELECT {COLUMNS} FROM jobscheduler_job WHERE flow_id = %s AND {ready} ORDER BY {ORDER} LIMIT {limit:d}"
    rows: list[Any] = []
    with connection.cursor() as cursor:
        cursor.execute(heads, wanted.params)
        for (flow_id,) in cursor.fetchall():
            cursor.execute(jobs, [flow_id])
            rows += cursor.fetchall()
    rows.sort(key=lambda row: (-row[5], row[6], row[7], row[0]))
    return [_to_ready_job(row) for row in (rows if flows else rows[:limit])]


def _to_ready_job(row: Sequence[Any]) -> ReadyJob:
    return ReadyJob(to_uuid(row[0]), Flow(*row[1:5]), row[5])
