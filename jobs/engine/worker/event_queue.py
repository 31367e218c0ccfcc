"""What wakes the loop: results of handlers, wake-ups by other threads and, on SQLite, commits of other connections."""

from __future__ import annotations

import queue
import time
from enum import Enum

from jobs import db
from jobs.engine.worker.running_jobs import RunningJob
from jobs.outcomes import Outcome

CHANGE_POLL_SEC = 0.02  # how often to ask whether another connection has committed


class Wakeup(Enum):
    """Why the loop shall turn, other than for a result."""

    TURN = 0  # no more than that
    READY = 1  # something may be ready
    TARGETS = 2  # targets have changed, too
    CHANGE = 3  # another connection has committed something


Event = tuple[RunningJob, Outcome] | Wakeup


class EventQueue:
    """Filled by any thread, emptied by the loop's."""

    def __init__(self) -> None:
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._data_version: object = object()  # what the database holds at the start counts as a change

    def put(self, event: Event) -> None:
        self._events.put(event)

    def is_empty(self) -> bool:
        return self._events.empty()

    def wait(self, seconds: float, *, watch: bool) -> Event | None:
        """Return the next event, or None when the time is up. With `watch`, commits of others are events, too."""
        if watch and seconds > 0 and self._data_version is not None:
            return self._watch(seconds)
        return self._get(seconds)

    def _watch(self, seconds: float) -> Event | None:
        """Ask for the version before looking at a change, so that the next one is not missed."""
        until = time.monotonic() + seconds
        with db.watch_commits() as data_version:
            while (left := until - time.monotonic()) > 0:
                event = self._get(min(left, CHANGE_POLL_SEC))
                if event is not None:
                    return event
                before, self._data_version = self._data_version, data_version()
                if self._data_version is None:  # the database notifies: no need to ask it again
                    return self._get(max(until - time.monotonic(), 0.0))
                if self._data_version != before:
                    return Wakeup.CHANGE
        return None

    def _get(self, seconds: float) -> Event | None:
        try:
            return self._events.get(timeout=seconds)
        except queue.Empty:
            return None
