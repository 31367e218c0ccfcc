"""Keep the leases of this process's direct calls."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID

from jobs import db
from jobs.conf import conf
from jobs.engine.database import Outage, short_timeouts
from jobs.engine.slots import leases
from jobs.engine.worker.heartbeat import margin

logger = logging.getLogger("jobs.engine.slots.heartbeat")


@dataclass
class Kept:
    on_lost: Callable[[], None]
    deadline: float  # the lease is sure to be ours until then, by the steady clock


class Keeper:
    """Keeps the leases of this process's direct calls, on one thread and one connection for all of them.

    It starts with the first lease and ends with the last. A lease that cannot be renewed in time is lost before it
    runs out, and its callback stops the call.
    """

    def __init__(self) -> None:
        self._kept: dict[UUID, Kept] = {}
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._thread: threading.Thread | None = None

    def keep(self, lease_id: UUID, on_lost: Callable[[], None]) -> None:
        with self._lock:
            self._kept[lease_id] = Kept(on_lost, _deadline())
            if self._thread is None or not self._thread.is_alive():  # a forked child has none
                self._changed.clear()
                self._thread = threading.Thread(target=self._run, name="lease-keeper", daemon=True)
                self._thread.start()

    def drop(self, lease_id: UUID) -> None:
        with self._lock:
            self._kept.pop(lease_id, None)
            if not self._kept:
                self._changed.set()

    def _run(self) -> None:
        outage = Outage(logger, "leases of direct calls", self._changed)
        try:
            while not self._is_over():
                with outage.survive():
                    short_timeouts(conf.LEASE_SEC / 3)
                    self._beat()
                with self._lock:
                    late = [(key, kept) for key, kept in self._kept.items() if time.monotonic() > kept.deadline]
                for lease_id, kept in late:
                    self._lose(lease_id, kept)
        finally:
            db.connection().close()

    def _is_over(self) -> bool:
        """Waits for the next beat, or until there is nothing left to keep."""
        due = time.monotonic() + conf.HEARTBEAT_SEC
        while (left := due - time.monotonic()) > 0:
            self._changed.wait(left)
            with self._lock:
                if not self._kept:
                    self._thread = None
                    return True
                self._changed.clear()  # what was left is kept by now: another one came
        return False

    def _beat(self) -> None:
        with self._lock:
            ids = list(self._kept)
        until = _deadline()
        renewed, over = leases.beat(ids) if ids else (set(), set())
        for lease_id in renewed | over:
            with self._lock:
                kept = self._kept.get(lease_id)
            if kept is None:
                continue
            if lease_id in renewed:
                kept.deadline = until
            else:
                self._lose(lease_id, kept)

    def _lose(self, lease_id: UUID, kept: Kept) -> None:
        logger.warning("the lease %s of a direct call is lost", lease_id)
        self.drop(lease_id)
        kept.on_lost()


def _deadline() -> float:
    return time.monotonic() + conf.LEASE_SEC - margin()


keeper = Keeper()
