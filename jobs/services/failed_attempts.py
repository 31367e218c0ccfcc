"""Limit failed log-ins and unknown tokens by their source. Counts are in the database, for all processes and hosts."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from datetime import timedelta

from django.db import DatabaseError
from django.db.models import F
from django.db.models.functions import Now

from jobs import clock
from jobs.models import FailedAttempt

logger = logging.getLogger("jobs.services.failed_attempts")


@dataclass(frozen=True)
class FailureLimit:
    """At most `maximum` failures of one source within a window, which starts with the first of them."""

    name: str
    maximum: int
    window: timedelta


UNKNOWN_TOKENS = FailureLimit("token", 30, timedelta(minutes=1))  # of one address
LOGINS_OF_USER = FailureLimit("login of user", 5, timedelta(minutes=5))  # of one user name from one address
LOGINS_OF_ADDRESS = FailureLimit("login", 30, timedelta(minutes=5))
LONGEST_WINDOW = max(limit.window for limit in (UNKNOWN_TOKENS, LOGINS_OF_USER, LOGINS_OF_ADDRESS))


def get_wait_sec(limit: FailureLimit, *source: str) -> float | None:
    """Return None if the source may try again, else the seconds until it may."""
    open_windows = FailedAttempt.objects.filter(pk=_digest(limit, source), window_at__gt=Now() - limit.window)
    full = open_windows.filter(count__gte=limit.maximum)
    started_at = full.values_list("window_at", flat=True).first()
    return None if started_at is None else max((started_at + limit.window - clock.now()).total_seconds(), 0.0)


def count_failure(limit: FailureLimit, *source: str) -> None:
    """Add one failure. With a database that cannot be written, requests are still answered."""
    key = _digest(limit, source)
    try:
        counted = FailedAttempt.objects.filter(pk=key, window_at__gt=Now() - limit.window)
        if counted.update(count=F("count") + 1):
            return
        FailedAttempt.objects.filter(window_at__lte=Now() - LONGEST_WINDOW).delete()
        FailedAttempt.objects.bulk_create(
            [FailedAttempt(key=key, window_at=Now(), count=1)],
            update_conflicts=True,
            unique_fields=["key"],
            update_fields=["window_at", "count"],
        )
    except DatabaseError as error:
        logger.warning("a failed attempt was not counted: %s", error)


def forget_failures(limit: FailureLimit, *source: str) -> None:
    FailedAttempt.objects.filter(pk=_digest(limit, source)).delete()


def _digest(limit: FailureLimit, source: tuple[str, ...]) -> str:
    return hashlib.sha256("\0".join((limit.name, *source)).encode(errors="surrogatepass")).hexdigest()
