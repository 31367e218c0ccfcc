"""How soon a worker with nothing to do picks up a job: `python -m bench.latency`."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Mapping
from statistics import quantiles
from typing import Any
from uuid import UUID

from bench.jobs import NOOP
from bench.measure import Calibration, Ceiling, Rates, table
from bench.processes import LOOK_SEC, Processes, require_sound
from bench.sizes import scaled
from bench.workers import START_SEC, empty, workers

TITLE = "Pick-up latency of an idle worker, by the database's clock"
SAMPLES = 200
SLOTS = 4
CALM_SEC = (0.01, 0.05)  # between two jobs, so that the worker is at rest again and no rhythm helps it
PATIENCE_SEC = 30.0


def measure(calibration: Calibration, rounds: int | None) -> Rates:
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


def _sample(processes: Processes, seconds: float) -> dict[str, float]:
    from jobs.services import enqueue

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
        for database, times in found.items()
        for name, values in times.items()
    ]
    return table(heads, rows)


def bars(found: Mapping[str, Rates]) -> list[Ceiling]:
    if (times := found.get("postgresql")) is None:
        return []
    picked = times["picked up"]
    return [
        Ceiling("pick-up latency, p50", percentile(picked, 50), 3, 1, " ms"),
        Ceiling("pick-up latency, p99", percentile(picked, 99), 10, 3, " ms"),
    ]


if __name__ == "__main__":
    from bench.__main__ import main

    sys.exit(main(["latency", *sys.argv[1:]]))
