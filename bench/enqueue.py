"""How fast jobs are submitted, one by one and ten thousand at a time: `python -m bench.enqueue`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from bench.measure import Bar, Calibration, Rates, interleaved, per_second, ratio, spread, table, timed

TITLE = "Enqueue"
SINGLES = 700
BULK = 10_000
ROUNDS = 7


def measure(calibration: Calibration, rounds: int | None) -> Rates:
    """In a process whose Django is set up on the database in question."""
    measures = {"cal": calibration.rate, "single": _single, "bulk": _bulk}
    return interleaved(rounds or ROUNDS, measures)


def _single() -> float:
    from jobs.services.jobs import enqueue

    def work() -> None:
        for number in range(SINGLES):
            enqueue("bench.noop", {"number": number, "name": "a job that does nothing"})

    return timed(work, SINGLES)


def _bulk() -> float:
    from jobs.services.jobs import enqueue_many

    params = [{"number": number, "name": "a job that does nothing"} for number in range(BULK)]
    items = [{"job_type": "bench.noop", "params": each} for each in params]
    return timed(lambda: enqueue_many(items), BULK)


def report(found: Mapping[str, Rates]) -> str:
    heads = ("database", "measure", "per second", "of all rounds", "÷ cal")
    rows: list[tuple[Any, ...]] = []
    for database, rates in found.items():
        for name, values in rates.items():
            rows.append((database, name, per_second(values), spread(values), f"{ratio(rates, name, 'cal'):.2f}"))
        rows.append((database, "bulk ÷ single", "", "", f"{ratio(rates, 'bulk', 'single'):.1f}"))
    return table(heads, rows)


def bars(found: Mapping[str, Rates]) -> list[Bar]:
    reached = [
        Bar(f"bulk ÷ single, {database}", ratio(rates, "bulk", "single"), 10) for database, rates in found.items()
    ]
    if (rates := found.get("postgresql")) is not None:
        reached.append(Bar("single ÷ cal", ratio(rates, "single", "cal"), 0.8, 1.3))
        reached.append(Bar("bulk ÷ cal", ratio(rates, "bulk", "cal"), 8, 35))
    return reached


if __name__ == "__main__":
    from bench.__main__ import main

    sys.exit(main(["enqueue", *sys.argv[1:]]))
