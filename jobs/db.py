"""Which database the jobs live in, a transaction on it that may write from its first statement, own connections."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from django.apps import apps
from django.conf import settings
from django.db import connections, router, transaction
from django.db.backends.base.base import BaseDatabaseWrapper


def alias() -> str:
    return router.db_for_write(_job())


@cache
def _job() -> Any:
    return apps.get_model("jobscheduler_jobs", "Job")


def connection() -> BaseDatabaseWrapper:
    return connections[alias()]


def is_sqlite() -> bool:
    return connection().vendor == "sqlite"


@contextmanager
def atomic(*, durable: bool = False) -> Iterator[BaseDatabaseWrapper]:
    """`transaction.atomic` on the jobs' database.

    On SQLite the outermost transaction starts IMMEDIATE whatever the host's settings say: a transaction that
    reads first and writes later cannot wait for its turn, it fails with "database is locked".
    """
    using = connection()
    with _immediate(using), transaction.atomic(using=using.alias, durable=durable):
        yield using


def after_commit(do: Callable[[], None]) -> None:
    """Once what was written is there to stay: at once, outside of a transaction."""
    using = connection()
    if using.in_atomic_block:
        using.on_commit(do)
    else:
        do()


def data_version() -> object:
    """Return a value that differs from the last one if another connection may have committed; None on PostgreSQL.

    Costs microseconds and never waits for a lock. Ask outside of transactions, on the connection that looks at the
    change. A new connection, and one that could not answer, count as changed.
    """
    using = connection()
    if using.vendor != "sqlite":
        return None
    raw = using.connection
    try:
        return raw, _ask_data_version(raw)
    except (AttributeError, sqlite3.Error):  # not connected, or busy
        return object()


def _ask_data_version(raw: Any) -> int:
    (timeout,) = raw.execute("PRAGMA busy_timeout").fetchone()
    raw.execute("PRAGMA busy_timeout = 0")
    try:
        (version,) = raw.execute("PRAGMA data_version").fetchone()
    finally:
        raw.execute(f"PRAGMA busy_timeout = {timeout}")
    return int(version)


@contextmanager
def own_connection() -> Iterator[None]:
    """Give this thread a connection to the jobs' database outside of Django's pool; close it if it was opened within.

    For a worker's own threads: a heartbeat that waits for handlers to return a pooled connection loses its leases.
    Where the host asks for another isolation level, it is READ COMMITTED: under a stricter one a count after a lock
    sees the snapshot before it, and limits are exceeded.
    """
    theirs = connection()
    options = theirs.settings_dict.get("OPTIONS", {})
    is_own = theirs.vendor == "postgresql" and (bool(options.get("pool")) or "isolation_level" in options)
    own = _without_pool(theirs) if is_own else theirs
    was_open = own.connection is not None
    connections[theirs.alias] = own
    try:
        yield
    finally:
        if not was_open:
            own.close()
        connections[theirs.alias] = theirs


def _without_pool(theirs: BaseDatabaseWrapper) -> BaseDatabaseWrapper:
    from django.db.backends.postgresql.psycopg_any import IsolationLevel

    own = theirs.copy()
    own.settings_dict["OPTIONS"].pop("pool", None)
    own.settings_dict["OPTIONS"]["isolation_level"] = IsolationLevel.READ_COMMITTED
    return own


def pool_size(alias: str) -> int | None:
    """Return how many connections Django's pool gives to one process; None without a pool."""
    pool = connections[alias].settings_dict.get("OPTIONS", {}).get("pool")
    if not pool:
        return None
    named = pool if isinstance(pool, dict) else {}
    smallest = named.get("min_size", 4)  # psycopg_pool's default
    return int(named.get("max_size") or smallest)


def non_atomic(view: Any) -> Any:
    """Exempt a view from ATOMIC_REQUESTS, on whichever database a site has set it."""
    for name in settings.DATABASES:
        view = transaction.non_atomic_requests(using=name)(view)
    return view


@contextmanager
def _immediate(using: Any) -> Iterator[None]:
    if using.vendor != "sqlite" or using.in_atomic_block:
        yield
        return
    using.ensure_connection()  # connecting sets the mode that the host's settings ask for
    before = using.transaction_mode
    using.transaction_mode = "IMMEDIATE"
    try:
        yield
    finally:
        using.transaction_mode = before
