"""What a DATABASE_URL leaves unsaid: the options that keep jobs safe on each database."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import ImproperlyConfigured

SQLITE_PRAGMAS = (
    "PRAGMA journal_mode=WAL",
    "PRAGMA synchronous=FULL",  # a commit survives a power cut
    "PRAGMA journal_size_limit=67108864",
)


def safe(database: dict[str, Any]) -> dict[str, Any]:
    """The same database with our options; those given in the URL win."""
    if not database.get("ENGINE", "").endswith(("sqlite3", "postgresql")):
        raise ImproperlyConfigured("DATABASE_URL must begin with sqlite:/// or postgres://, or be absent.")
    options = _options(database["ENGINE"])
    return {**database, **_connection(database["ENGINE"]), "OPTIONS": {**options, **database.get("OPTIONS", {})}}


def _options(engine: str) -> dict[str, Any]:
    if engine.endswith("sqlite3"):
        return {"transaction_mode": "IMMEDIATE", "timeout": 20, "init_command": "; ".join(SQLITE_PRAGMAS)}
    if engine.endswith("postgresql"):
        from psycopg import IsolationLevel

        keepalive = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
        return {"connect_timeout": 5, "isolation_level": IsolationLevel.READ_COMMITTED, **keepalive}
    return {}


def _connection(engine: str) -> dict[str, Any]:
    if engine.endswith("postgresql"):
        return {"CONN_MAX_AGE": 60, "CONN_HEALTH_CHECKS": True}
    return {}
