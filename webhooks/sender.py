"""Send deliveries beside the jobs, on threads and a database connection of the sender's own.

One thread uses the database; each attempt runs on a thread that only talks to its receiver. Any number of senders may
run: the leases of deliveries keep two from sending the same one.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from contextlib import suppress
from typing import Any
from uuid import UUID

from django.db import DatabaseError

from jobs import db
from jobs.conf import conf
from jobs.db import set_short_timeouts
from jobs.outages import OutageGuard
from jobs.signals import events_committed
from webhooks import attempt, deliveries, fanout
from webhooks.models import WebhookEndpoint, WebhookMessage

logger = logging.getLogger("webhooks.sender")
MAX_IN_FLIGHT = 32  # attempts at the same time
BATCH_WINDOW_SEC = 0.1  # wake-ups within this time share one poll
SHUTDOWN_FLUSH_SEC = 1.0  # how long an ending process waits for attempts in flight
ROUND_SEC = 5.0  # how long one round of `manage.py tick` starts new attempts
PAUSE_FACTOR, BACKGROUND_PAUSE_FACTOR = 1, 49  # pause after a batch of fan-out, in multiples of its duration
MAX_PAUSE_SEC = 60.0  # one slow statement must not delay fan-out for hours
IDLE_POLL_FACTOR = 10  # without endpoints and messages, polls are this much rarer: an idle worker makes few queries
BUSY_SEC = 1.0  # after the last commit of this process its jobs count as running for this long

_senders: set[Sender] = set()  # of this process


def wake_senders(**kwargs: Any) -> None:
    """Wake the senders of this process: there are deliveries to send. Other processes poll once a second."""
    for sender in tuple(_senders):
        sender.wake()


class Sender(threading.Thread):
    """Fans out messages, claims deliveries, starts attempts and records their results."""

    def __init__(self) -> None:
        super().__init__(name="webhooks", daemon=True)
        self.attempt_count = 0
        self._results: queue.SimpleQueue[deliveries.AttemptResult | None] = queue.SimpleQueue()  # None is a wake-up
        self._unrecorded: list[deliveries.AttemptResult] = []
        self._in_flight: dict[UUID, deliveries.ClaimedDelivery] = {}
        self._end = threading.Event()
        self._outage = OutageGuard(logger, "webhooks", self._end)
        self._polled_at = self._next_poll_at = self._renewed_at = 0.0  # by the monotonic clock, as all times here
        self._fanned_out_at = self._fan_out_took = 0.0  # end and duration of the last batch
        self._has_idle_endpoint = True
        self._events_committed_at = 0.0

    def run(self) -> None:
        _senders.add(self)
        try:
            while not self._end.is_set():
                self._drain_results(self._next_wait())
                with self._outage.survive():
                    set_short_timeouts(conf.LEASE_SEC * 2 / 3)
                    self._run_turn_safely()
        finally:
            self._subscribe_to_commits(False)
            _senders.discard(self)
        with self._outage.survive():
            self._await_results(SHUTDOWN_FLUSH_SEC)
        db.connection().close()

    def wake(self, **_facts: object) -> None:
        """Poll soon. Every commit calls this: a sender that polls soon anyway is not woken."""
        now = self._events_committed_at = time.monotonic()
        has_free_slot = len(self._in_flight) < MAX_IN_FLIGHT
        if self._next_poll_at <= now or (has_free_slot and self._next_poll_at > now + BATCH_WINDOW_SEC):
            self._results.put(None)

    def end(self) -> None:
        self._end.set()
        self._results.put(None)

    def run_once(self) -> str:
        """Start attempts for ROUND_SEC and wait for their results: for a process that does not stay."""
        deadline = time.monotonic() + ROUND_SEC
        while time.monotonic() < deadline and self._run_turn():
            self._next_poll_at = self._fan_out_took = 0.0
            self._drain_results(BATCH_WINDOW_SEC if self._in_flight else 0.0)
        self._await_results(conf.WEBHOOK_TIMEOUT_SEC + 1)
        return f"{self.attempt_count} attempts"

    # ------------------------------------------------------------------ one turn

    def _drain_results(self, wait_sec: float) -> None:
        """Wait for a result or a wake-up, then take all that have come."""
        with suppress(queue.Empty):
            self._handle_result(self._results.get(timeout=wait_sec) if wait_sec > 0 else self._results.get_nowait())
            while True:
                self._handle_result(self._results.get_nowait())

    def _handle_result(self, result: deliveries.AttemptResult | None) -> None:
        if result is None:  # with all slots in use, a wake-up waits for the next result or the usual time
            has_free_slot = len(self._in_flight) < MAX_IN_FLIGHT
            poll_at = time.monotonic() + BATCH_WINDOW_SEC if has_free_slot else self._polled_at + conf.POLL_SEC
            self._next_poll_at = min(self._next_poll_at, poll_at)
            return
        self._in_flight.pop(result.delivery.id, None)
        self._unrecorded.append(result)
        self._next_poll_at = 0.0  # a slot is free

    def _next_wait(self) -> float:
        renew_at = self._renewed_at + deliveries.RENEW_SEC if self._in_flight else self._next_poll_at
        return max(min(self._next_poll_at, renew_at) - time.monotonic(), 0.0)

    def _run_turn(self) -> bool:
        """Record, renew, and poll if it is time. Return whether there was work, or attempts are in flight."""
        self._record_results()
        self._renew_leases()
        if time.monotonic() < self._next_poll_at:
            return bool(self._in_flight)
        self._polled_at = time.monotonic()
        self._next_poll_at = self._polled_at + conf.POLL_SEC
        with db.connection().cursor() as cursor:
            cursor.execute(_POLL_STATE)
            has_messages, has_enabled_endpoints = map(bool, cursor.fetchone())
        if not has_messages and not has_enabled_endpoints:
            self._next_poll_at = self._polled_at + IDLE_POLL_FACTOR * conf.POLL_SEC
        self._subscribe_to_commits(has_enabled_endpoints and self in _senders)
        has_worked = has_messages and self._fan_out()
        free_slots = MAX_IN_FLIGHT - len(self._in_flight)
        if has_enabled_endpoints and free_slots > 0:
            self._start_attempts(deliveries.claim_due(free_slots))
        return has_worked or bool(self._in_flight)

    def _subscribe_to_commits(self, wanted: bool) -> None:
        """Be woken by commits of this process only while there is an endpoint: most sites have none."""
        if wanted:
            events_committed.connect(self.wake, weak=False)  # a repeated call adds nothing
        else:
            events_committed.disconnect(self.wake)

    def _fan_out(self) -> bool:
        """Fan out one batch, unless the pause after the last one has not ended. Return whether messages may be left."""
        started = time.monotonic()
        if started >= self._next_fan_out_at(started):
            message_count = fanout.fan_out()
            self._has_idle_endpoint = fanout.has_idle_endpoint()
            self._fanned_out_at = time.monotonic()
            self._fan_out_took = self._fanned_out_at - started
            if not message_count:
                return False
        self._next_poll_at = min(self._next_poll_at, self._next_fan_out_at(started))
        return True

    def _next_fan_out_at(self, now: float) -> float:
        """Return the end of the pause after a batch, which is as long as the batch took.

        While jobs run in this process and no endpoint is idle, the pause is longer: the jobs go first.
        """
        in_background = now - self._events_committed_at < BUSY_SEC and not self._has_idle_endpoint
        pause = self._fan_out_took * (BACKGROUND_PAUSE_FACTOR if in_background else PAUSE_FACTOR)
        return self._fanned_out_at + min(pause, MAX_PAUSE_SEC)

    def _run_turn_safely(self) -> None:
        """Run a turn. An unexpected exception must not end this thread: nothing restarts it."""
        try:
            self._run_turn()
        except DatabaseError:
            raise
        except Exception:
            logger.exception("a turn of the webhook sender failed; the next one follows in %s s", conf.POLL_SEC)
            self._next_poll_at = time.monotonic() + conf.POLL_SEC

    def _renew_leases(self) -> None:
        if self._in_flight and time.monotonic() >= self._renewed_at + deliveries.RENEW_SEC:
            deliveries.renew_leases(self._in_flight.values())
            self._renewed_at = time.monotonic()

    def _record_results(self) -> None:
        if self._unrecorded:
            deliveries.record_results(self._unrecorded)
            self.attempt_count += len(self._unrecorded)
            self._unrecorded = []

    def _start_attempts(self, claimed: list[deliveries.ClaimedDelivery]) -> None:
        if claimed and not self._in_flight:
            self._renewed_at = time.monotonic()
        for delivery in claimed:
            self._in_flight[delivery.id] = delivery
            name = f"webhook {delivery.id}"
            threading.Thread(target=self._attempt, args=(delivery,), name=name, daemon=True).start()

    def _attempt(self, delivery: deliveries.ClaimedDelivery) -> None:
        self._results.put(attempt.attempt_delivery(delivery))

    def _await_results(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while self._in_flight and (left := deadline - time.monotonic()) > 0:
            self._drain_results(min(left, deliveries.RENEW_SEC))
            self._renew_leases()
        self._record_results()


_POLL_STATE = f"""
    SELECT EXISTS (SELECT 1 FROM {WebhookMessage._meta.db_table} WHERE fanned_out_at IS NULL),
           EXISTS (SELECT 1 FROM {WebhookEndpoint._meta.db_table} WHERE enabled)
"""  # noqa: S608 — names of tables only


def send_due() -> str:
    """Fan out and send what is due: the maintenance task of a process that does not stay."""
    return Sender().run_once()
