"""Find ready jobs in dispatch order that no full limit blocks.

The first search reads a window at the head of the queue. If it finds too few, the second reads the first jobs of each
flow (combination of tenant, job type, resource and addon): its cost does not grow with the jobs that a full limit
blocks.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple
from uuid import UUID

from jobs import db
from jobs.db import execute, to_uuid
from jobs.policies.concurrency import Flow

WINDOW = 1000
NO_LIMIT = 2**31 - 1
ORDER = "priority DESC, position, created_at, id"
ORDER_COLUMNS = "priority, position, created_at, id"
TURNS = f"row_number() OVER (PARTITION BY tenant, addon_id ORDER BY {ORDER})"


class CandidateRow(NamedTuple):
    """What is read of a ready job."""

    id: Any
    tenant: str
    job_type: str
    resource: str
    addon_id: str
    priority: int
    position: int
    created_at: Any
    token_limit: int | None
    tokens_used: int


COLUMNS = ", ".join(CandidateRow._fields)


class ReadyJob(NamedTuple):
    """A job that could start now."""

    id: UUID
    flow: Flow
    priority: int
    token_limit: int | None
    tokens_used: int


class Filter(NamedTuple):
    """A condition on ready jobs: SQL and its parameters. Empty SQL means no condition."""

    sql: str = ""
    params: Sequence[Any] = ()

    def __and__(self, other: Filter) -> Filter:
        return Filter(" AND ".join(filter(None, (self.sql, other.sql))), [*self.params, *other.params])


def find_in_window(connection: Any, limit: int, index: Filter, wanted: Filter) -> list[ReadyJob]:
    """Return the first `limit` wanted jobs of the first WINDOW ready ones. `index` matches the start of an index."""
    sql = f"""
    SELECT {COLUMNS} FROM (
        SELECT {COLUMNS} FROM jobscheduler_job WHERE gate = 3 AND {index.sql} ORDER BY {ORDER} LIMIT {WINDOW}
    ) first WHERE {wanted.sql or "1 = 1"} ORDER BY {ORDER} LIMIT {limit:d}
    """
    params = [*index.params, *wanted.params]
    if not db.is_sqlite(connection):
        return [_to_ready_job(CandidateRow(*row)) for row in execute(connection, sql, params)]
    with connection.cursor() as cursor:
        cursor.execute(sql, params)
        return [_to_ready_job(CandidateRow(*row)) for row in cursor.fetchall()]


def find_across_flows(
    connection: Any,
    limit: int,
    wanted: Filter,
    *,
    remote: bool = False,
    flows: int | None = None,
    turns: int = NO_LIMIT,
) -> list[ReadyJob]:
    """Return the first `limit` jobs of the flows whose first job is wanted, in dispatch order.

    With `flows`, return up to `limit` jobs of each of so many flows: the first flow of every tenant and addon, then the
    second of each, so that one of them with many flows does not crowd out the others; and at most `turns` of each.
    """
    # The condition of the indexes by flow alone. By "gate = 3" the planner may read all ready jobs for each flow, in an
    # index of another order: 10,000 flows took 40 s after an ANALYZE that had found no ready job.
    ready = f"gate > 2 AND {'remote' if remote else 'NOT remote'}"
    if db.is_sqlite(connection):
        return _find_across_flows_on_sqlite(connection, ready, wanted, limit, flows, turns)
    heads, total = (limit, f"LIMIT {limit:d}") if flows is None else (flows, "")
    turn, order = ("1", ORDER) if flows is None else (TURNS, f"turn, {ORDER}")
    sql = f"""
    WITH RECURSIVE head AS (
        (SELECT flow_id, {COLUMNS} FROM jobscheduler_job WHERE {ready} ORDER BY flow_id, {ORDER} LIMIT 1)
        UNION ALL
        SELECT following.* FROM head CROSS JOIN LATERAL (
            SELECT flow_id, {COLUMNS} FROM jobscheduler_job
            WHERE {ready} AND flow_id > head.flow_id ORDER BY flow_id, {ORDER} LIMIT 1
        ) following
    ),
    ranked AS (SELECT *, {turn} AS turn FROM head WHERE {wanted.sql or "1 = 1"}),
    best AS MATERIALIZED (SELECT flow_id FROM ranked WHERE turn <= {turns:d} ORDER BY {order} LIMIT {heads:d})
    SELECT job.* FROM best CROSS JOIN LATERAL (
        SELECT {COLUMNS} FROM jobscheduler_job  -- with "=", the planner could scan all flows in dispatch order
        WHERE flow_id BETWEEN best.flow_id AND best.flow_id AND {ready} ORDER BY flow_id, {ORDER} LIMIT {limit:d}
    ) job ORDER BY {ORDER} {total}
    """
    return [_to_ready_job(CandidateRow(*row)) for row in execute(connection, sql, list(wanted.params))]


def _find_across_flows_on_sqlite(
    connection: Any, ready: str, wanted: Filter, limit: int, flows: int | None, turns: int
) -> list[ReadyJob]:
    turn, order = ("1", ORDER) if flows is None else (TURNS, f"turn, {ORDER}")
    heads = f"""
    WITH RECURSIVE flow(flow_id) AS (
        SELECT min(flow_id) FROM jobscheduler_job WHERE {ready}
        UNION ALL
        SELECT (SELECT min(flow_id) FROM jobscheduler_job WHERE {ready} AND flow_id > flow.flow_id)
        FROM flow WHERE flow.flow_id IS NOT NULL
    ),
    ranked AS (
        SELECT head.flow_id, {turn} AS turn, {ORDER_COLUMNS} FROM flow JOIN jobscheduler_job head ON head.id = (
            SELECT id FROM jobscheduler_job j WHERE j.flow_id = flow.flow_id AND {ready} ORDER BY {ORDER} LIMIT 1)
        WHERE {wanted.sql or "1 = 1"}
    )
    SELECT flow_id FROM ranked WHERE turn <= {turns:d} ORDER BY {order} LIMIT {flows or limit:d}
    """
    jobs = f"SELECT {COLUMNS} FROM jobscheduler_job WHERE flow_id = %s AND {ready} ORDER BY {ORDER} LIMIT {limit:d}"
    rows: list[CandidateRow] = []
    with connection.cursor() as cursor:
        cursor.execute(heads, wanted.params)
        for (flow_id,) in cursor.fetchall():
            cursor.execute(jobs, [flow_id])
            rows += [CandidateRow(*row) for row in cursor.fetchall()]
    rows.sort(key=lambda row: (-row.priority, row.position, row.created_at, row.id))
    return [_to_ready_job(row) for row in (rows if flows else rows[:limit])]


def _to_ready_job(row: CandidateRow) -> ReadyJob:
    return ReadyJob(to_uuid(row.id), Flow.of(row), row.priority, row.token_limit, row.tokens_used)
