"""Sends what is owed: beside the jobs, on threads of its own, with a connection of its own.

One thread talks to the database and gives deliveries to threads that only talk to receivers. Any number of senders may
run; the deliveries' leases keep them apart.
"""

from __future__ import annotations

import logging
import queue
import random
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from uuid import UUID

from django.db import DatabaseError

from jobs import db
from jobs.conf import conf
from jobs.engine.connections import Outage, short_timeouts
from webhooks import circuits, fanout, leases, outbox, trying
from webhooks.models import WebhookBundle, WebhookEndpoint, WebhookMessage

logger = logging.getLogger("webhooks.sender")
AT_ONCE = 32  # receivers talked to at the same time
NEWS_SEC = 0.1  # news that come in quick succession are looked at together
IDLE_POLLS, UNTOLD_POLLS = 30, 10  # so many times rarer is looked where no endpoint listens; SQLite tells no news
LAST_WORDS_SEC = 1.0  # how long an ending process waits for answers that are under way
ROUND_SEC = 5.0  # how long one round of `manage.py tick` begins new tries
SPARED = 500
LONGEST_REST_SEC = 1.0  # of who looked in vain for somebody to tell
LONGEST_CHORE_REST_SEC = 60.0  # a database that was slow once must not put off what is owed for hours
HURRIED, UNHURRIED = 1, 99  # so many times longer is rested than was worked; the latter where nobody would receive


@dataclass(frozen=True)
class Glance:
    """What there may be to do."""

    owed: bool
    listening: bool  # endpoints that are enabled
    broken: bool


