"""Rate of submissions, one by one and ten thousand at a time: `python -m bench.enqueue`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from bench.measure import (
    Bar,
    Calibration,
    Rates,
    format_range,
    format_rate,
    format_table,
    measure_interleaved,
    measure_rate,
    median_ratio,
)

TITLE = "Enqueue"
SINGLES = 700
BULK = 10_000
ROUNDS = 7


def measure(calibration: Calibration, rounds: int | None) -> Rates:
    """Return the rates. Django must be set up on the database that is measured."""
    measures = {"cal": calibration.rate, "single": _measure_single, "bulk": _measure_bulk}
    return measure_interleaved(rounds or ROUNDS, measures)


def _measure_single() -> float:
    from jobs.services.jobs import enqueue

    def work() -> None:
        for number in range(SINGLES):
            enqueue("bench.noop", {"number": number, "name": "a job that does nothing"})

    return measure_rate(work, SINGLES)


def _measure_bulk() -> float:
    from jobs.services.jobs import enqueue_many

    params = [{"number": number, "name": "a job that does nothing"} for number in range(BULK)]
    items = [{"job_type": "bench.noop", "params": job_params} for job_params in params]
    return measure_rate(lambda: enqueue_many(items), BULK)


def report(results: Mapping[str, Rates]) -> str:
    heads = ("database", "measure", "per second", "of all rounds", "÷ cal")
    rows: list[tuple[Any, ...]] = []
    for database, rates in results.items():
        for name, values in rates.items():
            rows.append(
                (database, name, format_rate(values), format_range(values), f"{median_ratio(rates, name, 'cal'):.2f}")
            )
        rows.append((database, "bulk ÷ single", "", "", f"{median_ratio(rates, 'bulk', 'single'):.1f}"))
    return format_table(heads, rows)


def bars(results: Mapping[str, Rates]) -> list[Bar]:
    checked = [
        Bar(f"bulk ÷ single, {database}", median_ratio(rates, "bulk", "single"), 10)
        for database, rates in results.items()
    ]
    if (rates := results.get("postgresql")) is not None:
        checked.append(Bar("single ÷ cal", median_ratio(rates, "single", "cal"), 0.8, 1.3))
        checked.append(Bar("bulk ÷ cal", median_ratio(rates, "bulk", "cal"), 8, 35))
    return checked


if __name__ == "__main__":
    from bench.__main__ import main

    sys.exit(main(["enqueue", *sys.argv[1:]]))
