"""Lock the limits, then count the active jobs and direct calls.

Two statements: in one, the count would use a snapshot older than the lock, and limits would be exceeded.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

from jobs import db
from jobs.db import NOW, Statement, execute_together

_SQLITE_NOW = "strftime('%Y-%m-%d %H:%M:%f', 'now')"


class LimitRow(NamedTuple):
    """A limit as its row has it."""

    scope: str
    key: str
    max: int | None
    paused: bool


class ActiveRow(NamedTuple):
    """The number of active jobs and direct calls of one flow, or of its direct calls that wait for a slot."""

    tenant: str
    job_type: str
    resource: str
    addon_id: str
    waits: bool
    expired: bool  # the lease of a direct call
    active: int


class CostRow(NamedTuple):
    """The cost units of one addon that are in use or reserved."""

    addon_id: str
    cost_units: int
    expired: bool


def read_limits(connection: Any, *, all_rows: bool, lock: bool) -> tuple[list[LimitRow], list[ActiveRow]]:
    """Return the limits in force (or all), with `lock` locked, and the active counts, read after the lock."""
    limits = _limits(all_rows, lock and not db.is_sqlite(connection))
    rows, active = run_together(connection, limits, _active(connection.vendor))
    return [LimitRow(*row) for row in rows], [ActiveRow(*row) for row in active]


def count_active(connection: Any) -> list[ActiveRow]:
    """Return the active counts of all flows."""
    (active,) = run_together(connection, _active(connection.vendor))
    return [ActiveRow(*row) for row in active]


def read_costs(connection: Any) -> list[CostRow]:
    """Return the cost units in use: active jobs, admission leases, and direct calls, even those that wait."""
    (costs,) = run_together(connection, _costs(connection.vendor))
    return [CostRow(*row) for row in costs]


def run_together(connection: Any, *statements: Statement) -> list[list[Sequence[Any]]]:
    """Run statements in one round trip where the database can."""
    if not db.is_sqlite(connection):
        return execute_together(connection, *statements)
    with connection.cursor() as cursor:
        return [cursor.execute(*statement).fetchall() for statement in statements]


@cache
def _limits(all_rows: bool, lock: bool) -> Statement:
    return (
        "SELECT scope, key, max, paused FROM jobscheduler_concurrencylimit"
        + (" WHERE max IS NOT NULL OR paused" if not all_rows else "")
        + " ORDER BY id"
        + (" FOR NO KEY UPDATE" if lock else ""),
        None,
    )


@cache
def _active(vendor: str) -> Statement:
    now = NOW if vendor == "postgresql" else _SQLITE_NOW
    sql = f"""
    SELECT tenant, job_type, resource, addon_id, waits, expired, count(*) FROM (
        SELECT tenant, job_type, resource, addon_id, false AS waits, false AS expired FROM jobscheduler_job
        WHERE status IN ('DISPATCHING', 'RUNNING')
        UNION ALL
        SELECT tenant, job_type, resource, addon_id, granted_at IS NULL, expires_at < {now} FROM jobscheduler_lease
        WHERE ended_at IS NULL AND kind = 'DIRECT'
    ) active GROUP BY tenant, job_type, resource, addon_id, waits, expired
    """
    return sql, None


@cache
def _costs(vendor: str) -> Statement:
    now = NOW if vendor == "postgresql" else _SQLITE_NOW
    sql = f"""
    SELECT addon_id, sum(cost_units), expired FROM (
        SELECT addon_id, cost_units, false AS expired FROM jobscheduler_job WHERE status IN ('DISPATCHING', 'RUNNING')
        UNION ALL
        SELECT addon_id, cost_units, expires_at < {now} FROM jobscheduler_lease
        WHERE ended_at IS NULL AND (kind = 'DIRECT' OR granted_at IS NOT NULL)
    ) active GROUP BY addon_id, expired
    """
    return sql, None
