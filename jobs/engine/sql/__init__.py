"""The statements that must be fast, written once per kind of database."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from django.core.exceptions import ImproperlyConfigured

from jobs import db

Statement = tuple[str, Any]  # SQL and its parameters


def compiled(rows: Any) -> Statement:
    """A queryset as SQL. Django compiles a locking one only where it could be run."""
    with db.atomic():
        sql, params = rows.query.get_compiler(db.alias()).as_sql()
    return sql, tuple(params)


def dialect(connection: Any) -> ModuleType:
    if connection.vendor == "postgresql":
        from jobs.engine.sql import postgres

        return postgres
    if connection.vendor == "sqlite":
        from jobs.engine.sql import sqlite

        return sqlite
    raise ImproperlyConfigured(f"The job scheduler runs on PostgreSQL and SQLite, not on {connection.vendor}.")
