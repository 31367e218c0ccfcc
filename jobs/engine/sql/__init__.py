"""Statements that must be fast: one file per verb, PostgreSQL and SQLite side by side, as literal text."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.utils.dateparse import parse_datetime


def to_stored(connection: Any, value: Any) -> Any:
    """Convert a parameter to the form that SQLite stores."""
    if isinstance(value, datetime):
        return connection.ops.adapt_datetimefield_value(value)
    return value.hex if isinstance(value, UUID) else value


def to_datetime(stored: str | datetime) -> datetime:
    """Convert a time that a database returned. SQLite's columns are naive datetimes, its expressions text."""
    parsed = parse_datetime(stored) if isinstance(stored, str) else stored
    assert parsed is not None, stored
    return parsed if parsed.tzinfo is not None else parsed.replace(tzinfo=UTC)
