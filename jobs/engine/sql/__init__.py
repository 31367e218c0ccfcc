"""The statements that must be fast, written once per kind of database."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from django.core.exceptions import ImproperlyConfigured


def dialect(connection: Any) -> ModuleType:
    if connection.vendor == "postgresql":
        from jobs.engine.sql import postgres

        return postgres
    if connection.vendor == "sqlite":
        from jobs.engine.sql import sqlite

        return sqlite
    raise ImproperlyConfigured(f"The job scheduler runs on PostgreSQL and SQLite, not on {connection.vendor}.")
