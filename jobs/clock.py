"""The time by the clock of the jobs' database."""

from __future__ import annotations

from datetime import UTC, datetime

from django.utils import timezone

from jobs import db


def now() -> datetime:
    """Return the time of the database; with SQLite, of this host."""
    if db.clock_may_jump():
        return timezone.now()
    with db.connection().cursor() as cursor:
        cursor.execute("SELECT statement_timestamp()")
        moment: datetime = cursor.fetchone()[0]
    return moment.astimezone(UTC)
