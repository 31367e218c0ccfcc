"""The jobs' database: its alias, connection and kind, its transactions, and statements prepared on the server."""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from itertools import count
from threading import local
from typing import Any, TypeVar
from uuid import UUID

from django.apps import apps
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import OperationalError, connections, router, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

T = TypeVar("T")
SUPPORTED = ("postgresql", "sqlite")
Statement = tuple[str, Any]  # SQL and its parameters
NOW = "statement_timestamp()"
# None would forbid preparing altogether; other statements of the site are not prepared, as before.
EXPLICIT_PREPARE_ONLY = 1_000_000_000
LOCK_POLL_SEC = 0.01  # for SQLite's write lock; a tenth of it after LOCK_PATIENCE_SEC
LOCK_PATIENCE_SEC, CROWD_SEC, LONGEST_LOCK_POLL_SEC = 0.2, 1.0, 0.05
LATENESS_FACTOR = 2
LONG_LOCK_SEC, LONGEST_LOCK_PAUSE_SEC = 0.1, 0.5


def alias() -> str:
    """Return the alias of the database that the jobs are in."""
    return router.db_for_write(_job_model())


@cache
def _job_model() -> Any:
    return apps.get_model("jobscheduler_jobs", "Job")


def connection() -> BaseDatabaseWrapper:
    """Return this thread's connection to the jobs' database."""
    return connections[alias()]


def pick(connection: BaseDatabaseWrapper, *, postgresql: T, sqlite: T) -> T:
    """Return the variant for this connection's database."""
    return sqlite if is_sqlite(connection) else postgresql


def is_sqlite(on: BaseDatabaseWrapper | None = None) -> bool:
    """Return whether this connection, or the jobs' database, is SQLite. Raise for an unsupported database."""
    using = on or connection()
    if using.vendor not in SUPPORTED:
        raise ImproperlyConfigured(f"The job scheduler runs on PostgreSQL and SQLite, not on {using.vendor}.")
    return using.vendor == "sqlite"


def is_supported(connection: Any) -> bool:
    """Return whether the job scheduler runs on this database."""
    return connection.vendor in SUPPORTED


def has_server(connection: Any) -> bool:
    """Return whether the database is a server: a socket, notifications, settings for each session."""
    return bool(connection.vendor == "postgresql")


def recreates_tables(connection: Any) -> bool:
    """Return whether Django changes a table by creating a new one: triggers that mention it prevent that."""
    return bool(connection.vendor == "sqlite")


def to_uuid(stored: Any) -> Any:
    """Convert a UUID that a raw query returned: SQLite stores text."""
    return stored if stored is None or isinstance(stored, UUID) else UUID(hex=stored)


def to_stored_uuid(value: UUID) -> UUID | str:
    """Convert a UUID to a parameter of a raw query."""
    return value.hex if is_sqlite() else value


def has_one_writer() -> bool:
    """Return whether all writers of the jobs' database share one lock."""
    return is_sqlite()


def clock_may_jump() -> bool:
    """Return whether the database's clock is the host's, so that leases need a steady clock beside it."""
    return is_sqlite()


def sqlite_options(alias: str) -> Mapping[str, Any] | None:
    """Return the OPTIONS of a SQLite database; None for any other."""
    using = connections[alias]
    return using.settings_dict.get("OPTIONS", {}) if using.vendor == "sqlite" else None


@contextmanager
def atomic(*, durable: bool = False) -> Iterator[BaseDatabaseWrapper]:
    """Open a transaction on the jobs' database.

    On SQLite the outermost transaction starts IMMEDIATE whatever the host's settings say: a transaction that
    reads first and writes later cannot wait for the lock, it fails with "database is locked".

    On PostgreSQL it is READ COMMITTED whatever the host's default is: a transaction that waits for the lock of a limit
    or a group, and then counts, must see what was committed meanwhile.
    """
    using = connection()
    outermost = not using.in_atomic_block
    block = transaction.atomic(using=using.alias, durable=durable)
    with _immediate(using, block) if outermost and using.vendor == "sqlite" else block:
        if outermost and using.vendor == "postgresql" and not _is_read_committed(using):
            with using.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")
        yield using


@contextmanager
def atomic_on_sqlite() -> Iterator[BaseDatabaseWrapper]:
    """Open a transaction on SQLite, where several statements are needed, or one waits for the lock as in `atomic`.

    PostgreSQL has one statement and needs none.
    """
    using = connection()
    if using.vendor == "sqlite":
        with atomic():
            yield using
    else:
        yield using


def _is_read_committed(using: Any) -> bool:
    """Return whether transactions of this connection are READ COMMITTED anyway. Read once per connection."""
    raw = using.connection
    known: bool | None = getattr(raw, "jobs_read_committed", None)
    if known is None:
        level = getattr(raw, "isolation_level", None)
        if level is None:  # the server's default applies; roles and databases may have their own
            with using.cursor() as cursor:
                cursor.execute("SHOW default_transaction_isolation")
                known = cursor.fetchone()[0] == "read committed"
        else:
            known = level.name == "READ_COMMITTED"
        raw.jobs_read_committed = known
    return known


