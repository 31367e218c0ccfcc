"""How fast a full queue of jobs that do nothing is worked off: `python -m bench.drain`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from bench.jobs import ASYNC_NOOP, NOOP
from bench.measure import CAL, Bar, Calibration, Rates, calibrated, per_second, ratio, spread, table
from bench.sizes import scaled
from bench.workers import NO_LIMITS, fill, rate_of_the_middle, work_off

TITLE = "Drain: no-op jobs with lease, run row and audit events"
ROUNDS = 5
LIMITED = {"global": 1000, "job_type": {NOOP: 500, ASYNC_NOOP: 500}}  # counted at every claim, never reached
DEFAULT_LIMIT = {"global": 1}  # of a site whose settings name none
LIMITS_ON = ", limits on"


@dataclass(frozen=True)
class Setup:
    processes: int
    slots: int
    job_type: str = NOOP
    jobs: int = 40_000
    limits: dict[str, Any] = field(default_factory=lambda: NO_LIMITS)

    def __str__(self) -> str:
        kind = "async" if self.job_type == ASYNC_NOOP else "sync"
        return f"{self.processes} × {self.slots} {kind}{LIMITS_ON if self.limits != NO_LIMITS else ''}"

    def rate(self) -> float:
        jobs = scaled(self.jobs, least=40 * self.slots if self.slots > 1 else 100)
        fill(self.job_type, jobs)
        work_off(self.processes, self.slots, jobs, limits=self.limits)
        return rate_of_the_middle(jobs)


ONE = Setup(1, 1, jobs=4_000)
ONE_LIMITED = replace(ONE, limits=DEFAULT_LIMIT)
FEW = Setup(2, 8, jobs=10_000)
MANY = [Setup(2, 200, job_type) for job_type in (NOOP, ASYNC_NOOP)]
POSTGRESQL = [ONE, ONE_LIMITED, FEW, *MANY, replace(MANY[0], limits=LIMITED)]
SQLITE = [Setup(1, 8, jobs=20_000)]


def measure(calibration: Calibration, rounds: int | None) -> Rates:
    """In a process whose Django is set up on the database in question."""
    from django.db import connection

    setups = SQLITE if connection.vendor == "sqlite" else POSTGRESQL
    return calibrated(rounds or ROUNDS, calibration.rate, {str(each): each.rate for each in setups})


def to_cal(rates: Rates, setup: Setup) -> float:
    return ratio(rates, str(setup), str(setup) + CAL)


def report(found: Mapping[str, Rates]) -> str:
    heads = ("database", "processes × slots", "jobs a second", "of all rounds", "cal", "÷ cal")
    rows = [
        (
            database,
            name,
            per_second(rates[name]),
            spread(rates[name]),
            per_second(rates[name + CAL]),
            f"{ratio(rates, name, name + CAL):.2f}",
        )
        for database, rates in found.items()
        for name in rates
        if not name.endswith(CAL)
    ]
    return table(heads, rows)


def bars(found: Mapping[str, Rates]) -> list[Bar]:
    reached = []
    if (rates := found.get("postgresql")) is not None:
        best = max(MANY, key=partial(to_cal, rates))
        reached += [
            Bar("one slot ÷ cal", to_cal(rates, ONE), 0.47, 0.9),
            Bar("one slot with the default limit ÷ cal", to_cal(rates, ONE_LIMITED), 0.25),
            Bar("2 × 8 slots ÷ cal", to_cal(rates, FEW), 2.4),
            Bar(f"drain, best setup ({best}) ÷ cal", to_cal(rates, best), 7, 13.9),
        ]
    if (rates := found.get("sqlite")) is not None:
        reached.append(Bar("drain on SQLite, 8 slots ÷ cal", to_cal(rates, SQLITE[0]), 2, 5))
    return reached


if __name__ == "__main__":
    from bench.__main__ import main

    sys.exit(main(["drain", *sys.argv[1:]]))