class Sender(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name="webhooks", daemon=True)
        self.tried = 0
        self._answers: queue.SimpleQueue[leases.Outcome | None] = queue.SimpleQueue()
        self._unrecorded: list[leases.Outcome] = []
        self._in_flight: dict[UUID, leases.Task] = {}
        self._end = threading.Event()
        self._outage = Outage(logger, "webhooks", self._end)
        self._looked = self._look_at = self._renewed = 0.0  # by the steady clock, as are all here
        self._resting_until = 0.0  # whatever the news
        self._rested_at = {"urgent": 0.0, "unhurried": 0.0}

    def run(self) -> None:
        outbox.on_news(self.nudge)
        while not self._end.is_set():
            self._gather(self._pause())
            with self._outage.survive():
                short_timeouts(conf.LEASE_SEC * 2 / 3)
                self._survive_turn()
        outbox.no_more_news(self.nudge)
        with self._outage.survive():
            self._await_answers(LAST_WORDS_SEC)
        db.connection().close()

    def nudge(self) -> None:
        """Something new is owed. Called for every batch of moves: it wakes nobody who is about to look anyway."""
        now = time.monotonic()
        if not now < self._look_at <= self._soon(now):
            self._answers.put(None)

    def end(self) -> None:
        self._end.set()
        self._answers.put(None)

    def one_round(self) -> str:
        """For a process that does not stay: begin tries for a while, and see them through."""
        deadline = time.monotonic() + ROUND_SEC
        while time.monotonic() < deadline and self._turn():
            self._look_at = 0.0
            self._gather(NEWS_SEC)
        self._await_answers(conf.WEBHOOK_TIMEOUT_SEC + 1)
        return f"{self.tried} tried"

    # ------------------------------------------------------------------ one turn

    def _gather(self, seconds: float) -> None:
        """Wait for an answer or for news; take all that have come."""
        with suppress(queue.Empty):
            self._take_in(self._answers.get(timeout=seconds) if seconds > 0 else self._answers.get_nowait())
            while True:
                self._take_in(self._answers.get_nowait())

    def _take_in(self, outcome: leases.Outcome | None) -> None:
        if outcome is None:  # what it announces may be a moment away from its commit
            self._look_at = min(self._look_at, self._soon(time.monotonic()))
            return
        self._in_flight.pop(outcome.task.id, None)
        self._unrecorded.append(outcome)
        self._look_at = min(self._look_at, self._resting_until if outcome.error else 0.0)  # there is room for another

    def _soon(self, now: float) -> float:
        """When news are looked at; where all hands are full, not before the next answer or the usual time."""
        if len(self._in_flight) >= AT_ONCE:
            return self._looked + conf.POLL_SEC
        return max(now + NEWS_SEC, self._resting_until)

    def _pause(self) -> float:
        renew_at = self._renewed + leases.RENEW_SEC if self._in_flight else self._look_at
        return max(min(self._look_at, renew_at) - time.monotonic(), 0.0)

    def _turn(self) -> bool:
        """Whether there was anything to do, or is something under way."""
        self._record()
        self._renew()
        if time.monotonic() < self._look_at:
            return bool(self._in_flight)
        self._looked = time.monotonic()
        self._look_at = self._looked + conf.POLL_SEC
        seen = _glance()
        lanes = fanout.lanes() if seen.owed else fanout.Lanes([], [])
        reached = self._chore("urgent", HURRIED, [partial(fanout.hand_out, lane) for lane in lanes.urgent])
        room = AT_ONCE - len(self._in_flight)
        if seen.listening and room > 0:
            reached |= self._start(leases.take(room))
        self._rest(0.0 if reached or room <= 0 else time.monotonic() - self._looked)
        worked = self._count_the_absent(lanes, seen) or reached
        if not worked and not seen.listening:
            self._look_at = self._looked + conf.POLL_SEC * (UNTOLD_POLLS if db.is_sqlite() else IDLE_POLLS)
        self._look_at = max(self._look_at, self._resting_until)
        return worked or bool(self._in_flight)

    def _rest(self, took: float) -> None:
        """Where there is nobody whom anything could be told, looking for them takes no more than its share."""
        self._resting_until = self._looked + min(took * UNHURRIED, LONGEST_REST_SEC)

    def _survive_turn(self) -> None:
        """A thread that nobody restarts must not end for a mistake of ours."""
        try:
            self._turn()
        except DatabaseError:
            raise
        except Exception:
            logger.exception("a turn failed; it is tried again")
            self._look_at = time.monotonic() + conf.POLL_SEC

    def _renew(self) -> None:
        if self._in_flight and time.monotonic() >= self._renewed + leases.RENEW_SEC:
            leases.renew(self._in_flight.values())
            self._renewed = time.monotonic()

    def _record(self) -> None:
        if self._unrecorded:
            leases.record(self._unrecorded)
            self.tried += len(self._unrecorded)
            self._unrecorded = []

    def _count_the_absent(self, lanes: fanout.Lanes, seen: Glance) -> bool:
        """What is owed to those who do not answer, and what they could not be told."""
        works: list[Callable[[], int]] = [partial(fanout.hand_out, lane, fanout.FOR_NOBODY) for lane in lanes.unhurried]
        if seen.broken:
            works.append(partial(circuits.count_unreached, SPARED))
        return self._chore("unhurried", UNHURRIED, works)

    def _chore(self, name: str, rest: int, works: Sequence[Callable[[], int]]) -> bool:
        """Work that nobody waits for at this very moment takes no more than its share of the time."""
        began = time.monotonic()
        if not works:
            return False
        if began >= self._rested_at[name]:
            some = random.sample(works, min(len(works), AT_ONCE))  # all get their turn
            done = sum(work() for work in some)
            took = time.monotonic() - began
            self._rested_at[name] = began + took + min(took * rest, LONGEST_CHORE_REST_SEC)
            if not done:
                return False
        self._look_at = min(self._look_at, self._rested_at[name])
        return True

    def _start(self, tasks: list[leases.Task]) -> bool:
        if tasks and not self._in_flight:
            self._renewed = time.monotonic()
        for task in tasks:
            self._in_flight[task.id] = task
            threading.Thread(target=self._try, args=(task,), name=f"webhook {task.id}", daemon=True).start()
        return bool(tasks)

    def _try(self, task: leases.Task) -> None:
        self._answers.put(trying.attempt(task))

    def _await_answers(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._in_flight and (left := deadline - time.monotonic()) > 0:
            self._gather(min(left, leases.RENEW_SEC))
            self._renew()
        self._record()


def _glance() -> Glance:
    with db.connection().cursor() as cursor:
        cursor.execute(_GLANCE)
        return Glance(*map(bool, cursor.fetchone()))


_OWED = f"SELECT 1 FROM {WebhookMessage._meta.db_table} WHERE audience_id IS NOT NULL"  # noqa: S608 — our own words
_PACKED = f"SELECT 1 FROM {WebhookBundle._meta.db_table}"  # noqa: S608
_ENABLED = f"SELECT 1 FROM {WebhookEndpoint._meta.db_table} WHERE enabled"  # noqa: S608
_GLANCE = f"""
    SELECT EXISTS ({_OWED}) OR EXISTS ({_PACKED}), EXISTS ({_ENABLED}),
           EXISTS ({_ENABLED} AND failures >= {circuits.BREAK_AFTER:d})
"""


def one_round() -> str:
    """The duty of a process that does not stay."""
    return Sender().one_round()
