"""A hint to sleeping workers, sent with the commit. Nothing depends on its arrival: workers also poll."""

from __future__ import annotations

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
