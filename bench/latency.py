"""Latency until an idle worker starts a job: `python -m bench.latency`."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Mapping
from statistics import quantiles
from typing import Any
from uuid import UUID

from bench.jobs import NOOP, PROGRESS
from bench.measure import Calibration, Ceiling, Rates, format_table
from bench.processes import POLL_SEC, Processes, raise_if_failed
from bench.sizes import scale_size
from bench.worker_cost import cpu_sec, idle_sec, wait_for_workers
from bench.workers import START_SEC, empty_tables, run_workers

TITLE = "Pick-up latency of an idle worker, by the database's clock"
SAMPLES = 200
SLOTS = 4
PAUSE_SEC = (0.01, 0.05)  # between two jobs: the worker is idle again, and the random length avoids a rhythm
TIMEOUT_SEC = 30.0
IDLE_WORKERS = 3  # beside one that writes progress
CPU_RESTING = "% of a processor, at rest beside a worker that writes progress"
CPU_WRITING = "% of a processor, writes progress"


def measure(calibration: Calibration, rounds: int | None) -> Rates:
    """Return the rates. Django must be set up on the database that is measured."""
    from django.db import connection

    return _measure_latencies() | (_measure_idle_cpu() if connection.vendor == "sqlite" else {})


def _measure_latencies() -> Rates:
    """Return milliseconds from SUBMITTED to RUNNING, and to COMPLETED, of one job at a time."""
    empty_tables()
    rates: Rates = {"picked up": [], "completed": []}
    with run_workers(1, SLOTS) as processes:
        for number in range(scale_size(SAMPLES, minimum=20) + 1):
            sample = _measure_job(processes, START_SEC if number == 0 else TIMEOUT_SEC)
            time.sleep(random.uniform(*PAUSE_SEC))
            for name, value in sample.items() if number else ():  # the first job waited for the worker's start
                rates[name].append(value)
    return rates


def _measure_idle_cpu() -> Rates:
    """Return the CPU usage in percent of three idle workers and one that writes progress, all on one file."""
    from jobs.models import Job
    from jobs.services.jobs import enqueue

    empty_tables()
    settle, seconds = idle_sec()
    with run_workers(1, SLOTS) as writer:
        job_id = enqueue(PROGRESS).id
        deadline = time.monotonic() + START_SEC
        while not Job.objects.filter(pk=job_id, status="RUNNING").exists():
            raise_if_failed(writer)
            if time.monotonic() > deadline:
                raise RuntimeError(f"the job did not start within {START_SEC:g} s")
            time.sleep(POLL_SEC)
        with run_workers(IDLE_WORKERS, SLOTS) as idle:
            wait_for_workers(IDLE_WORKERS + 1)
            time.sleep(settle)
            before = [cpu_sec(process.pid) for process in (*writer, *idle)]
            time.sleep(seconds)
            after = [cpu_sec(process.pid) for process in (*writer, *idle)]
            raise_if_failed([*writer, *idle])
    writes, *rests = ((end - start) / seconds * 100 for start, end in zip(before, after, strict=True))
    return {CPU_WRITING: [writes], CPU_RESTING: rests}


def _measure_job(processes: Processes, seconds: float) -> dict[str, float]:
    from jobs.services.jobs import enqueue

    job_id = enqueue(NOOP).id
    deadline = time.monotonic() + seconds
    while "COMPLETED" not in (at := _read_events(job_id)):
        raise_if_failed(processes)
        if time.monotonic() > deadline:
            raise RuntimeError(f"a job was not completed within {seconds:g} s; its events: {sorted(at)}")
        time.sleep(POLL_SEC / 4)
    return {"picked up": _elapsed_ms(at, "RUNNING"), "completed": _elapsed_ms(at, "COMPLETED")}


def _read_events(job_id: UUID) -> dict[str, Any]:
    from jobs.models import JobEvent

    return dict(JobEvent.objects.filter(job_id=job_id).values_list("kind", "at"))


def _elapsed_ms(at: dict[str, Any], kind: str) -> float:
    milliseconds: float = (at[kind] - at["SUBMITTED"]).total_seconds() * 1000
    return milliseconds


def percentile(values: list[float], which: int) -> float:
    return quantiles(values, n=100, method="inclusive")[which - 1]


def report(results: Mapping[str, Rates]) -> str:
    heads = ("database", "until", "samples", "p50 ms", "p90 ms", "p99 ms", "longest")
    rows = [
        (database, name, len(values), *(f"{percentile(values, p):.2f}" for p in (50, 90, 99)), f"{max(values):.2f}")
        for database, rates in results.items()
        for name, values in rates.items()
        if name not in (CPU_RESTING, CPU_WRITING)
    ]
    return format_table(heads, rows)


def bars(results: Mapping[str, Rates]) -> list[Ceiling]:
    checked = []
    if (rates := results.get("postgresql")) is not None:
        checked += [
            Ceiling("pick-up latency, p50", percentile(rates["picked up"], 50), 3, 1, " ms"),
            Ceiling("pick-up latency, p99", percentile(rates["picked up"], 99), 10, 3, " ms"),
        ]
    if (rates := results.get("sqlite")) is not None:
        checked += [
            Ceiling("pick-up latency on SQLite, p50", percentile(rates["picked up"], 50), 30, None, " ms"),
            Ceiling(
                f"CPU of a worker on SQLite that writes progress, {IDLE_WORKERS} others",
                rates[CPU_WRITING][0],
                1,
                None,
                " %",
            ),
            Ceiling("CPU of the busiest of these others, at rest", max(rates[CPU_RESTING]), 1, None, " %"),
        ]
    return checked


if __name__ == "__main__":
    from bench.__main__ import main

    sys.exit(main(["latency", *sys.argv[1:]]))
