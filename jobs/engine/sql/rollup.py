"""How an end is added to its minute: the key of a row of the rollup, and what is summed in it."""

from __future__ import annotations

KEY = ("minute", "worker", "tenant", "resource", "job_type", "outcome", "wait_bucket", "run_bucket")
SUMS = ("jobs", "wait_sec", "run_sec", "retried", "recovered")
INTO = f"INSERT INTO jobscheduler_jobminute AS m ({', '.join((*KEY, *SUMS))})"
ADD_UP = f"""
    ON CONFLICT ({", ".join(KEY)})
    DO UPDATE SET {", ".join(f"{name} = m.{name} + excluded.{name}" for name in SUMS)}
"""
