"""Rates such as `60/min`, and the token buckets that enforce them. Pure: times are passed in, no Django.

A bucket holds up to its capacity and is refilled evenly. A start takes 1 from the bucket of `rate`, which must hold 1;
tokens are taken from the bucket of `token_rate`, which may go below zero: then nothing starts until it is refilled.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

UNITS = {"s": 1, "min": 60, "h": 3600, "day": 86_400}
_UNIT_NAMES = {
    **dict.fromkeys(("s", "sec", "second"), "s"),
    **dict.fromkeys(("m", "min", "minute"), "min"),
    **dict.fromkeys(("h", "hour"), "h"),
    **dict.fromkeys(("d", "day"), "day"),
}
MAX_COUNT = 2**31 - 1
MAX_BURST = 1_000_000
EXPECTED = f"a rate such as 60/min: a whole number from 1 to {MAX_COUNT}, and s, min, h or day"
MAX_WAIT_SEC = 10.0 * 365 * 86_400  # the latest start that is computed: a job may reserve any number of tokens
_PRECISION = 1e-6  # of a level: sums of fractions are not exact


@dataclass(frozen=True)
class Rate:
    """So many in each unit of time."""

    count: int
    unit: str

    @property
    def per_sec(self) -> float:
        return self.count / UNITS[self.unit]

    def __str__(self) -> str:
        return f"{self.count}/{self.unit}"


def parse_rate(value: Any) -> Rate:
    """Parse a text such as `60/min` or `5 / s`. Raise ValueError with what is expected."""
    match = re.fullmatch(r"([0-9]{1,10})\s*/\s*([a-z]+)", value.strip().lower()) if isinstance(value, str) else None
    unit = _UNIT_NAMES.get(match[2]) if match else None
    if match is None or unit is None or not 1 <= int(match[1]) <= MAX_COUNT:
        raise ValueError(EXPECTED)
    return Rate(int(match[1]), unit)


@dataclass(frozen=True)
class Bucket:
    """A token bucket. `level` is what it holds."""

    rate: Rate
    capacity: float
    level: float

    def refill(self, seconds: float) -> Bucket:
        """Return it after so many seconds. A clock that went back refills nothing."""
        return replace(self, level=min(self.capacity, self.level + self.rate.per_sec * max(seconds, 0.0)))

    def take(self, amount: float) -> Bucket:
        """Return it with less in it; a negative amount puts back, up to the capacity."""
        return replace(self, level=min(self.capacity, self.level - amount))

    def count_whole(self) -> int:
        """Return how many whole tokens it holds, negative below zero."""
        return math.floor(self.level + _PRECISION)

    def holds(self, level: float) -> bool:
        return self.level + _PRECISION >= level

    def seconds_until(self, level: float) -> float:
        """Return the seconds until it holds so much, if nothing is taken meanwhile; at most MAX_WAIT_SEC."""
        return 0.0 if self.holds(level) else min((level - self.level) / self.rate.per_sec, MAX_WAIT_SEC)


@dataclass(frozen=True)
class Buckets:
    """The buckets of one limit: of its starts, and of its tokens. None: no such rate."""

    starts: Bucket | None = None
    tokens: Bucket | None = None

    def seconds_to_start(self, started: int = 0, reserved: int = 0) -> float:
        """Return the seconds until one more job may start, after so many starts and reserved tokens."""
        for_start = 0.0 if self.starts is None else self.starts.seconds_until(started + 1)
        return max(for_start, 0.0 if self.tokens is None else self.tokens.seconds_until(reserved))

    def next_start_at(self, now: datetime) -> datetime | None:
        """Return when the next job may start; None if it may now."""
        seconds = self.seconds_to_start()
        return now + timedelta(seconds=seconds) if seconds else None


def make_buckets(row: Any, now: datetime) -> Buckets:
    """Return the buckets of a limit's row as they are now. A bucket that was never used is full.

    `burst` starts may follow each other at once; of unused tokens, those of one second are kept.
    """
    seconds = 0.0 if row.bucket_at is None else (now - row.bucket_at).total_seconds()
    starts = tokens = None
    if row.rate:
        capacity = float(row.burst or 1)
        level = capacity if row.rate_level is None else min(row.rate_level, capacity)
        starts = Bucket(parse_rate(row.rate), capacity, level).refill(seconds)
    if row.token_rate:
        rate = parse_rate(row.token_rate)
        capacity = max(rate.per_sec, 1.0)
        level = capacity if row.token_level is None else min(row.token_level, capacity)
        tokens = Bucket(rate, capacity, level).refill(seconds)
    return Buckets(starts, tokens)
