"""The maintenance task that fires schedules: at the due time where it is known, with few queries while idle.

`fire_between` does the same for a test that moves the clock.
"""

from __future__ import annotations

import logging
import time
from datetime import datetime
from typing import Any, NamedTuple

from django.db.models.functions import Now

from jobs.conf import conf
from jobs.notifications import Listener
from jobs.outages import OUTAGE_ERRORS
from schedules import declared
from schedules.firing import fire_due
from schedules.models import Schedule

logger = logging.getLogger("jobs.schedules.ticking")
MIN_PAUSE_SEC, MAX_PAUSE_SEC = 0.05, 1.0
STILL_DUE_SEC = 0.5  # until the next check if a schedule is still due, most often as another scheduler has its lock


class NextDue(NamedTuple):
    """Seconds until a schedule is due (infinite if none is), and the database's time (None if none is)."""

    wait_sec: float
    now: datetime | None


class Ticker:
    """Remembers the next due time: maintenance calls `tick` every second, and most calls need no query."""

    def __init__(self) -> None:
        self._next_check_at = 0.0
        self._changes_seen = 0
        self._called_by_loop = False
        self._is_synced = False

    def pause_sec(self) -> float:
        """Return the seconds until the next call. Only a loop asks for them; its calls may skip the database."""
        self._called_by_loop = True
        return min(max(self._next_check_at - time.monotonic(), MIN_PAUSE_SEC), MAX_PAUSE_SEC)

    def wake(self) -> None:
        """Check with the next call: a schedule was changed. Called from any thread."""
        self._changes_seen += 1
        self._next_check_at = 0.0

    def tick(self) -> int:
        """Fire what is due. Return the number of jobs inserted."""
        called_by_loop, self._called_by_loop = self._called_by_loop, False
        if called_by_loop and time.monotonic() < self._next_check_at:
            return 0
        if not self._is_synced:
            try:
                declared.sync()
            except OUTAGE_ERRORS:
                raise
            except Exception:  # an error in the schedules that this process's code declares must not stop the others
                logger.exception("schedules declared in code could not be synced")
            self._is_synced = True
        changes_seen = self._changes_seen
        due = _read_next_due()
        job_count = fire_due(due.now) if due.now is not None and due.wait_sec <= 0 else 0
        if due.wait_sec <= 0:
            due = _read_next_due()
        idle_sec = conf.POLL_SEC * (10 if Listener.can_listen() else 1)  # without notifications, changes are polled
        self._next_check_at = time.monotonic() + min(due.wait_sec if due.wait_sec > 0 else STILL_DUE_SEC, idle_sec)
        if changes_seen != self._changes_seen:  # the rows may have been read before that change
            self._next_check_at = 0.0
        return job_count


def _read_next_due() -> NextDue:
    due = Schedule.objects.filter(enabled=True, next_fire_at__isnull=False).order_by("next_fire_at")
    row: Any = due.annotate(now=Now()).values_list("next_fire_at", "now").first()
    if row is None:
        return NextDue(float("inf"), None)
    next_fire_at, now = row
    return NextDue((next_fire_at - now).total_seconds(), now)


ticker = Ticker()


def fire_between(begin: datetime, end: datetime) -> None:
    """Fire what falls due until `end`, one due time after the other, as a scheduler does."""
    declared.sync()
    fire_due(begin)
    moment, rows = begin, Schedule.objects.filter(enabled=True, next_fire_at__isnull=False).order_by("next_fire_at")
    while (due := rows.values_list("next_fire_at", flat=True).first()) is not None and moment < due <= end:
        fire_due(due)
        moment = due
