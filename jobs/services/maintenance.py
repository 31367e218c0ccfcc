"""Maintenance: register the tasks of other apps, run all tasks once, prune old jobs, recover lost ones."""

from __future__ import annotations

import logging
from datetime import timedelta

from jobs.engine.maintenance import recovery, retention, runner
from jobs.engine.maintenance.retention import delete_jobs as delete_jobs
from jobs.engine.maintenance.retention import register_cascade as register_cascade
from jobs.engine.maintenance.retention import register_veto as register_veto
from jobs.engine.maintenance.runner import list_tasks as list_tasks
from jobs.engine.maintenance.runner import register_task as register_task

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


def prune(older_than: timedelta, *, dry_run: bool = False) -> retention.PruneCounts:
    """Delete finished jobs and groups that have not changed for this long. Return the numbers of rows."""
    prune_pass = retention.PrunePass(older_than, dry_run=dry_run)
    prune_pass.run()
    return prune_pass.counts


def recover_lost_jobs() -> int:
    """Fail the jobs whose lease has expired, and retry those that have retries left. Return their number."""
    return recovery.LeaseReaper().run_round()


def _drop_traceback(record: logging.LogRecord) -> bool:
    record.exc_info = None
    return True
