"""A hint to sleeping workers, sent with the commit. Nothing depends on its arrival: workers also poll.

PostgreSQL's notifications are heard on a connection of their own; everywhere else, and behind poolers, workers poll.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from jobs import db
from jobs.outages import Outage, close_connection

logger = logging.getLogger("jobs.engine.notifications")

CHANNEL = "jobscheduler"
READY = "ready"
LANE = "lane"  # what is ready must be found out first: a lane has changed
STOP = "stop"
PING_SEC = 15.0


def notify(message: str) -> None:
    """PostgreSQL sends equal notifications of one transaction once."""
    connection = db.connection()
    if db.has_server(connection):
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, %s)", [CHANNEL, message])


_callbacks: dict[str, Callable[[], None]] = {}


def on_notification(message: str, callback: Callable[[], None]) -> None:
    """In a process that listens, call this when the message comes. For other apps; the same message replaces."""
    _callbacks[message] = callback


class Listener(threading.Thread):
    """`on_ready` is told whether lanes have changed, too."""

    def __init__(self, *, on_ready: Callable[[bool], None], on_stop: Callable[[], None]) -> None:
        super().__init__(name="listener", daemon=True)
        self.on_ready = on_ready
        self.on_stop = on_stop
        self.is_listening = False
        self._end = threading.Event()
        self._outage = Outage(logger, "notifications", self._end, is_listener=True)

    @staticmethod
    def can_listen() -> bool:
        connection = db.connection()
        pooled = connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS", False)
        return db.has_server(connection) and not pooled

    def run(self) -> None:
        while not self._end.is_set():
            with self._outage.survive():
                self._listen()
            self.is_listening = False
        close_connection()

    def end(self) -> None:
        self._end.set()

    def _listen(self) -> None:
        connection = db.connection()
        with connection.cursor() as cursor:
            cursor.execute(f"LISTEN {CHANNEL}")
        self._outage.mark_recovered()
        self.is_listening = True
        self.on_ready(True)  # what came before we listened
        quiet = 0.0
        while not self._end.is_set():
            self._outage.mark_active()
            with connection.wrap_database_errors:
                for note in connection.connection.notifies(timeout=1.0, stop_after=1):
                    quiet = 0.0
                    self._dispatch(note.payload)
            quiet += 1.0
            if quiet >= PING_SEC:
                with connection.cursor() as cursor:
                    cursor.execute("SELECT 1")
                quiet = 0.0

    def _dispatch(self, message: str) -> None:
        if message == STOP:
            self.on_stop()
        elif message in _callbacks:
            _callbacks[message]()
        else:
            self.on_ready(message != READY)
