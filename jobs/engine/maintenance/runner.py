"""Periodic duties, each on its own: one that fails is logged and never stops the others.

Other apps register theirs with `duty`. A worker runs the duties that are due; `manage.py tick` runs all of them once.
A duty that waits for others than the database has a thread of its own in a worker, so that it delays nobody.

Remote workers need no local one: a request for offers first recovers dead leases, then handles deadlines, late
offers, due times and lanes, as far as that costs a request little.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from jobs import db
from jobs.conf import conf
from jobs.engine import promoter
from jobs.engine.database import MISSING, Outage
from jobs.engine.maintenance import aging, deadlines, recovery, retention, rollup_compaction, system_load
from jobs.engine.remote import offers
from jobs.engine.selection import fair_share
from jobs.engine.slots import leases

logger = logging.getLogger("jobs.engine.maintenance.runner")
LAST_WORDS_SEC = 1.5
ROUNDS_BEFORE_OFFERS = 4  # of lanes and of due times: the rest is for the next request


class Companion(Protocol):
    """A thread beside the housekeeper."""

    def start(self) -> None: ...

    def end(self) -> None:
        """Asks it to end; it must not keep the process from ending."""

    def join(self, timeout: float | None = None) -> None: ...


@dataclass(frozen=True)
class Duty:
    name: str
    run: Callable[[], object]
    every_sec: Callable[[], float]
    thread: Callable[[], Companion] | None = None


_duties: dict[str, Duty] = {}
_sweeper = recovery.Sweeper()
_ager = aging.Ager()
_late = deadlines.Keeper()


def duty(
    name: str,
    run: Callable[[], object],
    *,
    every_sec: Callable[[], float] = lambda: 1.0,
    thread: Callable[[], Companion] | None = None,
) -> None:
    """Register a duty; the same name again replaces it. In a worker its `thread`, if it has one, runs instead."""
    _duties[name] = Duty(name, run, every_sec, thread)


def duties() -> list[Duty]:
    return list(_duties.values())


def tick() -> dict[str, object]:
    """One round of every duty. Returns what each said, or the exception it raised."""
    results: dict[str, object] = {}
    for each in duties():
        try:
            results[each.name] = each.run()
        except Exception as error:
            logger.exception("duty %s failed", each.name)
            results[each.name] = error
    return results


class Housekeeper(threading.Thread):
    """Runs each duty when it is due, on a thread and connection of its own."""

    def __init__(self) -> None:
        super().__init__(name="housekeeping", daemon=True)
        self._end = threading.Event()
        self._outage = Outage(logger, "housekeeping", self._end, patience=10.0)
        self._next: dict[str, float] = {}
        self._duties = [each for each in duties() if each.thread is None]
        self._companions = [each.thread() for each in duties() if each.thread is not None]

    def start(self) -> None:
        super().start()
        for each in self._companions:
            each.start()

    def run(self) -> None:
        while not self._end.wait(self._pause()):
            with self._outage.survive():
                self._turn()
        db.connection().close()
        for each in self._companions:
            each.join(LAST_WORDS_SEC)

    def end(self) -> None:
        self._end.set()
        for each in self._companions:
            each.end()

    def _turn(self) -> None:
        for each in self._duties:
            if time.monotonic() >= self._next.get(each.name, 0.0):
                self._next[each.name] = time.monotonic() + each.every_sec()
                try:
                    each.run()
                except MISSING:
                    self._next[each.name] = 0.0
                    raise
                except Exception:
                    logger.exception("duty %s failed; it is tried again in its turn", each.name)

    def _pause(self) -> float:
        due = min((self._next.get(each.name, 0.0) for each in self._duties), default=0.0)
        return min(max(due - time.monotonic(), 0.05), 1.0)


duty("recovery", _sweeper.sweep, every_sec=_sweeper.pause_sec)
duty("withdraw", offers.expire_offers, every_sec=lambda: min(conf.DISPATCH_TIMEOUT_SEC / 3, 10.0))
duty("pollers", offers.delete_silent_pollers, every_sec=lambda: 3600.0)
# A worker that may claim does this more often.
duty("lanes", lambda: promoter.wake_due() + promoter.promote(), every_sec=lambda: 30 * conf.POLL_SEC)
duty("retention", retention.one_round, every_sec=retention.pause_sec)
duty("folding", rollup_compaction.one_round, every_sec=lambda: 600.0)
duty("deadlines", _late.skip_late, every_sec=_late.pause_sec)
duty(
    "leases", leases.end_dead_leases, every_sec=lambda: conf.LEASE_SEC / 2
)  # whoever finds a limit full does so at once
duty("snapshot", system_load.one_round, every_sec=lambda: system_load.EVERY_SEC)
duty("aging", _ager.age, every_sec=_ager.pause_sec)
duty("shares", fair_share.forget_idle, every_sec=lambda: 60.0)


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


def duties_before_offers() -> list[Occasional]:
    """Recovery as `manage.py recover` does it, without a memory: between two requests any time may pass."""
    late = deadlines.Keeper()
    return [
        Occasional(lambda: recovery.Sweeper().sweep(), lambda: conf.RECOVERY_SEC),
        Occasional(late.skip_late, late.pause_sec),
    ]


_before_offers = duties_before_offers()


def before_offers() -> None:
    """Looks before it writes: a poll that finds nothing to do should not wait for the only writer of SQLite."""
    for occasional in _before_offers:
        occasional()
    offers.expire_offers()
    for _round in range(ROUNDS_BEFORE_OFFERS):  # let forward what waited for its time or its lane
        ahead = promoter.look_ahead()
        due = ahead.due_sec is not None and ahead.due_sec <= 0
        if due:
            promoter.wake_due()
        if not due and not ahead.marked:
            return
        promoter.promote_round()
