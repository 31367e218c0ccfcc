"""What a worker does beside its jobs, as far as a request can do it at little cost.

Remote workers need no local one: whoever asks for offers sees to dead leases, deadlines, late offers, due times and
lanes first.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from jobs import db
from jobs.engine import deadlines, lanes, offers, recovery
from jobs.models import LaneMark

ROUNDS = 4  # of lanes and of due times: the rest is for the next request


class Occasional:
    """A duty that is done as often as one worker would do it, however many requests there are."""

    def __init__(self, run: Callable[[], object], pause_sec: Callable[[], float]) -> None:
        self._run, self._pause_sec = run, pause_sec
        self._busy = threading.Lock()
        self._next = 0.0

    def __call__(self) -> None:
        if time.monotonic() < self._next or not self._busy.acquire(blocking=False):
            return
        try:
            self._run()
            self._next = time.monotonic() + self._pause_sec()
        finally:
            self._busy.release()


def duties() -> list[Occasional]:
    sweeper, keeper = recovery.Sweeper(), deadlines.Keeper()
    return [Occasional(sweeper.sweep, sweeper.pause_sec), Occasional(keeper.skip_late, keeper.pause_sec)]


_duties = duties()


def before_offers() -> None:
    """Looks before it writes: a poll that finds nothing to do should not wait for the only writer of SQLite."""
    for duty in _duties:
        duty()
    offers.withdraw_late()
    _wake_due()
    _promote()


def _wake_due() -> None:
    for _round in range(ROUNDS):
        until = lanes.seconds_until_due()
        if until is None or until > 0:
            return
        lanes.wake_due()


def _promote() -> None:
    for _round in range(ROUNDS):
        if not LaneMark.objects.using(db.alias()).exists():
            return
        lanes.promote_round()
