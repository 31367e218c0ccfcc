"""The circuit breaker: an endpoint that keeps failing is left alone for a while, then tried with a single delivery.

While a circuit is open, deliveries wait; an attempt that was not made is not counted.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.db.models.functions import Now

from jobs.conf import conf

BREAK_AFTER = 5  # failures in a row
LONGEST_PAUSE_SEC = 300.0
LONGEST_BACKOFF_SEC = 86_400.0


def is_broken(failures: int) -> bool:
    return failures >= BREAK_AFTER


def pause_sec(failures: int) -> float:
    """How long an endpoint is left alone after so many failures in a row."""
    return min(conf.WEBHOOK_BACKOFF_SEC * 2 ** min(failures - BREAK_AFTER, 30), LONGEST_PAUSE_SEC)


def backoff_sec(failed: int) -> float:
    """How long a delivery waits after its n-th failure."""
    return min(conf.WEBHOOK_BACKOFF_SEC * 2 ** min(failed - 1, 30), LONGEST_BACKOFF_SEC)


def from_now(seconds: float) -> Any:
    return Now() + timedelta(seconds=seconds)
