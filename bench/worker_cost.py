"""What a worker costs in processor time, per job that does nothing and at rest: `python -m bench.worker_cost`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from bench.jobs import ASYNC_NOOP, NOOP
from bench.measure import Calibration, Ceiling, Rates, table
from bench.processes import require_sound
from bench.sizes import is_quick, scaled
from bench.workers import empty, fill, work_off, workers

TITLE = "Worker cost"
ROUNDS = 3
JOBS = 40_000
PROCESSES, SLOTS = 2, 100
SETTLE_SEC, WATCH_SEC = 12.0, 30.0  # the server counts what a session did up to 10 s late
KINDS = {"sync": NOOP, "async": ASYNC_NOOP}
TICKS = os.sysconf("SC_CLK_TCK")


def measure(calibration: Calibration, rounds: int | None) -> Rates:
    """By name: milliseconds a job, and at rest the share of a processor in percent and transactions a second."""
    found: Rates = {}
    for _ in range(rounds or ROUNDS):
        for kind, job_type in KINDS.items():
            found.setdefault(f"ms a job, {kind}", []).append(_per_job(job_type))
    return found | _at_rest()


def _per_job(job_type: str) -> float:
    """What starting such workers costs is measured on an empty queue, and taken off."""
    empty()
    start = work_off(PROCESSES, SLOTS, 0)
    jobs = scaled(JOBS, least=4000)
    fill(job_type, jobs)
    return (work_off(PROCESSES, SLOTS, jobs) - start) / jobs * 1000


def _at_rest() -> Rates:
    empty()
    settle, seconds = rest_sec()
    with workers(1, 4) as processes:
        await_registered(1)
        time.sleep(settle)  # its start is not its rest
        before, said = cpu_sec(processes[0].pid), _transactions()
        time.sleep(seconds)
        require_sound(processes)
        found = {"idle: % of a processor": [(cpu_sec(processes[0].pid) - before) / seconds * 100]}
        if said is not None:
            found["idle: transactions a second"] = [((_transactions() or 0) - said - 1) / seconds]
    return found


def rest_sec() -> tuple[float, float]:
    """Return how long workers come to rest, and how long they are then watched."""
    return (3.0, 3.0) if is_quick() else (SETTLE_SEC, WATCH_SEC)


def await_registered(count: int) -> None:
    from bench.workers import START_SEC
    from jobs.models import Worker

    deadline = time.monotonic() + START_SEC
    while Worker.objects.count() < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{count} workers did not start within {START_SEC:g} s")
        time.sleep(0.1)


def _transactions() -> int | None:
    """All that were committed or rolled back; whoever asks counts as one."""
    from django.db import connection

    if connection.vendor != "postgresql":
        return None
    with connection.cursor() as cursor:
        cursor.execute("SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()")
        (count,) = cursor.fetchone()
    return int(count)


def cpu_sec(pid: int) -> float:
    after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(after_name[11]) + int(after_name[12])) / TICKS


def report(found: Mapping[str, Rates]) -> str:
    heads = ("database", "cost", "median", "smallest", "largest")
    rows = [
        (database, name, f"{median(values):.3f}", f"{min(values):.3f}", f"{max(values):.3f}")
        for database, costs in found.items()
        for name, values in costs.items()
    ]
    return table(heads, rows)


def bars(found: Mapping[str, Rates]) -> list[Ceiling]:
    if (costs := found.get("postgresql")) is None:
        return []
    per_job = {kind: median(costs[f"ms a job, {kind}"]) for kind in KINDS}
    cheapest = min(per_job, key=lambda kind: per_job[kind])
    return [
        Ceiling(f"worker CPU per no-op job ({cheapest})", per_job[cheapest], 0.3, 0.1, " ms"),
        Ceiling("idle worker, CPU", costs["idle: % of a processor"][0], 1, None, " %"),
        Ceiling("idle worker, transactions a second", costs["idle: transactions a second"][0], 1),
    ]


if __name__ == "__main__":
    from bench.__main__ import main

    sys.exit(main(["worker_cost", *sys.argv[1:]]))
