"""Sends deliveries beside the jobs, on threads of its own, with a connection of its own.

One thread talks to the database and gives deliveries to threads that only talk to receivers. Any number of senders may
run; the deliveries' leases keep them apart.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from contextlib import suppress
from typing import Any, NamedTuple
from uuid import UUID

from django.db import DatabaseError

from jobs import db
from jobs.conf import conf
from jobs.engine.database import Outage, short_timeouts
from jobs.signals import events_committed
from webhooks import attempt, deliveries, fanout
from webhooks.models import WebhookEndpoint, WebhookMessage

logger = logging.getLogger("webhooks.sender")
AT_ONCE = 32  # receivers talked to at the same time
WAKE_SEC = 0.1  # wake-ups that come in quick succession are looked at together
SHUTDOWN_FLUSH_SEC = 1.0  # how long an ending process waits for answers that are under way
ROUND_SEC = 5.0  # how long one round of `manage.py tick` begins new tries
REST, BACKGROUND_REST = 1, 19  # so many times longer than a batch of fan-out took, the sender rests from it
LONGEST_REST_SEC = 60.0  # a database that was slow once must not put off fan-out for hours
BUSY_SEC = 1.0  # how long after the last commit of this process its jobs count as running

_senders: set[Sender] = set()  # of this process


def wake_senders(**kwargs: Any) -> None:
    """Tell the senders of this process that there is something to send; all others look once a second."""
    for sender in tuple(_senders):
        sender.wake()


class PollState(NamedTuple):
    """What there may be to do."""

    has_messages: bool  # that are not fanned out
    has_endpoints: bool  # that are enabled


class Sender(threading.Thread):
    def __init__(self) -> None:
        super().__init__(name="webhooks", daemon=True)
        self.tried = 0
        self._answers: queue.SimpleQueue[deliveries.Outcome | None] = queue.SimpleQueue()
        self._unrecorded: list[deliveries.Outcome] = []
        self._in_flight: dict[UUID, deliveries.Task] = {}
        self._end = threading.Event()
        self._outage = Outage(logger, "webhooks", self._end)
        self._looked = self._look_at = self._renewed = 0.0  # by the steady clock, as are all here
        self._fan_out_at = 0.0
        self._events_committed_at = 0.0

    def run(self) -> None:
        _senders.add(self)
        try:
            while not self._end.is_set():
                self._gather(self._pause())
                with self._outage.survive():
                    short_timeouts(conf.LEASE_SEC * 2 / 3)
                    self._survive_turn()
        finally:
            self._follow_commits(False)
            _senders.discard(self)
        with self._outage.survive():
            self._await_answers(SHUTDOWN_FLUSH_SEC)
        db.connection().close()

    def wake(self, **_facts: object) -> None:
        """There may be something new. Called for every commit: it wakes nobody who is about to look anyway."""
        now = self._events_committed_at = time.monotonic()
        if self._look_at <= now or (len(self._in_flight) < AT_ONCE and self._look_at > now + WAKE_SEC):
            self._answers.put(None)

    def end(self) -> None:
        self._end.set()
        self._answers.put(None)

    def one_round(self) -> str:
        """For a process that does not stay: begin tries for a while, and see them through."""
        deadline = time.monotonic() + ROUND_SEC
        while time.monotonic() < deadline and self._turn():
            self._look_at = self._fan_out_at = 0.0
            self._gather(WAKE_SEC if self._in_flight else 0.0)
        self._await_answers(conf.WEBHOOK_TIMEOUT_SEC + 1)
        return f"{self.tried} tried"

    # ------------------------------------------------------------------ one turn

    def _gather(self, seconds: float) -> None:
        """Wait for an answer or a wake-up; take all that have come."""
        with suppress(queue.Empty):
            self._take_in(self._answers.get(timeout=seconds) if seconds > 0 else self._answers.get_nowait())
            while True:
                self._take_in(self._answers.get_nowait())

    def _take_in(self, outcome: deliveries.Outcome | None) -> None:
        if outcome is None:
            self._look_at = min(self._look_at, self._soon(time.monotonic()))
            return
        self._in_flight.pop(outcome.task.id, None)
        self._unrecorded.append(outcome)
        self._look_at = 0.0  # there is room for another

    def _soon(self, now: float) -> float:
        """When a wake-up is looked at; where all slots are taken, not before the next answer or the usual time."""
        return self._looked + conf.POLL_SEC if len(self._in_flight) >= AT_ONCE else now + WAKE_SEC

    def _pause(self) -> float:
        renew_at = self._renewed + deliveries.RENEW_SEC if self._in_flight else self._look_at
        return max(min(self._look_at, renew_at) - time.monotonic(), 0.0)

    def _turn(self) -> bool:
        """Whether there was anything to do, or is something under way."""
        self._record()
        self._renew()
        if time.monotonic() < self._look_at:
            return bool(self._in_flight)
        self._looked = time.monotonic()
        self._look_at = self._looked + conf.POLL_SEC
        state = _poll_state()
        self._follow_commits(state.has_endpoints and self in _senders)
        worked = state.has_messages and self._fan_out()
        room = AT_ONCE - len(self._in_flight)
        if state.has_endpoints and room > 0:
            worked |= self._start(deliveries.take(room))
        return worked or bool(self._in_flight)

    def _follow_commits(self, wanted: bool) -> None:
        """Be woken by commits of this process only while there is an endpoint: most sites have none."""
        if wanted:
            events_committed.connect(self.wake, weak=False)  # once, however often it is called
        else:
            events_committed.disconnect(self.wake)

    def _fan_out(self) -> bool:
        """Fan out one batch, and rest from it for as long as it took.

        While jobs run in this process and no endpoint waits for more, longer: the jobs go first.
        """
        began = time.monotonic()
        if began >= self._fan_out_at:
            done = fanout.fan_out()
            took = time.monotonic() - began
            in_background = began - self._events_committed_at < BUSY_SEC and not fanout.has_idle_endpoint()
            rest = took * (BACKGROUND_REST if in_background else REST)
            self._fan_out_at = began + took + min(rest, LONGEST_REST_SEC)
            if not done:
                return False
        self._look_at = min(self._look_at, self._fan_out_at)
        return True

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
        if self._in_flight and time.monotonic() >= self._renewed + deliveries.RENEW_SEC:
            deliveries.renew(self._in_flight.values())
            self._renewed = time.monotonic()

    def _record(self) -> None:
        if self._unrecorded:
            deliveries.record(self._unrecorded)
            self.tried += len(self._unrecorded)
            self._unrecorded = []

    def _start(self, tasks: list[deliveries.Task]) -> bool:
        if tasks and not self._in_flight:
            self._renewed = time.monotonic()
        for task in tasks:
            self._in_flight[task.id] = task
            threading.Thread(target=self._try, args=(task,), name=f"webhook {task.id}", daemon=True).start()
        return bool(tasks)

    def _try(self, task: deliveries.Task) -> None:
        self._answers.put(attempt.attempt_delivery(task))

    def _await_answers(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._in_flight and (left := deadline - time.monotonic()) > 0:
            self._gather(min(left, deliveries.RENEW_SEC))
            self._renew()
        self._record()


def _poll_state() -> PollState:
    with db.connection().cursor() as cursor:
        cursor.execute(_POLL_STATE)
        return PollState(*map(bool, cursor.fetchone()))


_POLL_STATE = f"""
    SELECT EXISTS (SELECT 1 FROM {WebhookMessage._meta.db_table} WHERE fanned_out_at IS NULL),
           EXISTS (SELECT 1 FROM {WebhookEndpoint._meta.db_table} WHERE enabled)
"""  # noqa: S608 — our own words


def one_round() -> str:
    """The duty of a process that does not stay."""
    return Sender().one_round()
