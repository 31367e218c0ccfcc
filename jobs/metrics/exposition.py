"""The Prometheus text format, version 0.0.4, as far as counters, gauges and histograms need it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Literal

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@dataclass
class Family:
    """One metric: what it means, and its samples. What is added to the same labels adds up."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = ()
    _values: dict[tuple[str, ...], float] = field(default_factory=dict)
    _buckets: dict[tuple[str, ...], list[float]] = field(default_factory=dict)

    def add(self, value: float, *labels: str) -> None:
        self._values[labels] = self._values.get(labels, 0) + value

    def raise_to(self, value: float, *labels: str) -> None:
        """The largest of what is said counts."""
        self._values[labels] = max(self._values.get(labels, value), value)

    def observe(self, bucket: int, times: int, total: float, *labels: str) -> None:
        """So many observations between two bounds, which add up to `total`. The last bucket is open-ended."""
        counts = self._buckets.setdefault(labels, [0.0] * (len(self.bounds) + 1))
        counts[bucket] += times
        self.add(total, *labels)

    def lines(self) -> Iterator[str]:
        yield f"# HELP {self.name} {_escaped(self.help)}"
        yield f"# TYPE {self.name} {self.kind}"
        for labels, value in sorted(self._values.items()):
            named = dict(zip(self.labels, labels, strict=True))
            yield from self._histogram(named, labels, value) if self.bounds else [_sample(self.name, named, value)]

    def _histogram(self, named: Mapping[str, str], labels: tuple[str, ...], total: float) -> Iterator[str]:
        cumulative = list(accumulate(self._buckets[labels]))
        for bound, count in zip((*self.bounds, math.inf), cumulative, strict=True):
            yield _sample(f"{self.name}_bucket", {**named, "le": _number(bound)}, count)
        yield _sample(f"{self.name}_sum", named, total)
        yield _sample(f"{self.name}_count", named, cumulative[-1])


def text(families: Iterable[Family]) -> str:
    return "".join(f"{line}\n" for family in families for line in family.lines())


def _sample(name: str, labels: Mapping[str, str], value: float) -> str:
    shown = ",".join(f'{label}="{_quoted(said)}"' for label, said in labels.items())
    return f"{name}{{{shown}}} {_number(value)}" if shown else f"{name} {_number(value)}"


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(float(value))


def _quoted(said: str) -> str:
    return _escaped(said).replace('"', r"\"")


def _escaped(said: str) -> str:
    return said.replace("\\", r"\\").replace("\n", r"\n")
