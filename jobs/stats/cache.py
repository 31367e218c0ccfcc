"""Cache slow counts. Recomputing takes at most 10 % of wall time."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from time import monotonic
from typing import Generic, TypeVar

SMALL_COUNT = 10_000  # a result about at most so many jobs is not cached
MAX_TIME_SHARE, MAX_AGE_SEC = 0.1, 5.0  # the part of wall time spent on recomputing, and the age of a cached result
T = TypeVar("T")


class RateLimitedCache(Generic[T]):
    """Results of this process, by key; a result is cached for ten times as long as it took, at most MAX_AGE_SEC."""

    def __init__(self) -> None:
        self._entries: dict[Hashable, tuple[T, float]] = {}

    def get(self, key: Hashable, compute: Callable[[], T], size: Callable[[T], int]) -> T:
        """Return the cached result of `key`, or compute it. `size` returns the number of jobs in a result."""
        now = monotonic()
        entry = self._entries.get(key)
        if entry is not None and now < entry[1]:
            return entry[0]
        result = compute()
        if size(result) > SMALL_COUNT:
            self._entries = {other: entry for other, entry in self._entries.items() if now < entry[1]}
            self._entries[key] = result, now + min((monotonic() - now) / MAX_TIME_SHARE, MAX_AGE_SEC)
        return result

    def clear(self) -> None:
        self._entries = {}
