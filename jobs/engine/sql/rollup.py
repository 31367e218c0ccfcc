"""How an end is added to its minute: the key of a row of the rollup, what is summed in it, and how rows are folded."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from jobs import db

KEY = ("minute", "worker", "tenant", "resource", "job_type", "outcome", "wait_bucket", "run_bucket")
SUMS = ("jobs", "wait_sec", "run_sec", "retried", "recovered")
INTO = f"INSERT INTO jobscheduler_jobminute AS m ({', '.join((*KEY, *SUMS))})"
ADD_UP = f"""
    ON CONFLICT ({", ".join(KEY)})
    DO UPDATE SET {", ".join(f"{name} = m.{name} + excluded.{name}" for name in SUMS)}
"""
HOUR, FOLDED = "@hour", "@day"  # the writers of folded rows; no worker can be named so


def fold_rows(connection: Any, start: datetime, end: datetime, writer: str) -> None:
    """Replace the finer rows of this span by their sums, in the caller's transaction."""
    adapt = connection.ops.adapt_datetimefield_value
    params = {"start": adapt(start), "end": adapt(end), "writer": writer}
    with connection.cursor() as cursor:
        for statement in _SQLITE_FOLD if db.is_sqlite(connection) else _POSTGRESQL_FOLD:
            cursor.execute(statement, params)


_GROUPED = ", ".join(KEY[2:])
_ADD_GONE = f"""
    {INTO}
    SELECT %(start)s, %(writer)s, {_GROUPED}, {", ".join(f"sum({name})" for name in SUMS)} FROM gone GROUP BY {_GROUPED}
    {ADD_UP}
"""
_FINER_ROWS = f"""jobscheduler_jobminute
    WHERE minute >= %(start)s AND minute < %(end)s AND worker <> %(writer)s AND worker <> '{FOLDED}'"""
# Whoever deletes a row adds it: two that fold at once cannot count it twice.
_POSTGRESQL_FOLD = (f"WITH gone AS (DELETE FROM {_FINER_ROWS} RETURNING *) {_ADD_GONE}",)
# There is no such statement on SQLite, but nobody else writes during our transaction.
_SQLITE_FOLD = (
    f"WITH gone AS (SELECT * FROM {_FINER_ROWS}) {_ADD_GONE}",
    f"DELETE FROM {_FINER_ROWS}",
)
