"""CPU time of a worker, per no-op job and idle: `python -m bench.worker_cost`."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from statistics import median

from bench.jobs import ASYNC_NOOP, NOOP
from bench.measure import Calibration, Ceiling, Rates, format_table
from bench.processes import raise_if_failed
from bench.sizes import is_quick, scale_size
from bench.workers import drain_queue, empty_tables, fill_queue, run_workers

TITLE = "Worker cost"
ROUNDS = 3
JOBS = 40_000
PROCESSES, SLOTS = 2, 100
SETTLE_SEC, IDLE_SEC = 12.0, 30.0  # PostgreSQL counts transactions up to 10 s late
KINDS = {"sync": NOOP, "async": ASYNC_NOOP}
TICKS = os.sysconf("SC_CLK_TCK")


def measure(calibration: Calibration, rounds: int | None) -> Rates:
    """Return milliseconds per job, and of an idle worker the CPU usage in percent and transactions per second."""
    rates: Rates = {}
    for _ in range(rounds or ROUNDS):
        for kind, job_type in KINDS.items():
            rates.setdefault(f"ms a job, {kind}", []).append(_measure_job_cost(job_type))
    return rates | _measure_idle()


def _measure_job_cost(job_type: str) -> float:
    """Return milliseconds per job, without the cost of starting the workers: an empty queue measures that."""
    empty_tables()
    start = drain_queue(PROCESSES, SLOTS, 0)
    jobs = scale_size(JOBS, minimum=4000)
    fill_queue(job_type, jobs)
    return (drain_queue(PROCESSES, SLOTS, jobs) - start) / jobs * 1000


def _measure_idle() -> Rates:
    empty_tables()
    settle, seconds = idle_sec()
    with run_workers(1, 4) as processes:
        wait_for_workers(1)
        time.sleep(settle)  # the start of a worker is not idle time
        cpu_before, transactions_before = cpu_sec(processes[0].pid), _count_transactions()
        time.sleep(seconds)
        raise_if_failed(processes)
        rates = {"idle: % of a processor": [(cpu_sec(processes[0].pid) - cpu_before) / seconds * 100]}
        if transactions_before is not None:
            rates["idle: transactions a second"] = [((_count_transactions() or 0) - transactions_before - 1) / seconds]
    return rates


def idle_sec() -> tuple[float, float]:
    """Return how long workers take to become idle, and how long they are then measured."""
    return (3.0, 3.0) if is_quick() else (SETTLE_SEC, IDLE_SEC)


def wait_for_workers(count: int) -> None:
    from bench.workers import START_SEC
    from jobs.models import Worker

    deadline = time.monotonic() + START_SEC
    while Worker.objects.count() < count:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{count} workers did not start within {START_SEC:g} s")
        time.sleep(0.1)


def _count_transactions() -> int | None:
    """Return the number of committed and rolled back transactions; this query is one of them."""
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


def report(results: Mapping[str, Rates]) -> str:
    heads = ("database", "cost", "median", "smallest", "largest")
    rows = [
        (database, name, f"{median(values):.3f}", f"{min(values):.3f}", f"{max(values):.3f}")
        for database, costs in results.items()
        for name, values in costs.items()
    ]
    return format_table(heads, rows)


def bars(results: Mapping[str, Rates]) -> list[Ceiling]:
    if (costs := results.get("postgresql")) is None:
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
