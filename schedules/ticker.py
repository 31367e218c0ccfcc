"""The housekeeping duty that fires schedules: on the dot for due times that are known, and seldom asking when idle."""

from __future__ import annotations

import logging
import time
from datetime import datetime

from django.db.models.functions import Now

from jobs.conf import conf
from jobs.engine.database import MISSING
from jobs.engine.notifications import Listener
from schedules import declared
from schedules.firing import fire_due
from schedules.models import Schedule

logger = logging.getLogger("jobs.schedules.ticking")
SOONEST_SEC, OFTEN_SEC = 0.05, 1.0
IN_HAND_SEC = 0.5  # when to look again at what is due but could not be fired, most often because others are at it


class Ticker:
    """Remembers when something is due next. A housekeeper comes by every second and mostly leaves again."""

    def __init__(self) -> None:
        self._look_at = 0.0
        self._news = 0
        self._is_paced = False
        self._is_declared = False

    def pause_sec(self) -> float:
        """Seconds until the next call. A caller that asks calls regularly: not each of its ticks reads the database."""
        self._is_paced = True
        return min(max(self._look_at - time.monotonic(), SOONEST_SEC), OFTEN_SEC)

    def hasten(self) -> None:
        """Look at once: a schedule was changed. Called from any thread."""
        self._news += 1
        self._look_at = 0.0

    def tick(self) -> int:
        """Fire what is due. Returns how many jobs were made."""
        paced, self._is_paced = self._is_paced, False
        if paced and time.monotonic() < self._look_at:
            return 0
        self._declare_once()
        news = self._news
        wait_sec, now = _next_due()
        made = fire_due(now) if now is not None and wait_sec <= 0 else 0
        if wait_sec <= 0:
            wait_sec, now = _next_due()
        idle_sec = conf.POLL_SEC * (10 if Listener.is_possible() else 1)  # else no notification tells of changes
        self._look_at = time.monotonic() + min(wait_sec if wait_sec > 0 else IN_HAND_SEC, idle_sec)
        if news != self._news:  # what we saw may be older than what we were told
            self._look_at = 0.0
        return made

    def _declare_once(self) -> None:
        """The schedules of the code that this process runs; whatever is wrong with them, the others fire."""
        if self._is_declared:
            return
        try:
            declared.sync()
        except MISSING:
            raise
        except Exception:
            logger.exception("the schedules that the code declares could not be looked at")
        self._is_declared = True


def _next_due() -> tuple[float, datetime | None]:
    """Seconds until something is due, and what time it is for the database; nothing and no time if nothing is."""
    due = Schedule.objects.filter(enabled=True, next_fire_at__isnull=False).order_by("next_fire_at")
    found = due.annotate(asked_at=Now()).values_list("next_fire_at", "asked_at").first()
    if found is None or found[0] is None:
        return float("inf"), None
    return (found[0] - found[1]).total_seconds(), found[1]


ticker = Ticker()
