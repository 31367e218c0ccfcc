"""Rate at which workers drain a full queue of no-op jobs: `python -m bench.drain`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from bench.jobs import ASYNC_NOOP, NOOP
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
from bench.workers import NO_LIMITS, drain_queue, fill_queue, measure_middle_rate

TITLE = "Drain: no-op jobs with lease, run row and audit events"
ROUNDS = 5
LIMITED = {"global": 1000, "job_type": {NOOP: 500, ASYNC_NOOP: 500}}  # counted at every claim, never reached
RATED = {"global": {"rate": "1000000/s", "burst": 1_000_000}}  # taken from at every claim, never used up
DEFAULT_LIMIT = {"global": 1}  # without any in the settings
LIMITS_ON, RATE_ON = ", limits on", ", rate on"


@dataclass(frozen=True)
class Setup:
    processes: int
    slots: int
    job_type: str = NOOP
    jobs: int = 40_000
    limits: dict[str, Any] = field(default_factory=lambda: NO_LIMITS)

    def __str__(self) -> str:
        kind = "async" if self.job_type == ASYNC_NOOP else "sync"
        in_force = RATE_ON if self.limits == RATED else LIMITS_ON if self.limits != NO_LIMITS else ""
        return f"{self.processes} × {self.slots} {kind}{in_force}"

    def rate(self) -> float:
        jobs = scale_size(self.jobs, minimum=40 * self.slots if self.slots > 1 else 100)
        fill_queue(self.job_type, jobs)
        drain_queue(self.processes, self.slots, jobs, limits=self.limits)
        return measure_middle_rate(jobs)


ONE_SLOT = Setup(1, 1, jobs=4_000)
ONE_SLOT_LIMITED = replace(ONE_SLOT, limits=DEFAULT_LIMIT)
FEW_SLOTS = Setup(2, 8, jobs=10_000)
FEW_SLOTS_RATED = replace(FEW_SLOTS, limits=RATED)
MANY_SLOTS = [Setup(2, 200, job_type) for job_type in (NOOP, ASYNC_NOOP)]
POSTGRESQL = [
    ONE_SLOT,
    ONE_SLOT_LIMITED,
    FEW_SLOTS,
    FEW_SLOTS_RATED,
    *MANY_SLOTS,
    replace(MANY_SLOTS[0], limits=LIMITED),
]
SQLITE = [Setup(1, 8, jobs=20_000)]


def measure(calibration: Calibration, rounds: int | None) -> Rates:
    """Return the rates. Django must be set up on the database that is measured."""
    from django.db import connection

    setups = SQLITE if connection.vendor == "sqlite" else POSTGRESQL
    return measure_calibrated(rounds or ROUNDS, calibration.rate, {str(setup): setup.rate for setup in setups})


def ratio_to_cal(rates: Rates, setup: Setup) -> float:
    return median_ratio(rates, str(setup), str(setup) + CAL)


def report(results: Mapping[str, Rates]) -> str:
    heads = ("database", "processes × slots", "jobs a second", "of all rounds", "cal", "÷ cal")
    rows = [
        (
            database,
            name,
            format_rate(rates[name]),
            format_range(rates[name]),
            format_rate(rates[name + CAL]),
            f"{median_ratio(rates, name, name + CAL):.2f}",
        )
        for database, rates in results.items()
        for name in rates
        if not name.endswith(CAL)
    ]
    return format_table(heads, rows)


def bars(results: Mapping[str, Rates]) -> list[Bar]:
    checked = []
    if (rates := results.get("postgresql")) is not None:
        best = max(MANY_SLOTS, key=partial(ratio_to_cal, rates))
        checked += [
            Bar("one slot ÷ cal", ratio_to_cal(rates, ONE_SLOT), 0.47, 0.9),
            Bar("one slot with the default limit ÷ cal", ratio_to_cal(rates, ONE_SLOT_LIMITED), 0.25),
            Bar("2 × 8 slots ÷ cal", ratio_to_cal(rates, FEW_SLOTS), 2.4),
            Bar("2 × 8 slots with a rate ÷ cal", ratio_to_cal(rates, FEW_SLOTS_RATED), 1.0),
            Bar(f"drain, best setup ({best}) ÷ cal", ratio_to_cal(rates, best), 7, 13.9),
        ]
    if (rates := results.get("sqlite")) is not None:
        checked.append(Bar("drain on SQLite, 8 slots ÷ cal", ratio_to_cal(rates, SQLITE[0]), 2, 5))
    return checked


if __name__ == "__main__":
    from bench.__main__ import main

    sys.exit(main(["drain", *sys.argv[1:]]))
