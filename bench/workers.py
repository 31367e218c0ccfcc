"""Workers on the database of this process, and their queue. Django must be set up."""

from __future__ import annotations

import json
import os
import resource
import sys
from contextlib import AbstractContextManager
from typing import IO, Any

from bench.processes import Processes, run_processes, wait_for_exit

BATCH_SIZE = 10_000
START_SEC = 60.0
MIN_JOBS_PER_SEC = 50  # a slower worker counts as stuck

NO_LIMITS: dict[str, Any] = {"global": None}


def run_workers(
    count: int, slots: int, *options: str, limits: dict[str, Any] = NO_LIMITS, log: IO[bytes] | None = None
) -> AbstractContextManager[Processes]:
    """Start workers that log warnings only; with a file for their log, at their default level."""
    level = [] if log is not None else ["-v", "0"]
    command = [sys.executable, "manage.py", "worker", *level, f"--concurrency={slots}", *options]
    environment = {**os.environ, "JOBSCHEDULER_LIMITS": json.dumps(limits)}
    return run_processes([command] * count, environment, stderr=log)


def drain_queue(
    count: int, slots: int, jobs: int, *, limits: dict[str, Any] = NO_LIMITS, log: IO[bytes] | None = None
) -> float:
    """Run workers until the queue is empty. Return the seconds of CPU time that they used, their start included."""
    before = _get_children_cpu_sec()
    with run_workers(count, slots, "--burst", limits=limits, log=log) as processes:
        wait_for_exit(processes, START_SEC + jobs / MIN_JOBS_PER_SEC)
    return _get_children_cpu_sec() - before


def fill_queue(job_type: str, jobs: int) -> None:
    """Empty the tables, enqueue jobs through the service, and update the statistics as autovacuum would."""
    from django.db import connection

    from jobs.services.jobs import enqueue_many

    empty_tables()
    for start in range(0, jobs, BATCH_SIZE):
        numbers = range(start, min(start + BATCH_SIZE, jobs))
        enqueue_many([{"job_type": job_type, "params": {"number": number}} for number in numbers])
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def empty_tables() -> None:
    """Delete all rows of the jobs app."""
    from django.apps import apps
    from django.core.management.color import no_style
    from django.db import connection

    tables = [model._meta.db_table for model in apps.get_app_config("jobscheduler_jobs").get_models()]
    connection.ops.execute_sql_flush(connection.ops.sql_flush(no_style(), tables, allow_cascade=True))


def measure_middle_rate(jobs: int) -> float:
    """Return jobs per second while the middle four fifths finished: without the start and the end of the drain."""
    from jobs.models import JobRun

    finished = JobRun.objects.filter(status="COMPLETED").order_by("finished_at").values_list("finished_at", flat=True)
    times = list(finished)
    if len(times) != jobs:
        raise RuntimeError(f"{len(times)} of {jobs} jobs completed")
    first, last = jobs // 10, jobs * 9 // 10
    return (last - first) / (times[last] - times[first]).total_seconds()


def _get_children_cpu_sec() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
