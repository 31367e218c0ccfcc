"""Notify waiting workers with the commit. Nothing depends on the arrival of a notification: workers also poll.

PostgreSQL's notifications arrive on a connection of their own; on SQLite, and behind transaction poolers, workers only
poll.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any
from uuid import UUID, uuid4

from jobs import db
from jobs.outages import OutageGuard, close_connection

logger = logging.getLogger("jobs.engine.notifications")

CHANNEL = "jobscheduler"
ENDED_CHANNEL = "jobscheduler_ended"  # of processes that wait for ends: the id of a job that has a waiter
READY = "ready"
LANE = "lane"  # a target has changed: the promoter has to run before jobs are ready
STOP = "stop"
DEADLINE = "deadline"  # a waiting job has a deadline that maintenance may not know
PING_SEC = 15.0
TEST_CHANNEL = "jobscheduler_test"
TEST_SEC = 5.0  # how long a notification may take; a pooler does not deliver it later either


def notify(message: str) -> None:
    """Send a message with the commit; PostgreSQL sends equal messages of one transaction once. No-op on SQLite."""
    connection = db.connection()
    if db.has_server(connection):
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, %s)", [CHANNEL, message])


def check_delivery(seconds: float = TEST_SEC) -> bool:
    """Send this process a notification on two new connections; return whether it arrived.

    LISTEN belongs to a session of the server. A transaction pooler gives its clients any session for each transaction,
    accepts LISTEN without an error, and drops what arrives on a session that no client uses.
    """
    message = uuid4().hex
    with closing(db.copy_connection()) as listening, closing(db.copy_connection()) as sending:
        with listening.cursor() as cursor:
            cursor.execute(f"LISTEN {TEST_CHANNEL}")
        with sending.cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, %s)", [TEST_CHANNEL, message])
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            with listening.wrap_database_errors:
                for notification in listening.connection.notifies(timeout=left, stop_after=1):
                    if notification.payload == message:  # others may be testing, too
                        return True
    return False


_callbacks: dict[str, Callable[[], None]] = {}


def on_notification(message: str, callback: Callable[[], None]) -> None:
    """Register a callback for a message, in a process that listens. It replaces an earlier one."""
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
        """Return whether the database has notifications, and the settings name no transaction pooler in between."""
        return db.has_server(db.connection()) and not db.has_transaction_pooler()

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
        for wake in (lambda: self.on_ready(True), *_callbacks.values()):
            wake()  # changes before LISTEN sent no notification to this connection
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


class EndListener:
    """Waits, on its thread's connection, for notifications of ended jobs; on SQLite for any commit.

    `wake` ends a wait from another thread. Without notifications, `is_listening` is False and the caller polls.
    """

    def __init__(self) -> None:
        self._receiver, self._sender = socket.socketpair()
        self._receiver.setblocking(False)
        self._sender.setblocking(False)
        self._listening_on: Any = None  # the driver's connection
        self._data_version: object = None

    @property
    def is_listening(self) -> bool:
        return self._listening_on is not None

    def wake(self) -> None:
        with suppress(OSError):  # a full buffer wakes as well; a closed one belongs to a thread that has ended
            self._sender.send(b"w")

    def close(self) -> None:
        self._receiver.close()
        self._sender.close()

    def start(self) -> bool:
        """Listen on this thread's connection, if it is a new one; return whether it is."""
        connection = db.connection()
        connection.ensure_connection()
        if not Listener.can_listen() or connection.connection is self._listening_on:
            return False
        self._listening_on = None
        with connection.cursor() as cursor:
            cursor.execute(f"LISTEN {ENDED_CHANNEL}")
        self._listening_on = connection.connection
        return True

    def wait(self, seconds: float, commit_poll_sec: float) -> set[UUID] | None:
        """Wait for so many seconds or until a wake-up. Return the ids of ended jobs; None if any may have ended."""
        if self.is_listening:
            return self._receive() or self._wait_for_notification(seconds)
        until = time.monotonic() + seconds
        with db.watch_commits() as data_version:
            while (left := until - time.monotonic()) > 0:
                before, self._data_version = self._data_version, data_version()
                if self._data_version != before:
                    return None
                if self._select(left if self._data_version is None else min(left, commit_poll_sec)):
                    break
        return set()

    def _wait_for_notification(self, seconds: float) -> set[UUID]:
        raw = self._listening_on
        with db.connection().wrap_database_errors:
            self._select(seconds, raw.fileno())
        return self._receive()

    def _receive(self) -> set[UUID]:
        with db.connection().wrap_database_errors:
            return {UUID(notification.payload) for notification in self._listening_on.notifies(timeout=0)}

    def _select(self, seconds: float, *files: int) -> bool:
        """Wait until one of these files or the wake-up can be read; return whether it was the wake-up."""
        with selectors.DefaultSelector() as selector:
            for file in (self._receiver.fileno(), *files):
                selector.register(file, selectors.EVENT_READ)
            selector.select(seconds)
        try:
            return bool(self._receiver.recv(4096))
        except BlockingIOError:
            return False