def is_in_transaction() -> bool:
    """Return whether the caller is in a transaction. That of a Django test case, which rolls it back, is none."""
    return not all(getattr(block, "_from_testcase", False) for block in connection().atomic_blocks)


def after_commit(callback: Callable[[], None]) -> None:
    """Call this after the commit; at once, outside of a transaction."""
    using = connection()
    if using.in_atomic_block:
        using.on_commit(callback)
    else:
        callback()


@contextmanager
def watch_commits() -> Iterator[Callable[[], object]]:
    """Yield `data_version`: its value differs from the last one if another connection may have committed.

    It costs microseconds and never waits for a lock; None on PostgreSQL, which notifies. A new connection, and one
    that could not answer, count as changed. Use it outside of transactions, on the connection that reads the change.
    """
    using = connection()
    if using.vendor != "sqlite":
        yield lambda: None
        return
    raw = using.connection
    timeout_ms = _swap_busy_timeout(raw, 0)
    try:
        yield lambda: _data_version(raw)
    finally:
        _swap_busy_timeout(raw, timeout_ms)


def _data_version(raw: Any) -> object:
    try:
        return raw, raw.execute("PRAGMA data_version").fetchone()
    except (AttributeError, sqlite3.Error):  # not connected, or busy
        return object()


def _swap_busy_timeout(raw: Any, milliseconds: int) -> int:
    """Set how many milliseconds to wait for a lock; return the previous value."""
    try:
        (before,) = raw.execute("PRAGMA busy_timeout").fetchone()
        if before != milliseconds:
            raw.execute(f"PRAGMA busy_timeout = {milliseconds}")
    except (AttributeError, sqlite3.Error):
        return milliseconds
    return int(before)


def use_own_connection() -> None:
    """Give the calling thread a connection to the jobs' database outside of Django's pool, READ COMMITTED.

    For a worker's own threads. A heartbeat that waits for handlers to return a pooled connection loses its leases, and
    under a stricter isolation level a count after a lock sees the snapshot before it: limits are exceeded. Without a
    pool and a stricter level in the settings, Django's own connection stays.
    """
    shared = connection()
    if shared.vendor != "postgresql" or not _has_pool_or_strict_isolation(shared.settings_dict["OPTIONS"]):
        return
    own = copy_connection()
    if not shared.in_atomic_block:
        shared.close()  # back to the pool, for handlers
    connections[shared.alias] = own


def copy_connection() -> BaseDatabaseWrapper:
    """Return another connection to the jobs' PostgreSQL, not open yet: outside of Django's pool, READ COMMITTED."""
    own = connection().copy()
    own.settings_dict["OPTIONS"] |= {"pool": None, "isolation_level": _read_committed()}
    return own


def has_transaction_pooler() -> bool:
    """Return whether a pooler may give each transaction another session: so say Django's settings for the database."""
    return bool(connection().settings_dict.get("DISABLE_SERVER_SIDE_CURSORS", False))


def assume_transaction_pooler() -> None:
    """Do in this process as if the settings had DISABLE_SERVER_SIDE_CURSORS: prepare no statements, do not listen."""
    for settings_dict in (connections.settings[alias()], connection().settings_dict):
        settings_dict["DISABLE_SERVER_SIDE_CURSORS"] = True


def _has_pool_or_strict_isolation(options: Mapping[str, Any]) -> bool:
    return bool(options.get("pool")) or options.get("isolation_level", _read_committed()) != _read_committed()


def _read_committed() -> Any:
    from psycopg import IsolationLevel

    return IsolationLevel.READ_COMMITTED


def pool_size() -> int | None:
    """Return how many connections Django's pool gives to one process; None without a pool."""
    pool = connection().settings_dict.get("OPTIONS", {}).get("pool")
    if not pool:
        return None
    options = pool if isinstance(pool, dict) else {}
    min_size = options.get("min_size", 4)  # psycopg_pool's default
    return int(options.get("max_size") or min_size)


def non_atomic(view: Any) -> Any:
    """Exempt a view from ATOMIC_REQUESTS of every database."""
    for name in settings.DATABASES:
        view = transaction.non_atomic_requests(using=name)(view)
    return view


@contextmanager
def _immediate(using: Any, block: Any) -> Iterator[None]:
    """Enter the outermost transaction on SQLite, IMMEDIATE, as soon as the write lock is free.

    SQLite has no queue of writers: each polls, with SQLite's own timeout ever less often, and a request waits for many
    seconds beside writers that follow each other closely. Here a writer polls the more often the longer it has waited,
    and a thread that has held the lock for long leaves it to others before it takes it again. A crowd of writers polls
    less often: it would leave no CPU to the one that has the lock.
    """
    using.ensure_connection()  # connecting sets the mode of the host's settings
    if (pause := getattr(_thread, "lock_again_at", 0.0) - time.monotonic()) > 0:
        time.sleep(pause)
    with ExitStack() as stack:
        began_at, timeout_ms = time.monotonic(), _swap_busy_timeout(using.connection, 0)
        mode_before, using.transaction_mode = using.transaction_mode, "IMMEDIATE"
        try:
            late_sec = 0.0
            while not _try_enter(stack, block, is_last=(waited := time.monotonic() - began_at) > timeout_ms / 1000):
                late_sec = _sleep(compute_lock_pause(waited, late_sec))
        finally:
            using.transaction_mode = mode_before
            _swap_busy_timeout(using.connection, timeout_ms)
        entered_at = time.monotonic()
        yield
    excess = time.monotonic() - entered_at - LONG_LOCK_SEC
    _thread.lock_again_at = time.monotonic() + min(max(excess, 0.0), LONGEST_LOCK_PAUSE_SEC)


