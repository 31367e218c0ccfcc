"""How fast a full queue of jobs that do nothing is worked off: `python -m bench.drain`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from bench.jobs import ASYNC_NOOP, NOOP
from bench.measure import CAL, Bar, Calibration, Rates, calibrated, per_second, ratio, spread, table
from bench.sizes import is_quick, scaled
from bench.workers import NO_LIMITS, fill, rate_of_the_middle, work_off

TITLE = "Drain: no-op jobs with lease, run row and audit events"
ROUNDS = 3
LIMITED = {"global": 1000, "job_type": {NOOP: 500, ASYNC_NOOP: 500}}  # counted at every claim, never reached
ONE_LIMITED = {"global": 1}
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


MANY = [Setup(2, slots, job_type) for slots in (50, 100, 200) for job_type in (NOOP, ASYNC_NOOP)]
ONE = Setup(1, 1, jobs=4_000)
SQLITE = Setup(1, 8, jobs=20_000)


def measure(calibration: Calibration, rounds: int | None) -> Rates:
    """In a process whose Django is set up on the database in question."""
    from django.db import connection

    rounds = rounds or ROUNDS
    if connection.vendor == "sqlite":
        return _measured(calibration, rounds, [SQLITE])
    found = _measured(calibration, rounds, MANY[:2] if is_quick() else MANY)
    best = next(each for each in MANY if str(each) == best_of(found))
    others = [replace(best, limits=LIMITED), ONE, replace(ONE, limits=ONE_LIMITED)]
    return found | _measured(calibration, rounds, others)


def _measured(calibration: Calibration, rounds: int, setups: list[Setup]) -> Rates:
    return calibrated(rounds, calibration.rate, {str(each): each.rate for each in setups})


def best_of(rates: Rates) -> str:
    """The fastest without limits of those with many slots; on SQLite, of all."""
    names = [name for name in rates if not name.endswith((LIMITS_ON, CAL)) and name != str(ONE)]
    return max(names, key=lambda name: ratio(rates, name, name + CAL))


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
        best, one = best_of(rates), str(ONE)
        reached.append(Bar(f"drain, best setup ({best}) ÷ cal", ratio(rates, best, best + CAL), 5, 13.9))
        reached.append(Bar("drain, one slot ÷ cal", ratio(rates, one, one + CAL), 0.6, 0.9))
    if (rates := found.get("sqlite")) is not None:
        best = best_of(rates)
        reached.append(Bar("drain on SQLite, 8 slots ÷ cal", ratio(rates, best, best + CAL), 1, 5))
    return reached


if __name__ == "__main__":
    from bench.__main__ import main

    sys.exit(main(["drain", *sys.argv[1:]]))
