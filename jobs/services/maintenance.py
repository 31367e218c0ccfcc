"""Maintenance: register the tasks of other apps, run all tasks once, prune old jobs, recover lost ones."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from jobs.engine.maintenance import recovery, retention, runner
from jobs.engine.maintenance.retention import PruneCounts, register_cascade, register_veto
from jobs.engine.maintenance.runner import list_tasks, register_task

__all__ = [
    "PRUNE_PAUSE_SEC",
    "delete_jobs",
    "list_tasks",
    "prune",
    "recover_lost_jobs",
    "register_cascade",
    "register_task",
    "register_veto",
    "run_tasks",
]

PRUNE_PAUSE_SEC = retention.BUSY_SEC  # between two rounds while rows are left to delete


def run_tasks(*, log_tracebacks: bool = True) -> dict[str, object]:
    """Run every task once. Return by name its result, or the exception that it raised."""
    if log_tracebacks:
        return runner.run_tasks()
    runner.logger.addFilter(_drop_traceback)
    try:
        return runner.run_tasks()
    finally:
        runner.logger.removeFilter(_drop_traceback)


def prune(older_than: timedelta, *, dry_run: bool = False) -> PruneCounts:
    """Delete finished jobs and groups that have not changed for this long. Return the numbers of rows."""
    prune_pass = retention.PrunePass(older_than, dry_run=dry_run)
    prune_pass.run()
    return prune_pass.counts


def recover_lost_jobs() -> int:
    """Fail the jobs whose lease has expired, and retry those that have retries left. Return their number."""
    return recovery.LeaseReaper().run_round()


def delete_jobs(job_ids: Sequence[UUID]) -> None:
    """Delete jobs with all rows that refer to them, in the caller's transaction."""
    retention.delete_jobs(job_ids)


def _drop_traceback(record: logging.LogRecord) -> bool:
    record.exc_info = None
    return True
