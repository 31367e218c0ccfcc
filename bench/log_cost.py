"""Cost of log lines: the drain with the default log, to a file, and without: `python -m bench.log_cost`."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from functools import partial

from bench.jobs import NOOP
from bench.measure import (
    CAL,
    Bar,
    Calibration,
    Rates,
    format_range,
    format_rate,
    format_table,
    measure_calibrated,
    median_ratio,
)
from bench.sizes import scale_size
from bench.workers import drain_queue, fill_queue, measure_middle_rate

TITLE = "Log: no-op jobs drained by workers that log as they do by default, to a file"
ROUNDS = 5
SETUPS = {"postgresql": (2, 200, 40_000), "sqlite": (1, 8, 20_000)}  # processes, slots, jobs
LOGGED = "default log"


def measure(calibration: Calibration, rounds: int | None) -> Rates:
    """Return the rates. Django must be set up on the database that is measured."""
    from django.db import connection

    setup = SETUPS[connection.vendor]
    return measure_calibrated(
        rounds or ROUNDS, partial(_measure_silent, *setup), {LOGGED: partial(_measure_logged, *setup)}
    )


def _measure_silent(processes: int, slots: int, jobs: int) -> float:
    count = scale_size(jobs, minimum=40 * slots)
    fill_queue(NOOP, count)
    drain_queue(processes, slots, count)
    return measure_middle_rate(count)


def _measure_logged(processes: int, slots: int, jobs: int) -> float:
    count = scale_size(jobs, minimum=40 * slots)
    fill_queue(NOOP, count)
    with tempfile.TemporaryFile() as log:
        drain_queue(processes, slots, count, log=log)
        if log.tell() == 0:
            raise RuntimeError("the workers logged nothing")
    return measure_middle_rate(count)


def report(results: Mapping[str, Rates]) -> str:
    heads = ("database", "log", "jobs a second", "of all rounds", "without", "÷ without")
    rows = [
        (
            database,
            LOGGED,
            format_rate(rates[LOGGED]),
            format_range(rates[LOGGED]),
            format_rate(rates[LOGGED + CAL]),
            f"{median_ratio(rates, LOGGED, LOGGED + CAL):.2f}",
        )
        for database, rates in results.items()
    ]
    return format_table(heads, rows)


def bars(results: Mapping[str, Rates]) -> list[Bar]:
    return [
        Bar(f"drain with the default log ÷ without, {database}", median_ratio(rates, LOGGED, LOGGED + CAL), 0.85)
        for database, rates in results.items()
    ]


if __name__ == "__main__":
    from bench.__main__ import main

    sys.exit(main(["log_cost", *sys.argv[1:]]))
