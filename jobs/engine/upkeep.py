"""What a worker does beside its jobs, as far as a request can do it at little cost.

Remote workers need no local one: whoever asks for offers sees to dead leases, deadlines, late offers, due times and
lanes first.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from jobs.conf import conf
from jobs.engine import deadlines, lanes, offers, recovery

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
    keeper = deadlines.Keeper()
    return [Occasional(_sweep, lambda: conf.RECOVERY_SEC), Occasional(keeper.skip_late, keeper.pause_sec)]


def _sweep() -> None:
    """As `manage.py recover`, without a memory: between two requests any time may pass."""
    recovery.Sweeper().sweep()


_duties = duties()


def before_offers() -> None:
    """Looks before it writes: a poll that finds nothing to do should not wait for the only writer of SQLite."""
    for duty in _duties:
        duty()
    offers.withdraw_late()
    _open_gates()


def _open_gates() -> None:
    """Let forward what waited for its time or its lane."""
    for _round in range(ROUNDS):
        ahead = lanes.look_ahead()
        due = ahead.due_sec is not None and ahead.due_sec <= 0
        if due:
            lanes.wake_due()
        if due or ahead.marked:
            lanes.promote_round()
        else:
            return
