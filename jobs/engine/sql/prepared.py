"""Execute the frequent statements of PostgreSQL, prepared on the server."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from itertools import count
from typing import Any
from uuid import UUID

from django.db import transaction

from jobs.engine.sql import Statement

NOW = "statement_timestamp()"
# None would forbid preparing altogether; other statements of the site are not prepared, as before.
EXPLICIT_PREPARE_ONLY = 1_000_000_000


def execute(connection: Any, sql: str, params: Any) -> list[Any]:
    """Run a statement, prepared on the server unless the site logs or wraps its queries. Return all rows."""
    if connection.queries_logged or connection.execute_wrappers:
        with connection.cursor() as cursor:
            cursor.execute(sql, params)
            return cursor.fetchall()
    raw = _get_driver_connection(connection)
    with connection.wrap_database_errors:
        return _execute_prepared(raw, sql, params).fetchall()


def execute_together(connection: Any, *statements: Statement) -> list[list[Any]]:
    """Run statements in one round trip and one commit. Return the rows of each; raise the first error that occurred."""
    from psycopg import Pipeline

    if connection.queries_logged or connection.execute_wrappers or not Pipeline.is_supported():
        with transaction.atomic(using=connection.alias):
            return [execute(connection, *statement) for statement in statements]
    raw = _get_driver_connection(connection)
    with connection.wrap_database_errors:
        with raw.pipeline():  # up to its end the server treats all statements as one transaction
            cursors = [_execute_prepared(raw, *statement, index=index) for index, statement in enumerate(statements)]
        return [cursor.fetchall() for cursor in cursors]


def to_array(values: Iterable[UUID | int]) -> str:
    """Format an array parameter as PostgreSQL reads it; the driver's own dumper is many times slower."""
    return f"{{{','.join(map(str, values))}}}"


def _execute_prepared(raw: Any, sql: str, params: Any, *, index: int = 0) -> Any:
    """Execute a statement with the connection's cursor for this index of a pipeline; a new one costs 6 % of a turn.

    The placeholders are the server's own ($1): the driver would search a long statement for ours every time.
    """
    from psycopg import RawCursor

    text, names = _number_placeholders(sql)
    values = params if params is None else [params[name] for name in names] if names else list(params)
    cursors = raw.__dict__.setdefault("jobs_cursors", {})
    cursor = cursors.get(index) or cursors.setdefault(index, RawCursor(raw))
    return cursor.execute(text, values, prepare=raw.jobs_prepare)


@cache
def _number_placeholders(sql: str) -> tuple[bytes, list[str]]:
    """Replace the placeholders by numbered ones; return the statement and the names of the placeholders, in order."""
    names: list[str] = []
    numbers = count(1)

    def replace(match: re.Match[str]) -> str:
        if match[0] == "%%":
            return "%"
        if match[1] is None:
            return f"${next(numbers)}"
        if match[1] not in names:
            names.append(match[1])
        return f"${names.index(match[1]) + 1}"

    return re.sub(r"%%|%s|%\((\w+)\)s", replace, sql).encode(), names


def _get_driver_connection(connection: Any) -> Any:
    """Return the driver's connection; its `jobs_prepare` tells whether statements can be prepared on the server.

    They cannot behind a transaction pooler, where Django's settings disable server-side cursors.
    """
    connection.close_if_health_check_failed()
    connection.ensure_connection()
    connection.validate_no_broken_transaction()
    raw = connection.connection
    if raw.prepare_threshold is None:
        raw.prepare_threshold = EXPLICIT_PREPARE_ONLY
    raw.jobs_prepare = not connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS", False)
    return raw
