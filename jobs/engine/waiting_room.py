"""How a direct call waits for its turn: it listens where the database tells, and looks again now and then anyway."""

from __future__ import annotations

import time
from typing import Any

from jobs import db
from jobs.conf import conf
from jobs.engine.contracts import ROOM
from jobs.engine.listener import Listener
from jobs.engine.wakeup import CHANNEL

FIRST_LOOK_SEC, LAST_LOOK_SEC = 0.02, 0.5


class Ear:
    """On the caller's own connection, if it is in no transaction; elsewhere it only waits, longer each time."""

    def __init__(self) -> None:
        self._connection: Any = db.connection()
        self._listens = Listener.is_possible() and not self._connection.in_atomic_block
        self._pause = FIRST_LOOK_SEC

    def __enter__(self) -> Ear:
        self._say("LISTEN")
        return self

    def __exit__(self, *raised: object) -> None:
        if self._listens and self._connection.connection is not None and self._connection.is_usable():
            self._say("UNLISTEN")

    def wait(self, seconds: float) -> None:
        """Until there may be room, or it is time to look."""
        if self._listens:
            self._hear(min(seconds, conf.POLL_SEC))
        else:
            time.sleep(min(seconds, self._pause, conf.POLL_SEC))
            self._pause = min(self._pause * 1.5, LAST_LOOK_SEC)

    def _say(self, verb: str) -> None:
        if self._listens:
            with self._connection.cursor() as cursor:
                cursor.execute(f"{verb} {CHANNEL}")

    def _hear(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            with self._connection.wrap_database_errors:
                for note in self._connection.connection.notifies(timeout=left, stop_after=1):
                    if note.payload == ROOM:
                        return
