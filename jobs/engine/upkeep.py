"""What a worker does beside its jobs, as far as a request can do it at little cost.

Remote workers need no local one: whoever asks for offers sees to lanes, due times, late offers and dead leases first.
"""

from __future__ import annotations

import threading
import time

from jobs import db
from jobs.engine import lanes, offers, recovery
from jobs.models import LaneMark

ROUNDS = 4  # of lanes and of due times: the rest is for the next request

_sweeper = recovery.Sweeper()
_sweeping = threading.Lock()
_next_sweep = 0.0


def before_offers() -> None:
    """Looks before it writes: a poll that finds nothing to do should not wait for the only writer of SQLite."""
    recover_now_and_then()
    offers.withdraw_late()
    _wake_due()
    _promote()


def recover_now_and_then() -> None:
    """As often as a worker would, whoever asks and however many do."""
    global _next_sweep
    if time.monotonic() < _next_sweep or not _sweeping.acquire(blocking=False):
        return
    try:
        _sweeper.sweep()
        _next_sweep = time.monotonic() + _sweeper.pause_sec()
    finally:
        _sweeping.release()


def _wake_due() -> None:
    for _round in range(ROUNDS):
        until = lanes.look_ahead().due_sec
        if until is None or until > 0:
            return
        lanes.wake_due()


def _promote() -> None:
    for _round in range(ROUNDS):
        if not LaneMark.objects.using(db.alias()).exists():
            return
        lanes.promote_round()
