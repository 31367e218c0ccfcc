"""The statements that must be fast: one file per verb, PostgreSQL and SQLite side by side, as literal text."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.utils.dateparse import parse_datetime

Statement = tuple[str, Any]  # SQL and its parameters


def to_uuid(stored: Any) -> Any:
    """Convert what a raw query returns of a UUID column: SQLite stores text."""
    return stored if stored is None or isinstance(stored, UUID) else UUID(hex=stored)


def to_stored(connection: Any, value: Any) -> Any:
    """Convert a parameter to what SQLite stores."""
    if isinstance(value, datetime):
        return connection.ops.adapt_datetimefield_value(value)
    return value.hex if isinstance(value, UUID) else value


def to_datetime(stored: str | datetime) -> datetime:
    """Convert what SQLite returns of a time: Django's converters make plain columns naive, an expression stays text."""
    parsed = parse_datetime(stored) if isinstance(stored, str) else stored
    assert parsed is not None, stored
    return parsed.replace(tzinfo=UTC)
