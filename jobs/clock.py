"""What time it is for the jobs: by their database's clock, and in the terms of their time-ordered ids."""

from __future__ import annotations

from datetime import UTC, datetime
from uuid import UUID

from django.utils import timezone

from jobs import db


def now() -> datetime:
    """On SQLite the database's clock is this host's."""
    if db.is_sqlite():
        return timezone.now()
    with db.connection().cursor() as cursor:
        cursor.execute("SELECT statement_timestamp()")
        moment: datetime = cursor.fetchone()[0]
    return moment.astimezone(UTC)


def first_id(moment: datetime) -> UUID:
    """The smallest id that something born at this moment can have: the primary key is the index for ages."""
    return UUID(int=max(int(moment.timestamp() * 1000), 0) << 80)
