"""Rates, ratios and the calibration they are ratios to."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import psycopg

from bench.sizes import scaled


class Calibration:
    """What this machine's PostgreSQL can do right now: minimal pairs of claim and complete a second.

    Two transactions a job, one client, plain SQL on a table of two columns: less than that no queue can do.
    """

    def __init__(self, url: str) -> None:
        self.pairs = scaled(700, least=100)
        self._connection = psycopg.connect(url, autocommit=True)
        self._connection.execute("DROP TABLE IF EXISTS bench_cal")
        self._connection.execute("CREATE TABLE bench_cal (id bigint PRIMARY KEY, state smallint NOT NULL)")
        self._connection.execute("CREATE INDEX ON bench_cal (id) WHERE state = 0")

    def rate(self) -> float:
        self._connection.execute("TRUNCATE bench_cal")
        self._connection.execute("INSERT INTO bench_cal SELECT n, 0 FROM generate_series(1, %s) n", [self.pairs])
        return timed(self._pairs, self.pairs)

    def close(self) -> None:
        self._connection.close()

    def _pairs(self) -> None:
        cursor = self._connection.cursor()
        for _ in range(self.pairs):
            cursor.execute(_CLAIM)
            cursor.execute("UPDATE bench_cal SET state = 2 WHERE id = %s", cursor.fetchone())


_CLAIM = """
    UPDATE bench_cal SET state = 1
    WHERE id = (SELECT id FROM bench_cal WHERE state = 0 ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id
"""


def timed(work: Callable[[], object], size: int) -> float:
    """`size` things a second."""
    began = time.perf_counter()
    work()
    return size / (time.perf_counter() - began)


Rates = dict[str, list[float]]  # by name, one of each round


def interleaved(rounds: int, measures: Mapping[str, Callable[[], float]]) -> Rates:
    """One of each, again and again: what disturbs the machine disturbs them alike. The first round only warms up."""
    found: Rates = {name: [] for name in measures}
    for each in range(rounds + 1):
        for name, rate in measures.items():
            value = rate()
            if each:
                found[name].append(value)
    return found


CAL = " | cal"  # what the yardstick said around the measure of that name


def calibrated(rounds: int, yardstick: Callable[[], float], measures: Mapping[str, Callable[[], float]]) -> Rates:
    """For measures that take long: each with the yardstick just before and just after it."""
    found: Rates = {key: [] for name in measures for key in (name, name + CAL)}
    for _ in range(rounds):
        before = yardstick()
        for name, rate in measures.items():
            found[name].append(rate())
            after = yardstick()
            found[name + CAL].append((before + after) / 2)
            before = after
    return found


def ratio(rates: Rates, name: str, to: str) -> float:
    """The middle one of the ratios within each round."""
    return median(rate / other for rate, other in zip(rates[name], rates[to], strict=True))


@dataclass(frozen=True)
class Bar:
    """What a ratio must reach, and what it hopes for."""

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
    """What a cost must stay below, and what it hopes for."""

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


def table(heads: Sequence[str], rows: Sequence[Sequence[object]], *, words: int = 2) -> str:
    """Text in columns: the first ones are `words`, the others numbers."""
    columns = list(zip(*([str(cell) for cell in row] for row in [heads, *rows]), strict=True))
    padded = [_padded(column, str.ljust if place < words else str.rjust) for place, column in enumerate(columns)]
    head, *lines = ("  ".join(cells) for cells in zip(*padded, strict=True))
    return "\n".join([head, "-" * len(head), *lines])


def _padded(column: Sequence[str], pad: Callable[[str, int], str]) -> list[str]:
    width = max(map(len, column))
    return [pad(cell, width) for cell in column]


def per_second(rates: Sequence[float]) -> str:
    return f"{median(rates):,.0f}"


def spread(rates: Sequence[float]) -> str:
    return f"{min(rates):,.0f} – {max(rates):,.0f}"
