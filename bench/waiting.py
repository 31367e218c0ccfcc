"""Latency of `jobs.wait`, from the end of a job to the return: `python -m bench.waiting`."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from bench.jobs import PAUSE
from bench.latency import percentile
from bench.measure import Calibration, Ceiling, Rates, format_table
from bench.sizes import scale_size
from bench.workers import START_SEC, empty_tables, run_workers

TITLE = "From the event of a job's end to the return of jobs.wait, by the clock of the host"
SAMPLES = 100
PAUSES_SEC = (0.3, 0.5, 0.8)  # of the handler: its waiter waits by then, and its polls have become rare
BARS_MS = {"postgresql": 20, "sqlite": 60}


def measure(calibration: Calibration, rounds: int | None) -> Rates:
    """Return milliseconds, of one job at a time. Django must be set up on the database that is measured."""
    from django.utils import timezone

    import jobs
    from jobs.models import JobEvent

    empty_tables()
    samples = []
    with run_workers(1, 2):
        for number in range(scale_size(SAMPLES, minimum=10) + 1):
            job = jobs.enqueue(PAUSE, {"seconds": PAUSES_SEC[number % len(PAUSES_SEC)]})
            jobs.wait(job.pk, START_SEC)
            returned_at = timezone.now()
            ended_at = JobEvent.objects.get(job_id=job.pk, kind="COMPLETED").at
            samples.append((returned_at - ended_at).total_seconds() * 1000)
    return {"wait": samples[1:]}  # the first job waited for the worker's start


def report(results: Mapping[str, Rates]) -> str:
    heads = ("database", "samples", "p50 ms", "p90 ms", "p99 ms", "longest")
    rows = [
        (database, len(values), *(f"{percentile(values, p):.2f}" for p in (50, 90, 99)), f"{max(values):.2f}")
        for database, values in ((database, rates["wait"]) for database, rates in results.items())
    ]
    return format_table(heads, rows)


def bars(results: Mapping[str, Rates]) -> list[Ceiling]:
    return [
        Ceiling(
            f"return of jobs.wait on {database}, p50", percentile(rates["wait"], 50), BARS_MS[database], None, " ms"
        )
        for database, rates in results.items()
    ]


if __name__ == "__main__":
    from bench.__main__ import main

    sys.exit(main(["waiting", *sys.argv[1:]]))
