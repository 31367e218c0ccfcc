"""How soon a worker with nothing to do picks up a job: `python -m bench.latency`."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Mapping
from statistics import quantiles
from typing import Any
from uuid import UUID

from bench.jobs import NOOP, PROGRESS
from bench.measure import Calibration, Ceiling, Rates, table
from bench.processes import LOOK_SEC, Processes, require_sound
from bench.sizes import scaled
from bench.worker_cost import await_registered, cpu_sec, rest_sec
from bench.workers import START_SEC, empty, workers

TITLE = "Pick-up latency of an idle worker, by the database's clock"
SAMPLES = 200
SLOTS = 4
CALM_SEC = (0.01, 0.05)  # between two jobs, so that the worker is at rest again and no rhythm helps it
PATIENCE_SEC = 30.0
RESTING = 3  # workers, beside one that writes progress
CPU_RESTING = "% of a processor, at rest beside a worker that writes progress"
CPU_WRITING = "% of a processor, writes progress"


def measure(calibration: Calibration, rounds: int | None) -> Rates:
    """In a process whose Django is set up on the database in question."""
    from django.db import connection

    return _latencies() | (_cpu_at_rest() if connection.vendor == "sqlite" else {})


def _latencies() -> Rates:
    """Milliseconds from SUBMITTED to RUNNING, and to COMPLETED, of one job at a time."""
    empty()
    found: Rates = {"picked up": [], "completed": []}
    with workers(1, SLOTS) as processes:
        for number in range(scaled(SAMPLES, least=20) + 1):
            sample = _sample(processes, START_SEC if number == 0 else PATIENCE_SEC)
            time.sleep(random.uniform(*CALM_SEC))
            for name, value in sample.items() if number else ():  # the first one waited for the worker's start
                found[name].append(value)
    return found


def _cpu_at_rest() -> Rates:
    """Percent of a processor of three workers at rest and one that writes progress, all on one file."""
    from jobs.models import Job
    from jobs.services.jobs import enqueue

    empty()
    settle, seconds = rest_sec()
    with workers(1, SLOTS) as writer:
        job_id = enqueue(PROGRESS).id
        deadline = time.monotonic() + START_SEC
        while not Job.objects.filter(pk=job_id, status="RUNNING").exists():
            require_sound(writer)
            if time.monotonic() > deadline:
                raise RuntimeError(f"the job did not start within {START_SEC:g} s")
            time.sleep(LOOK_SEC)
        with workers(RESTING, SLOTS) as resting:
            await_registered(RESTING + 1)
            time.sleep(settle)
            before = [cpu_sec(process.pid) for process in (*writer, *resting)]
            time.sleep(seconds)
            after = [cpu_sec(process.pid) for process in (*writer, *resting)]
            require_sound([*writer, *resting])
    writes, *rests = ((end - start) / seconds * 100 for start, end in zip(before, after, strict=True))
    return {CPU_WRITING: [writes], CPU_RESTING: rests}


def _sample(processes: Processes, seconds: float) -> dict[str, float]:
    from jobs.services.jobs import enqueue

    job_id = enqueue(NOOP).id
    deadline = time.monotonic() + seconds
    while "COMPLETED" not in (at := _events(job_id)):
        require_sound(processes)
        if time.monotonic() > deadline:
            raise RuntimeError(f"a job was not done within {seconds:g} s; its events: {sorted(at)}")
        time.sleep(LOOK_SEC / 4)
    return {"picked up": _ms(at, "RUNNING"), "completed": _ms(at, "COMPLETED")}


def _events(job_id: UUID) -> dict[str, Any]:
    from jobs.models import JobEvent

    return dict(JobEvent.objects.filter(job_id=job_id).values_list("kind", "at"))


def _ms(at: dict[str, Any], kind: str) -> float:
    milliseconds: float = (at[kind] - at["SUBMITTED"]).total_seconds() * 1000
    return milliseconds


def percentile(values: list[float], which: int) -> float:
    return quantiles(values, n=100, method="inclusive")[which - 1]


def report(found: Mapping[str, Rates]) -> str:
    heads = ("database", "until", "samples", "p50 ms", "p90 ms", "p99 ms", "longest")
    rows = [
        (database, name, len(values), *(f"{percentile(values, p):.2f}" for p in (50, 90, 99)), f"{max(values):.2f}")
        for database, rates in found.items()
        for name, values in rates.items()
        if name not in (CPU_RESTING, CPU_WRITING)
    ]
    return table(heads, rows)


def bars(found: Mapping[str, Rates]) -> list[Ceiling]:
    reached = []
    if (rates := found.get("postgresql")) is not None:
        reached += [
            Ceiling("pick-up latency, p50", percentile(rates["picked up"], 50), 3, 1, " ms"),
            Ceiling("pick-up latency, p99", percentile(rates["picked up"], 99), 10, 3, " ms"),
        ]
    if (rates := found.get("sqlite")) is not None:
        reached += [
            Ceiling("pick-up latency on SQLite, p50", percentile(rates["picked up"], 50), 30, None, " ms"),
            Ceiling(
                f"CPU of a worker on SQLite that writes progress, {RESTING} others",
                rates[CPU_WRITING][0],
                1,
                None,
                " %",
            ),
            Ceiling("CPU of the busiest of these others, at rest", max(rates[CPU_RESTING]), 1, None, " %"),
        ]
    return reached


if __name__ == "__main__":
    from bench.__main__ import main

    sys.exit(main(["latency", *sys.argv[1:]]))
