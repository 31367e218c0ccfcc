"""Survive database outages: long-lived threads go on when a database goes away, comes back or stops responding."""

from __future__ import annotations

import logging
import os
import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from django.db import DatabaseError, DataError, IntegrityError, InterfaceError, OperationalError, close_old_connections

from jobs import db

FIRST_PAUSE_SEC, LONGEST_PAUSE_SEC = 0.1, 4.0
RECOVERY_CHECK_SEC = 0.25
IDLE_SEC = 60.0
OUTAGE_ERRORS = (OperationalError, InterfaceError)
ROLLED_BACK_SQLSTATES = {"40001", "40P01", "55P03"}  # serialization failure, deadlock, lock timeout
RAISED_BY_TRIGGER = "P0001"  # PL/pgSQL's RAISE EXCEPTION


class OutageGuard:
    """Lets one thread survive database errors, with exponential backoff.

    The threads of a process log one outage together: a line when the first of them has failed twice, and one when the
    last has recovered. A first failure is not logged: most often an idle connection had been closed.
    """

    def __init__(
        self,
        logger: logging.Logger,
        name: str,
        stopped: threading.Event | None = None,
        *,
        timeout_factor: float = 1.0,
        is_listener: bool = False,
    ) -> None:
        self.logger = logger
        self.name = name
        self.stopped = stopped or threading.Event()
        self.timeout_factor = timeout_factor  # multiplies the timeout of `break_hung_connections`
        self.is_listener = is_listener  # it cannot tell a dead connection from silence
        self.failures = 0
        self._used_at = 0.0
        self._has_own_connection = False  # the thread's connection is outside of Django's pool

    @contextmanager
    def survive(self, *, rejections: bool = True) -> Iterator[None]:
        """Run one turn, on a connection outside of Django's pool. A broken one is closed, an idle one is tested first.

        With `rejections`, other database errors are logged and survived, too; a caller that only repeats the rejected
        statement passes False. A turn that was rolled back for another transaction is no outage: the caller repeats it.
        """
        if not self._has_own_connection:
            db.use_own_connection()
            self._has_own_connection = True
        now = time.monotonic()
        _active_turns[self] = (now, db.connection())
        if now - self._used_at > IDLE_SEC:
            close_old_connections()
        try:
            yield
        except OUTAGE_ERRORS as error:
            if not is_rolled_back(error):
                close_connection()
                self.failures += 1
                if self.failures > 1:
                    _outage_log.record_failure(self, error)
                self._back_off()
        except DatabaseError:
            close_connection()
            if not rejections:
                raise
            self.logger.exception("%s: the database rejected a statement", self.name)
            self._sleep(1.0)
        else:
            if not self.failures:
                self._used_at = time.monotonic()
            elif db.connection().connection is None:
                self._back_off()  # the turn did not use the database, so the outage may last
            else:
                self.mark_recovered()
        finally:
            _active_turns.pop(self, None)

    @property
    def is_active(self) -> bool:
        """Return whether the last turn failed."""
        return self.failures > 0

    def mark_active(self) -> None:
        """Restart the timeout of this turn: the database has just responded."""
        _active_turns[self] = (time.monotonic(), db.connection())

    def mark_recovered(self) -> None:
        """End the outage of this thread: the database has responded."""
        self._used_at = time.monotonic()
        if self.is_active:
            self.failures = 0
            _outage_log.record_recovery(self)

    def _back_off(self) -> None:
        pause = min(FIRST_PAUSE_SEC * 2 ** min(self.failures - 1, 10), LONGEST_PAUSE_SEC)
        self._sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311 — spreads load, guards nothing

    def _sleep(self, seconds: float) -> None:
        """Sleep for so long, or until another thread of this process has recovered."""
        _active_turns.pop(self, None)
        began = time.monotonic()
        while (left := began + seconds - time.monotonic()) > 0 and _outage_log.recovered_at < began:
            if self.stopped.wait(min(left, RECOVERY_CHECK_SEC)):
                return


class OutageLog:
    """The threads of this process that cannot reach the database; logs the begin and the end of their outage."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failing: set[OutageGuard] = set()
        self._since = 0.0
        self.recovered_at = 0.0  # when a thread last recovered

    def record_failure(self, outage: OutageGuard, error: Exception) -> None:
        """Add a thread; log the outage if it is the first."""
        with self._lock:
            first, self._failing = not self._failing, self._failing | {outage}
            if first:
                self._since = time.monotonic()
                reason = str(error).strip().splitlines() or [type(error).__name__]
                outage.logger.warning("%s: the database cannot be reached (%s); trying again", outage.name, reason[0])

    def record_recovery(self, outage: OutageGuard) -> None:
        """Remove a thread; log the recovery if it was the last."""
        with self._lock:
            self.recovered_at = time.monotonic()
            last, self._failing = self._failing == {outage}, self._failing - {outage}
            if last:
                down_sec = time.monotonic() - self._since
                outage.logger.warning("%s: the database is back after %.1f s", outage.name, down_sec)


_outage_log = OutageLog()
_active_turns: dict[OutageGuard, tuple[float, Any]] = {}


def break_hung_connections(seconds: float) -> None:
    """Shut down the connection of every thread that has waited longer for a response, so that it reconnects.

    On a dead connection a client waits for ever: no timeout of the server and no keepalive helps while some peer on
    the way still acknowledges packets.
    """
    now = time.monotonic()
    turns = [(outage, *turn) for outage, turn in _active_turns.copy().items()]
    hung = {outage for outage, since, _ in turns if now - since > seconds * outage.timeout_factor}
    for outage, _, connection in turns:
        if db.has_server(connection) and (outage in hung or (hung and outage.is_listener)):
            _active_turns[outage] = (now, connection)
            raw = connection.connection
            if raw is not None and not raw.closed:
                with suppress(OSError, connection.Database.Error), socket.socket(fileno=os.dup(raw.fileno())) as peer:
                    peer.shutdown(socket.SHUT_RDWR)


def is_rolled_back(error: BaseException) -> bool:
    """Return whether the database rolled the transaction back for another one: repeat it; this is no outage."""
    return _sqlstate(error) in ROLLED_BACK_SQLSTATES


def is_rejection(error: BaseException) -> bool:
    """Return whether the database rejects the written values, now and later. A missing column, say, is no rejection."""
    return isinstance(error, IntegrityError | DataError) or _sqlstate(error) == RAISED_BY_TRIGGER


def _sqlstate(error: BaseException) -> str | None:
    return getattr(error.__cause__, "sqlstate", None)


def close_connection() -> None:
    """Close this thread's connection even if it is broken in the middle of a transaction."""
    connection = db.connection()
    connection.in_atomic_block = False
    connection.savepoint_ids = []
    connection.needs_rollback = False
    connection.close()
