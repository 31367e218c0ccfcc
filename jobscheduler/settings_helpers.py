"""Helpers of the settings: validate LOG_LEVEL and SECRET_KEY, complete DATABASE_URL, create a development secret."""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.utils import get_random_secret_key

MIN_SECRET_LENGTH = 32
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
SQLITE_PRAGMAS = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",  # a commit survives a power failure
    "PRAGMA journal_size_limit=67108864",
)


def parse_log_level(name: str) -> str:
    if name.upper() not in LOG_LEVELS:
        raise ImproperlyConfigured(f"LOG_LEVEL must be one of {', '.join(LOG_LEVELS)}, not {name!r}.")
    return name.upper()


def require_long_secret(secret: str) -> None:
    if len(secret) < MIN_SECRET_LENGTH:
        raise ImproperlyConfigured(
            f"SECRET_KEY has {len(secret)} characters, but it signs sessions and encrypts the secrets of webhooks: it "
            f"needs {MIN_SECRET_LENGTH}. Make one with: python -c 'import secrets; print(secrets.token_urlsafe(50))'"
        )


class PrivateConnection(sqlite3.Connection):
    """A connection whose database file, if it has to be created, is readable by its owner only.

    SQLite gives the files beside it (-wal, -shm, -journal) the same mode.
    """

    def __init__(self, database: Any, *args: Any, **kwargs: Any) -> None:
        name = os.fspath(database)
        if not name.startswith((":memory:", "file:")):
            with suppress(OSError):  # it exists, or SQLite reports why it cannot be created
                os.close(os.open(name, os.O_CREAT | os.O_EXCL, 0o600))
        super().__init__(database, *args, **kwargs)


def complete_database(database: dict[str, Any]) -> dict[str, Any]:
    """Add the options that each database needs; options in the URL take precedence."""
    engine = database.get("ENGINE", "")
    if engine.endswith("sqlite3"):
        connection: dict[str, Any] = {}
        options = {
            "transaction_mode": "IMMEDIATE",
            "timeout": 20,
            "init_command": "; ".join(SQLITE_PRAGMAS),
            "factory": PrivateConnection,
        }
    elif engine.endswith("postgresql"):
        from psycopg import IsolationLevel

        connection = {"CONN_MAX_AGE": 60, "CONN_HEALTH_CHECKS": True}
        keepalive = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
        options = {"connect_timeout": 5, "isolation_level": IsolationLevel.READ_COMMITTED, **keepalive}
    else:
        raise ImproperlyConfigured("DATABASE_URL must begin with sqlite:/// or postgres://, or be absent.")
    return {**database, **connection, "OPTIONS": {**options, **database.get("OPTIONS", {})}}


def read_or_create_secret(path: Path) -> str:
    """Return the secret in `path`, created by the first process; two at the same time get the same one."""
    if not path.exists():
        with NamedTemporaryFile("w", dir=path.parent, prefix=path.name) as draft:  # readable by its owner only
            draft.write(get_random_secret_key() + "\n")
            draft.flush()
            with suppress(FileExistsError):  # of a process that was first
                os.link(draft.name, path)  # atomic: it never exposes an incomplete file
    return path.read_text().strip()
