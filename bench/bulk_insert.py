"""Bulk inserts of job rows by PostgreSQL itself: valid rows, but without their events."""

from __future__ import annotations

from typing import Any

from jobs import ids
from jobs.engine.sql.columns import INITIAL_VALUES

# SQL of each column; `n` is the number of the row.
_DEFAULTS = {
    # Ordered by time like the scheduler's ids: it matters to the indexes.
    "id": """(lpad(to_hex((extract(epoch FROM clock_timestamp()) * 1000)::bigint), 12, '0')
             || '7' || lpad(to_hex(n % 4096), 3, '0') || '8' || substr(md5(random()::text), 1, 15))::uuid""",
    "status": "'QUEUED'",
    "gate": "3",
    "params": "'{}'",
    "tags": "'[]'",
    "tenant": "'default'",
    "target": "NULL",
    "lane_id": "NULL",
    "holds_lane": "false",
    "addon_id": "''",
    "resource": "'default'",
    "remote": "false",
    "priority": "50",
    "base_priority": "50",
    "position": "n * 1024",
    "created_at": "statement_timestamp()",
    "dispatched_at": "NULL",
    "time_sensitive": "false",
    "cost_units": "1",
    "constraints": "'{}'",
    "max_retries": "3",
    "retry_policy": "'{}'",
    "attempt": "1",
    "fence": "0",
    "hold": "false",
    "idempotency_hash": "''",
    "lease_owner": "NULL",
    "lease_token": "NULL",
    "lease_expires_at": "NULL",
    **INITIAL_VALUES,
}
RUNNING = {
    "status": "'RUNNING'",
    "gate": "0",
    "dispatched_at": "statement_timestamp()",
    "lease_owner": "'other@host#' || n",
    "lease_token": "gen_random_uuid()",
    "lease_expires_at": "statement_timestamp() + interval '1 hour'",
}


def insert_jobs(connection: Any, job_type: str, jobs: int, **columns: str) -> None:
    """Insert jobs, QUEUED and ready unless `columns` (SQL with the row's number `n`) override it."""
    limit_key = {"job_type": f"'{job_type}'", "flow_id": str(ids.derive_flow_id("default", job_type, "default", ""))}
    values = _DEFAULTS | limit_key | columns
    sql = f"""
        INSERT INTO jobscheduler_job ({", ".join(values)})
        SELECT {", ".join(values.values())} FROM generate_series(1, {jobs:d}) n
    """
    with connection.cursor() as cursor:
        cursor.execute(sql)


def spread_over_targets(targets: int, **columns: str) -> dict[str, str]:
    """Return columns that spread the rows over this number of targets."""
    target = f"'lane ' || n % {targets:d}"
    return {"target": target, "lane_id": f"md5({target})::uuid", **columns}
