"""What log lines cost: the drain with the default log, to a file, against one without: `python -m bench.log_cost`."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping
from functools import partial

from bench.jobs import NOOP
from bench.measure import CAL, Bar, Calibration, Rates, calibrated, per_second, ratio, spread, table
from bench.sizes import scaled
from bench.workers import fill, rate_of_the_middle, work_off

TITLE = "Log: no-op jobs drained by workers that log as they do by default, to a file"
ROUNDS = 5
SETUPS = {"postgresql": (2, 200, 40_000), "sqlite": (1, 8, 20_000)}  # processes, slots, jobs
LOGGED = "default log"


def measure(calibration: Calibration, rounds: int | None) -> Rates:
    """In a process whose Django is set up on the database in question."""
    from django.db import connection

    setup = SETUPS[connection.vendor]
    return calibrated(rounds or ROUNDS, partial(_silent_rate, *setup), {LOGGED: partial(_logged_rate, *setup)})


def _silent_rate(processes: int, slots: int, jobs: int) -> float:
    number = scaled(jobs, least=40 * slots)
    fill(NOOP, number)
    work_off(processes, slots, number)
    return rate_of_the_middle(number)


def _logged_rate(processes: int, slots: int, jobs: int) -> float:
    number = scaled(jobs, least=40 * slots)
    fill(NOOP, number)
    with tempfile.TemporaryFile() as log:
        work_off(processes, slots, number, log=log)
        if log.tell() == 0:
            raise RuntimeError("the workers logged nothing")
    return rate_of_the_middle(number)


def report(found: Mapping[str, Rates]) -> str:
    heads = ("database", "log", "jobs a second", "of all rounds", "without", "÷ without")
    rows = [
        (
            database,
            LOGGED,
            per_second(rates[LOGGED]),
            spread(rates[LOGGED]),
            per_second(rates[LOGGED + CAL]),
            f"{ratio(rates, LOGGED, LOGGED + CAL):.2f}",
        )
        for database, rates in found.items()
    ]
    return table(heads, rows)


def bars(found: Mapping[str, Rates]) -> list[Bar]:
    return [
        Bar(f"drain with the default log ÷ without, {database}", ratio(rates, LOGGED, LOGGED + CAL), 0.85)
        for database, rates in found.items()
    ]


if __name__ == "__main__":
    from bench.__main__ import main

    sys.exit(main(["log_cost", *sys.argv[1:]]))
