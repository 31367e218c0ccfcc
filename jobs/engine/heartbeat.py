"""Keeps the worker's leases and hears stop requests, on a thread and a connection of its own.

A second thread owns the deadlines: the beat itself may hang in the network for ever, and handlers must be stopped
before their leases run out.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from jobs import db
from jobs.conf import conf
from jobs.engine import identity
from jobs.engine.connections import Outage, break_hung, short_timeouts
from jobs.engine.leases import Held, Leases, named
from jobs.engine.sql.claim import renew_leases
from jobs.models import Job
from jobs.states import StopMode

logger = logging.getLogger("jobs.engine.heartbeat")
STUBBORN_SEC = 5.0  # how long a handler gets to stop before it counts as one that cannot be stopped
LOOK_SEC = 2.0  # how often stop requests are looked for, however rare the beats are


class Heartbeat(threading.Thread):
    """Beats until told to end; the worker tells it after its last handler has ended."""

    def __init__(self, leases: Leases, *, on_beat: Callable[[], None] = lambda: None) -> None:
        super().__init__(name="heartbeat", daemon=True)
        self.leases = leases
        self.on_beat = on_beat
        self._wake = threading.Event()
        self._end = threading.Event()
        self._outage = Outage(logger, "heartbeats")
        self._beaten = 0.0

    def run(self) -> None:
        pause = min(conf.HEARTBEAT_SEC, LOOK_SEC)
        while not self._end.is_set():
            self._wake.wait(pause)
            self._wake.clear()
            with self._outage.survive():
                short_timeouts(conf.LEASE_SEC / 3)
                self._turn()
        db.connection().close()

    def nudge(self) -> None:
        """Look for stop requests now."""
        self._wake.set()

    def end(self) -> None:
        self._end.set()
        self._wake.set()

    def _turn(self) -> None:
        held = list(self.leases)
        if time.monotonic() - self._beaten >= conf.HEARTBEAT_SEC * 0.9:
            self._beat(held)
            self.on_beat()
        elif held:
            self._look(held)

    def _beat(self, held: list[Held]) -> None:
        sent = time.monotonic()
        if held:
            with db.atomic() as connection:
                leases = [(each.id, each.claim.lease_token) for each in held]
                clock = identity.beat_clock() if connection.vendor == "sqlite" else None
                answers = renew_leases(connection, leases, conf.LEASE_SEC, clock)
            for each in held:
                if each.id in answers:
                    each.deadline = sent + conf.LEASE_SEC - margin()
                    _hear(each, *answers[each.id])
            self._look_again([each for each in held if each.id not in answers])
            logger.debug("renewed %d of %d leases", len(answers), len(held))
        self._beaten = sent

    def _look_again(self, missing: list[Held]) -> None:
        """A row that was not renewed is locked by somebody, or ended by ourselves just now, or no longer ours."""
        tokens = _tokens(missing)
        lost = [each for each in missing if tokens.get(each.id) != each.claim.lease_token and not each.returned]
        if lost:
            logger.warning("lost the leases of %s; stopping their handlers", named(lost))
        for each in lost:
            each.lose()

    def _look(self, held: list[Held]) -> None:
        jobs = Job.objects.filter(pk__in=[each.id for each in held], cancel_requested=True)
        asked = {job: (token, mode) for job, token, mode in jobs.values_list("pk", "lease_token", "cancel_mode")}
        for each in held:
            token, mode = asked.get(each.id, (None, ""))
            if token == each.claim.lease_token:
                _hear(each, True, mode)


class Watchdog(threading.Thread):
    """Keeps the deadlines by the steady clock: of leases, of runtimes, and of stops that are ignored."""

    def __init__(
        self, leases: Leases, *, on_timeout: Callable[[Held], None], on_stubborn: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(name="watchdog", daemon=True)
        self.leases = leases
        self.on_timeout = on_timeout
        self.on_stubborn = on_stubborn
        self._end = threading.Event()

    def run(self) -> None:
        while not self._end.wait(min(0.2, conf.LEASE_SEC / 20)):
            break_hung(conf.LEASE_SEC)
            now = time.monotonic()
            self._fence(now)
            for held in self.leases:
                self._judge(held, now)

    def end(self) -> None:
        self._end.set()

    def _fence(self, now: float) -> None:
        """A handler that has returned cannot do harm."""
        out = [held for held in self.leases if now > held.deadline and not (held.lost or held.returned)]
        if out:
            logger.warning("the leases of %s may run out before they are renewed; stopping their handlers", named(out))
        for held in out:
            held.lose()

    def _judge(self, held: Held, now: float) -> None:
        limit, started = held.claim.max_runtime_sec, held.started
        if limit is not None and started is not None and now - started > limit and not (held.timed_out or held.lost):
            held.timed_out = True
            self.on_timeout(held)
        if held.timed_out and held.kill is None and held.asked_at and now - held.asked_at > STUBBORN_SEC:
            self.on_stubborn()
        patience = conf.CANCEL_TIMEOUT_SEC
        if patience is not None and held.kill is not None and held.asked_at and now - held.asked_at > patience:
            held.kill()


def margin() -> float:
    """How long before the end of its lease a handler is stopped."""
    return max(conf.LEASE_SEC * 0.1, min(1.0, conf.LEASE_SEC / 4))


def _hear(held: Held, requested: bool, mode: str) -> None:
    if requested and held.ctx.stop_mode != mode:
        logger.info("job %s: stop requested (%s)", held.id, mode)
        held.ask_to_stop(StopMode(mode))


def _tokens(held: list[Held]) -> dict[object, object]:
    if not held:
        return {}
    rows = Job.objects.filter(pk__in=[each.id for each in held])
    return dict(rows.values_list("pk", "lease_token"))
