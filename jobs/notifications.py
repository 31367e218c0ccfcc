"""Notify waiting workers with the commit. Nothing depends on the arrival of a notification: workers also poll.

PostgreSQL's notifications arrive on a connection of their own; on SQLite, and behind poolers, workers only poll.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from jobs import db
from jobs.outages import OutageGuard, close_connection

logger = logging.getLogger("jobs.engine.notifications")

CHANNEL = "jobscheduler"
READY = "ready"
LANE = "lane"  # a target has changed: the promoter has to run before jobs are ready
STOP = "stop"
PING_SEC = 15.0


def notify(message: str) -> None:
    """Send a message with the commit; PostgreSQL sends equal messages of one transaction once. No-op on SQLite."""
    connection = db.connection()
    if db.has_server(connection):
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, %s)", [CHANNEL, message])


_callbacks: dict[str, Callable[[], None]] = {}


def on_notification(message: str, callback: Callable[[], None]) -> None:
    """Register a callback of another app for a message, in a process that listens. It replaces an earlier one."""
    _callbacks[message] = callback


class Listener(threading.Thread):
    """Thread that receives notifications. `on_ready` gets True if a target may have changed, too."""

    def __init__(self, *, on_ready: Callable[[bool], None], on_stop: Callable[[], None]) -> None:
        super().__init__(name="listener", daemon=True)
        self.on_ready = on_ready
        self.on_stop = on_stop
        self.is_listening = False
        self._end = threading.Event()
        self._outage = OutageGuard(logger, "notifications", self._end, is_listener=True)

    @staticmethod
    def can_listen() -> bool:
        """Return whether the database has notifications, and no pooler is in between."""
        connection = db.connection()
        pooled = connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS", False)
        return db.has_server(connection) and not pooled

    def run(self) -> None:
        """Listen until the end, through outages."""
        while not self._end.is_set():
            with self._outage.survive():
                self._listen()
            self.is_listening = False
        close_connection()

    def end(self) -> None:
        """Let the thread end within a second."""
        self._end.set()

    def _listen(self) -> None:
        connection = db.connection()
        with connection.cursor() as cursor:
            cursor.execute(f"LISTEN {CHANNEL}")
        self._outage.mark_recovered()
        self.is_listening = True
        self.on_ready(True)  # changes before LISTEN sent no notification to this connection
        silent_sec = 0.0
        while not self._end.is_set():
            self._outage.mark_active()
            with connection.wrap_database_errors:
                for notification in connection.connection.notifies(timeout=1.0, stop_after=1):
                    silent_sec = 0.0
                    self._dispatch(notification.payload)
            silent_sec += 1.0
            if silent_sec >= PING_SEC:
                with connection.cursor() as cursor:
                    cursor.execute("SELECT 1")
                silent_sec = 0.0

    def _dispatch(self, message: str) -> None:
        if message == STOP:
            self.on_stop()
        elif message in _callbacks:
            _callbacks[message]()
        else:
            self.on_ready(message != READY)
