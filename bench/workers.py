"""Our own workers on the database of this process, and the queue they find: Django must be set up."""

from __future__ import annotations

import json
import os
import resource
import sys
from contextlib import AbstractContextManager
from typing import IO, Any

from bench.processes import Processes, await_ends, started

BULK = 10_000
START_SEC = 60.0
SLOWEST = 50  # jobs a second; slower is as good as stuck

NO_LIMITS: dict[str, Any] = {"global": None}


def workers(
    count: int, slots: int, *options: str, limits: dict[str, Any] = NO_LIMITS, log: IO[bytes] | None = None
) -> AbstractContextManager[Processes]:
    """Start workers that log warnings only; with a file for their log, at their default level."""
    level = [] if log is not None else ["-v", "0"]
    command = [sys.executable, "manage.py", "worker", *level, f"--concurrency={slots}", *options]
    environment = {**os.environ, "JOBSCHEDULER_LIMITS": json.dumps(limits)}
    return started([command] * count, environment, stderr=log)


def work_off(
    count: int, slots: int, jobs: int, *, limits: dict[str, Any] = NO_LIMITS, log: IO[bytes] | None = None
) -> float:
    """Run workers until nothing is left; the seconds of processor time they took, their start included."""
    before = _children_sec()
    with workers(count, slots, "--burst", limits=limits, log=log) as processes:
        await_ends(processes, START_SEC + jobs / SLOWEST)
    return _children_sec() - before


def fill(job_type: str, jobs: int) -> None:
    """An empty database, then so many jobs by the front door; statistics as after the next autovacuum."""
    from django.db import connection

    from jobs.services.jobs import enqueue_many

    empty()
    for start in range(0, jobs, BULK):
        numbers = range(start, min(start + BULK, jobs))
        enqueue_many([{"job_type": job_type, "params": {"number": number}} for number in numbers])
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")


def empty() -> None:
    from django.apps import apps
    from django.core.management.color import no_style
    from django.db import connection

    tables = [model._meta.db_table for model in apps.get_app_config("jobscheduler_jobs").get_models()]
    connection.ops.execute_sql_flush(connection.ops.sql_flush(no_style(), tables, allow_cascade=True))


def rate_of_the_middle(jobs: int) -> float:
    """Jobs a second while the middle four fifths of them ended: neither start nor last breath count."""
    from jobs.models import JobRun

    ended = JobRun.objects.filter(status="COMPLETED").order_by("finished_at").values_list("finished_at", flat=True)
    times = list(ended)
    if len(times) != jobs:
        raise RuntimeError(f"{len(times)} of {jobs} jobs completed")
    first, last = jobs // 10, jobs * 9 // 10
    return (last - first) / (times[last] - times[first]).total_seconds()


def _children_sec() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime
