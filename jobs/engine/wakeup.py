"""A hint to sleeping workers, sent with the commit. Nothing depends on its arrival: workers also poll."""

from __future__ import annotations

from collections.abc import Callable

from jobs import db

CHANNEL = "jobscheduler"
READY = "ready"
LANE = "lane"  # what is ready must be found out first: a lane has changed
STOP = "stop"


def notify(message: str) -> None:
    """PostgreSQL sends equal notifications of one transaction once."""
    connection = db.connection()
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_notify(%s, %s)", [CHANNEL, message])


_ears: dict[str, Callable[[], None]] = {}


def hear(message: str, callback: Callable[[], None]) -> None:
    """In a process that listens, call this when the message comes. For other apps; the same message replaces."""
    _ears[message] = callback


def heard(message: str) -> bool:
    """Whether a message was another app's, which has then been told."""
    callback = _ears.get(message)
    if callback is not None:
        callback()
    return callback is not None
