"""How long-lived threads live with a database that goes away and comes back."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from django.db import DatabaseError, InterfaceError, OperationalError, close_old_connections

from jobs import db

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 5.0
IDLE_SEC = 5.0
MISSING = (OperationalError, InterfaceError)


class Outage:
    """Survives database errors: one log line when it begins, one when it ends, a growing pause in between."""

    def __init__(self, logger: logging.Logger, what: str, end: threading.Event | None = None) -> None:
        self.logger = logger
        self.what = what
        self.end = end or threading.Event()
        self._since: float | None = None
        self._pause = FIRST_PAUSE
        self._used = 0.0

    @contextmanager
    def survive(self) -> Iterator[None]:
        """Run one turn. A broken connection is closed, not used again; one that has idled is looked at first."""
        if time.monotonic() - self._used > IDLE_SEC:
            close_old_connections()
        try:
            yield
        except MISSING as error:
            self._begin(error)
            close()
            self.end.wait(self._pause * random.uniform(0.5, 1.0))  # noqa: S311 — spreads load, guards nothing
            self._pause = min(self._pause * 2, LONGEST_PAUSE)
        except DatabaseError:
            close()
            self.logger.exception("%s: the database refused", self.what)
            self.end.wait(1.0)
        else:
            self._finish()

    @property
    def is_on(self) -> bool:
        return self._since is not None

    def _begin(self, error: Exception) -> None:
        if self._since is None:
            self._since = time.monotonic()
            reason = str(error).strip().splitlines() or [type(error).__name__]
            self.logger.warning("%s: the database cannot be reached (%s); trying again", self.what, reason[0])

    def _finish(self) -> None:
        self._used = time.monotonic()
        if self._since is not None:
            away = time.monotonic() - self._since
            self.logger.warning("%s: the database is back after %.1f s", self.what, away)
        self._since, self._pause = None, FIRST_PAUSE


def close() -> None:
    """Close this thread's connection even if it is broken in the middle of a transaction."""
    connection = db.connection()
    connection.in_atomic_block = False
    connection.savepoint_ids = []
    connection.needs_rollback = False
    connection.close()


def short_timeouts(seconds: float) -> None:
    """Let no statement or lock of this connection take longer: the next turn can try again."""
    connection = db.connection()
    if connection.vendor != "postgresql":
        return
    connection.ensure_connection()
    raw = connection.connection
    if getattr(raw, "jobs_timeouts", None) == seconds:
        return
    milliseconds = max(int(seconds * 1000), 100)
    with connection.cursor() as cursor:
        cursor.execute(f"SET statement_timeout = {milliseconds}; SET lock_timeout = {milliseconds}")
    try:
        raw.jobs_timeouts = seconds
    except AttributeError:  # a connection that takes no marks is told every time
        return
