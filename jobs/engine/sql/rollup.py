"""The rollup of finished jobs, one row per minute and key: its columns, how a job is added, how rows are compacted."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from jobs import db
from jobs.models.rollup import DAY_WRITER, MAX_NAMES, OTHER_NAMES

KEY_COLUMNS = ("minute", "worker", "tenant", "resource", "job_type", "outcome", "wait_bucket", "run_bucket")
SUM_COLUMNS = ("jobs", "wait_sec", "run_sec", "retried", "recovered")
INSERT_INTO_ROLLUP = f"INSERT INTO jobscheduler_jobminute AS m ({', '.join((*KEY_COLUMNS, *SUM_COLUMNS))})"
ADD_ON_CONFLICT = f"""
    ON CONFLICT ({", ".join(KEY_COLUMNS)})
    DO UPDATE SET {", ".join(f"{name} = m.{name} + excluded.{name}" for name in SUM_COLUMNS)}
"""


def compact_rows(connection: Any, start: datetime, end: datetime, writer: str) -> None:
    """Replace the rows of this period by their sums, in the caller's transaction.

    Of each tenant, MAX_NAMES resources and job types are kept; the rest become OTHER_NAMES.
    """
    adapt = connection.ops.adapt_datetimefield_value
    params = {"start": adapt(start), "end": adapt(end), "writer": writer}
    with connection.cursor() as cursor:
        for statement in _SQLITE_COMPACT if db.is_sqlite(connection) else _POSTGRESQL_COMPACT:
            cursor.execute(statement, params)


# Of each tenant, the names with the most jobs of the period are kept; the others become one.
_RANKED = ", ".join(
    f"""{name}_rank AS (
        SELECT tenant, {name}, row_number() OVER (PARTITION BY tenant ORDER BY sum(jobs) DESC, {name}) AS place
        FROM gone GROUP BY tenant, {name}
    )"""
    for name in ("resource", "job_type")
)
_INSERT_SUMS = f"""
    {INSERT_INTO_ROLLUP}
    SELECT %(start)s, %(writer)s, tenant, resource, job_type, outcome, wait_bucket, run_bucket,
           {", ".join(f"sum({name})" for name in SUM_COLUMNS)}
    FROM (
        SELECT gone.tenant, outcome, wait_bucket, run_bucket, {", ".join(SUM_COLUMNS)},
               CASE WHEN resource_rank.place <= {MAX_NAMES} THEN gone.resource ELSE '{OTHER_NAMES}' END AS resource,
               CASE WHEN job_type_rank.place <= {MAX_NAMES} THEN gone.job_type ELSE '{OTHER_NAMES}' END AS job_type
        FROM gone
        JOIN resource_rank ON resource_rank.tenant = gone.tenant AND resource_rank.resource = gone.resource
        JOIN job_type_rank ON job_type_rank.tenant = gone.tenant AND job_type_rank.job_type = gone.job_type
    ) folded
    WHERE true  -- or SQLite reads the conflict clause as a join
    GROUP BY {", ".join(KEY_COLUMNS[2:])}
    {ADD_ON_CONFLICT}
"""
_FINER_ROWS = f"""jobscheduler_jobminute
    WHERE minute >= %(start)s AND minute < %(end)s AND worker <> %(writer)s AND worker <> '{DAY_WRITER}'"""
# One statement deletes a row and adds it: two compactions at the same time cannot count it twice.
_POSTGRESQL_COMPACT = (f"WITH gone AS (DELETE FROM {_FINER_ROWS} RETURNING *), {_RANKED} {_INSERT_SUMS}",)
# SQLite has no such statement, but no other connection writes during this transaction.
_SQLITE_COMPACT = (
    f"WITH gone AS (SELECT * FROM {_FINER_ROWS}), {_RANKED} {_INSERT_SUMS}",
    f"DELETE FROM {_FINER_ROWS}",
)
