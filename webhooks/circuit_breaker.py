"""The circuit breaker: pause an endpoint that keeps failing, then test it with a single delivery.

While a circuit is open, deliveries wait; an attempt that was not made is not counted.
"""

from __future__ import annotations

from jobs.conf import conf

FAILURE_THRESHOLD = 5  # consecutive failures
MAX_PAUSE_SEC = 300.0
MAX_BACKOFF_SEC = 86_400.0


def is_tripped(failures: int) -> bool:
    """Return whether consecutive failures open the circuit. It stays tripped until a delivery succeeds."""
    return failures >= FAILURE_THRESHOLD


def pause_sec(failures: int) -> float:
    """Return how long the circuit stays open after this many consecutive failures."""
    return min(conf.WEBHOOK_BACKOFF_SEC * 2 ** min(failures - FAILURE_THRESHOLD, 30), MAX_PAUSE_SEC)


def backoff_sec(failed: int) -> float:
    """Return how long a delivery waits after its n-th failed attempt."""
    return min(conf.WEBHOOK_BACKOFF_SEC * 2 ** min(failed - 1, 30), MAX_BACKOFF_SEC)
