"""The rollup of finished jobs, one row per minute and key: its columns, how a job is added, how rows are compacted."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from jobs import db
from jobs.models.rollup import DAY_WRITER

KEY_COLUMNS = ("minute", "worker", "tenant", "resource", "job_type", "outcome", "wait_bucket", "run_bucket")
SUM_COLUMNS = ("jobs", "wait_sec", "run_sec", "retried", "recovered")
INSERT_INTO_ROLLUP = f"INSERT INTO jobscheduler_jobminute AS m ({', '.join((*KEY_COLUMNS, *SUM_COLUMNS))})"
ADD_ON_CONFLICT = f"""
    ON CONFLICT ({", ".join(KEY_COLUMNS)})
    DO UPDATE SET {", ".join(f"{name} = m.{name} + excluded.{name}" for name in SUM_COLUMNS)}
"""


def compact_rows(connection: Any, start: datetime, end: datetime, writer: str) -> None:
    """Replace the rows of this period by their sums, in the caller's transaction."""
    adapt = connection.ops.adapt_datetimefield_value
    params = {"start": adapt(start), "end": adapt(end), "writer": writer}
    with connection.cursor() as cursor:
        for statement in _SQLITE_COMPACT if db.is_sqlite(connection) else _POSTGRESQL_COMPACT:
            cursor.execute(statement, params)


_GROUPED = ", ".join(KEY_COLUMNS[2:])
_INSERT_SUMS = f"""
    {INSERT_INTO_ROLLUP}
    SELECT %(start)s, %(writer)s, {_GROUPED}, {", ".join(f"sum({name})" for name in SUM_COLUMNS)}
    FROM gone GROUP BY {_GROUPED}
    {ADD_ON_CONFLICT}
"""
_FINER_ROWS = f"""jobscheduler_jobminute
    WHERE minute >= %(start)s AND minute < %(end)s AND worker <> %(writer)s AND worker <> '{DAY_WRITER}'"""
# One statement deletes a row and adds it: two compactions at the same time cannot count it twice.
_POSTGRESQL_COMPACT = (f"WITH gone AS (DELETE FROM {_FINER_ROWS} RETURNING *) {_INSERT_SUMS}",)
# SQLite has no such statement, but no other connection writes during this transaction.
_SQLITE_COMPACT = (
    f"WITH gone AS (SELECT * FROM {_FINER_ROWS}) {_INSERT_SUMS}",
    f"DELETE FROM {_FINER_ROWS}",
)
