"""Rates, their ratios to a calibration, and tables of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import psycopg

from bench.sizes import scale_size


class Calibration:
    """The current speed of this machine's PostgreSQL: minimal pairs of claim and complete per second.

    Two transactions per job, one client, plain SQL on a table of two columns: the least that a queue must do.
    """

    def __init__(self, url: str) -> None:
        self.pairs = scale_size(700, minimum=100)
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute("DROP TABLE IF EXISTS bench_cal")
        self._connection.execute("CREATE TABLE bench_cal (id bigint PRIMARY KEY, state smallint NOT NULL)")
        self._connection.execute("CREATE INDEX ON bench_cal (id) WHERE state = 0")

    def rate(self) -> float:
        """Return pairs per second."""
        self._connection.execute("TRUNCATE bench_cal")
        self._connection.execute("INSERT INTO bench_cal SELECT n, 0 FROM generate_series(1, %s) n", [self.pairs])
        return measure_rate(self._run_pairs, self.pairs)

    def close(self) -> None:
        self._connection.close()

    def _run_pairs(self) -> None:
        cursor = self._connection.cursor()
        for _ in range(self.pairs):
            cursor.execute(_CLAIM)
            cursor.execute("UPDATE bench_cal SET state = 2 WHERE id = %s", cursor.fetchone())


_CLAIM = """
    UPDATE bench_cal SET state = 1
    WHERE id = (SELECT id FROM bench_cal WHERE state = 0 ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id
"""


def measure_rate(work: Callable[[], object], size: int) -> float:
    """Run `work` and return `size` per second of its duration."""
    began = time.perf_counter()
    work()
    return size / (time.perf_counter() - began)


Rates = dict[str, list[float]]  # by name, one value for each round


def measure_interleaved(rounds: int, measures: Mapping[str, Callable[[], float]]) -> Rates:
    """Run one of each measure per round, so that disturbances affect all alike. The first round is a warm-up."""
    rates: Rates = {name: [] for name in measures}
    for number in range(rounds + 1):
        for name, rate in measures.items():
            value = rate()
            if number:
                rates[name].append(value)
    return rates


CAL = " | cal"  # suffix of the calibration around the measure of that name


def measure_calibrated(
    rounds: int, calibrate: Callable[[], float], measures: Mapping[str, Callable[[], float]]
) -> Rates:
    """Run long measures, each with the calibration just before and just after it."""
    rates: Rates = {key: [] for name in measures for key in (name, name + CAL)}
    for _ in range(rounds):
        before = calibrate()
        for name, rate in measures.items():
            rates[name].append(rate())
            after = calibrate()
            rates[name + CAL].append((before + after) / 2)
            before = after
    return rates


def median_ratio(rates: Rates, name: str, to: str) -> float:
    """Return the median of the ratios within each round."""
    return median(rate / other for rate, other in zip(rates[name], rates[to], strict=True))


@dataclass(frozen=True)
class Bar:
    """The minimum of a ratio, and its aim."""

    name: str
    value: float
    at_least: float
    aim: float | None = None

    def __str__(self) -> str:
        verdict = "PASS" if self.value >= self.at_least else "FAIL"
        aim = "" if self.aim is None else f", aim {self.aim:g}{' (reached)' if self.value >= self.aim else ''}"
        return f"{verdict}  {self.name}: {self.value:.2f} (at least {self.at_least:.3g}{aim})"

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "passes": self.value >= self.at_least}


@dataclass(frozen=True)
class Ceiling:
    """The maximum of a cost, and its aim."""

    name: str
    value: float
    at_most: float
    aim: float | None = None
    unit: str = ""

    def __str__(self) -> str:
        verdict = "PASS" if self.value <= self.at_most else "FAIL"
        aim = "" if self.aim is None else f", aim {self.aim:g}{' (reached)' if self.value <= self.aim else ''}"
        return f"{verdict}  {self.name}: {self.value:.2f}{self.unit} (at most {self.at_most:g}{aim})"

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "passes": self.value <= self.at_most}


def format_table(heads: Sequence[str], rows: Sequence[Sequence[object]], *, text_columns: int = 2) -> str:
    """Return a table whose first columns are text, aligned left, and whose others are numbers, aligned right."""
    columns = list(zip(*([str(cell) for cell in row] for row in [heads, *rows]), strict=True))
    padded = [_pad(column, str.ljust if index < text_columns else str.rjust) for index, column in enumerate(columns)]
    head, *lines = ("  ".join(cells) for cells in zip(*padded, strict=True))
    return "\n".join([head, "-" * len(head), *lines])


def _pad(column: Sequence[str], pad: Callable[[str, int], str]) -> list[str]:
    width = max(map(len, column))
    return [pad(cell, width) for cell in column]


def format_rate(rates: Sequence[float]) -> str:
    return f"{median(rates):,.0f}"


def format_range(rates: Sequence[float]) -> str:
    return f"{min(rates):,.0f} – {max(rates):,.0f}"
