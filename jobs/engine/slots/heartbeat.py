"""Renew the leases of this process's direct calls, on one thread and one connection for all of them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from jobs import db
from jobs.conf import conf
from jobs.db import set_short_timeouts
from jobs.engine.slots import leases
from jobs.engine.worker.heartbeat import STOP_POLL_SEC, lease_margin_sec
from jobs.outages import OutageGuard

logger = logging.getLogger("jobs.engine.slots.heartbeat")


@dataclass
class HeldLease:
    """A lease that is being renewed; `on_lost` stops its direct call."""

    on_lost: Callable[[], None]
    deadline: float  # the lease is certain to be ours until then (monotonic)


class LeaseHeartbeat:
    """Renews leases from the first `add` to the last `remove`.

    A lease that cannot be renewed in time is lost before it runs out, and its callback stops the call. So is a lease
    that an operator has ended.
    """

    def __init__(self) -> None:
        self._held: dict[UUID, HeldLease] = {}
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, lease_id: UUID, on_lost: Callable[[], None]) -> None:
        """Renew this lease from now on."""
        with self._lock:
            self._held[lease_id] = HeldLease(on_lost, _renewed_until())
            if self._thread is None or not self._thread.is_alive():  # a forked child has none
                self._changed.clear()
                self._thread = threading.Thread(target=self._run, name="lease-heartbeat", daemon=True)
                self._thread.start()

    def remove(self, lease_id: UUID) -> None:
        """Stop renewing this lease."""
        with self._lock:
            self._held.pop(lease_id, None)
            if not self._held:
                self._changed.set()

    def _run(self) -> None:
        outage = OutageGuard(logger, "leases of direct calls", self._changed)
        try:
            while self._wait_for_beat():
                with outage.survive():
                    set_short_timeouts(conf.LEASE_SEC / 3)
                    self._beat()
                with self._lock:
                    overdue = [(key, held) for key, held in self._held.items() if time.monotonic() > held.deadline]
                for lease_id, held in overdue:
                    self._report_lost(lease_id, held)
        finally:
            db.connection().close()

    def _wait_for_beat(self) -> bool:
        """Wait until the next heartbeat is due; return False as soon as no lease is left."""
        due = time.monotonic() + min(conf.HEARTBEAT_SEC, STOP_POLL_SEC)
        while (left := due - time.monotonic()) > 0:
            self._changed.wait(left)
            with self._lock:
                if not self._held:
                    self._thread = None
                    return False
                self._changed.clear()  # the last lease was removed, and another one added since
        return True

    def _beat(self) -> None:
        with self._lock:
            lease_ids = list(self._held)
        deadline = _renewed_until()
        renewed, ended = leases.renew_slot_leases(lease_ids) if lease_ids else (set(), set())
        for lease_id in renewed | ended:
            with self._lock:
                held = self._held.get(lease_id)
            if held is None:
                continue
            if lease_id in renewed:
                held.deadline = deadline
            else:
                self._report_lost(lease_id, held)

    def _report_lost(self, lease_id: UUID, held: HeldLease) -> None:
        logger.warning("lease %s of a direct call was lost", lease_id)
        self.remove(lease_id)
        held.on_lost()


def _renewed_until() -> float:
    return time.monotonic() + conf.LEASE_SEC - lease_margin_sec()


lease_heartbeat = LeaseHeartbeat()
