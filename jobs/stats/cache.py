"""Cache slow counts. Recomputing all of them takes at most 10 % of the wall time of a process."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from time import monotonic
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

SMALL_COUNT = 10_000  # a result about at most so many jobs is not cached
MAX_TIME_SHARE, MAX_AGE_SEC = 0.1, 5.0  # the part of wall time spent on recomputing, and the age of a cached result
T = TypeVar("T")


class CacheEntry(NamedTuple, Generic[T]):
    result: T
    expires_at: float


class RateLimitedCache(Generic[T]):
    """Results of this process, by key; a result is cached for ten times as long as it took, at most MAX_AGE_SEC.

    The time is multiplied by the number of cached results in the process: a page may need several.
    """

    _caches: ClassVar[list[RateLimitedCache[Any]]] = []

    def __init__(self) -> None:
        self._entries: dict[Hashable, CacheEntry[T]] = {}
        self._caches.append(self)

    def get(self, key: Hashable, compute: Callable[[], T], size: Callable[[T], int]) -> T:
        """Return the cached result of `key`, or compute it. `size` returns the number of jobs in a result."""
        now = monotonic()
        entry = self._entries.get(key)
        if entry is not None and now < entry.expires_at:
            return entry.result
        result = compute()
        if size(result) > SMALL_COUNT:
            self._entries = {other: entry for other, entry in self._entries.items() if now < entry.expires_at}
            others = sum(now < entry.expires_at for cache in self._caches for entry in cache._entries.copy().values())
            age_sec = min((monotonic() - now) / MAX_TIME_SHARE * (1 + others), MAX_AGE_SEC)
            self._entries[key] = CacheEntry(result, now + age_sec)
        return result

    def clear(self) -> None:
        self._entries = {}

    @classmethod
    def clear_all(cls) -> None:
        """Clear all caches of this process."""
        for cache in cls._caches:
            cache.clear()