_thread = local()


def compute_lock_pause(waited_sec: float, late_sec: float) -> float:
    """Return the seconds until the next try. `late_sec` is by how much the last pause was too long.

    Pauses are late when the CPUs are busy. Fifty processes that poll every millisecond keep two CPUs busy, and each of
    their transactions takes twenty times as long. Who has waited for CROWD_SEC may be in such a crowd.
    """
    if waited_sec < LOCK_PATIENCE_SEC:
        return LOCK_POLL_SEC
    crowd_sec = LATENESS_FACTOR * late_sec if waited_sec >= CROWD_SEC else 0.0
    return min(LOCK_POLL_SEC / 10 + crowd_sec, LONGEST_LOCK_POLL_SEC)


def _sleep(seconds: float) -> float:
    """Sleep; return by how many seconds it was too long."""
    began_at = time.monotonic()
    time.sleep(seconds)
    return max(time.monotonic() - began_at - seconds, 0.0)


def _try_enter(stack: ExitStack, block: Any, *, is_last: bool) -> bool:
    """Enter the transaction; return False if another connection has the lock. Raise at the last try."""
    try:
        stack.enter_context(block)
    except OperationalError as error:
        cause = error.__cause__
        if is_last or not isinstance(cause, sqlite3.Error) or cause.sqlite_errorcode != sqlite3.SQLITE_BUSY:
            raise
        # The frames of Django's exception refer to it, and to the cursor. The garbage collector would reset that cursor
        # in any thread, and stop it for as long as this connection waits for a lock: 20 s, seen while it had the lock.
        error.__traceback__ = cause.__traceback__ = None
        return False
    return True


def set_short_timeouts(seconds: float) -> None:
    """Limit the statements, locks and idle transactions of this connection: the next turn can try again."""
    milliseconds = max(int(seconds * 1000), 100)
    _apply_session_settings(
        {
            "statement_timeout": str(milliseconds),
            "lock_timeout": str(milliseconds * 9 // 10),  # comes first: waiting for a lock is not an outage
            "idle_in_transaction_session_timeout": str(milliseconds),
        }
    )


def prefer_indexes() -> None:
    """Forbid sequential scans: the queue may fill within seconds, and an old plan would scan all of it."""
    _apply_session_settings({"enable_seqscan": "off", "plan_cache_mode": "force_generic_plan"})


def set_read_committed() -> None:
    """Override a stricter default isolation of the role or database: limits are counted after a lock."""
    _apply_session_settings({"default_transaction_isolation": "'read committed'"})


def _apply_session_settings(session_settings: dict[str, str]) -> None:
    """Set parameters on this thread's PostgreSQL connection, once for each connection."""
    using = connection()
    if not has_server(using):
        return
    using.ensure_connection()
    raw = using.connection
    applied = getattr(raw, "jobs_settings", {})
    if session_settings.items() <= applied.items():
        return
    with using.cursor() as cursor:
        cursor.execute("; ".join(f"SET {name} = {value}" for name, value in session_settings.items()))
    with suppress(AttributeError):  # a connection without attributes gets the settings each time
        raw.jobs_settings = applied | session_settings


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
    if connection.queries_logged or connection.execute_wrappers or not _has_pipelines():
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


def to_text_array(values: Iterable[str]) -> str:
    """Format an array of texts, each quoted."""
    quoted = ['"' + value.replace("\\", r"\\").replace('"', r"\"") + '"' for value in values]
    return f"{{{','.join(quoted)}}}"


def _execute_prepared(raw: Any, sql: str, params: Any, *, index: int = 0) -> Any:
    """Execute a statement with the connection's cursor for this index of a pipeline; a new one costs 6 % of a turn.

    The placeholders are the server's own ($1): the driver would search a long statement for ours every time.
    """
    text, names = _number_placeholders(sql)
    values = params if params is None else [params[name] for name in names] if names else list(params)
    cursors = raw.__dict__.setdefault("jobs_cursors", {})
    cursor = cursors.get(index) or cursors.setdefault(index, _create_cursor(raw))
    return cursor.execute(text, values, prepare=raw.jobs_prepare)


def _create_cursor(raw: Any) -> Any:
    from psycopg import RawCursor

    return RawCursor(raw)


@cache
def _has_pipelines() -> bool:
    from psycopg import Pipeline

    return Pipeline.is_supported()


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
