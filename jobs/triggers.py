"""Triggers in the database: install them, remove them, and name those that are missing.

Each app registers one `TriggerSet`. Its migration installs it, and so does `post_migrate`: on SQLite, Django recreates
a table to change it, and the table's triggers are dropped with the old one, whichever app they belong to. A trigger
that only mentions a table prevents its recreation, so on SQLite they are removed before migrations run.

Triggers that keep rows from being deleted make an exception for `allow_pruning`: their condition is NOT_PRUNING on
PostgreSQL, `NOT {MAY_PRUNE}` on SQLite.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.apps import AppConfig
from django.db import connections, router
from django.db.backends.signals import connection_created
from django.db.migrations.loader import MigrationLoader
from django.db.models.signals import post_migrate, pre_migrate

from jobs import db

NOT_PRUNING = "current_setting('jobscheduler.prune', true) IS DISTINCT FROM 'on'"
MAY_PRUNE = "jobscheduler_may_prune()"  # a function that every connection defines


def build_or_chain(column: str, values: Iterable[str]) -> str:
    """Return the condition that a column has one of these constants, for a trigger of SQLite.

    For an IN list of more than two, SQLite builds a table, anew for each row.
    """
    tests = " OR ".join(f"{column} = '{value}'" for value in values)
    return f"({tests})"


class DatabaseTrigger(NamedTuple):
    """`sql` is its CREATE TRIGGER statement. `function` is the function that it executes, on PostgreSQL only.

    `written_table` is another table that it writes.
    """

    name: str
    table: str
    sql: str
    function: str = ""
    written_table: str = ""

    @property
    def drop_sql(self) -> str:
        table = f" ON {self.table}" if self.function else ""  # on SQLite, names of triggers are unique in the database
        return f"DROP TRIGGER IF EXISTS {self.name}{table}"


class Function(NamedTuple):
    """A trigger function of PostgreSQL. One that reads tables has the rights and the search path of its owner."""

    name: str
    body: str
    reads_tables: bool = True

    @property
    def definition(self) -> str:
        return f"{'as owner' if self.reads_tables else 'as caller'}: {self.body}"

    @property
    def sql(self) -> str:
        as_owner = " SECURITY DEFINER SET search_path FROM CURRENT" if self.reads_tables else ""
        return f"CREATE OR REPLACE FUNCTION {self.name}() RETURNS trigger LANGUAGE plpgsql{as_owner} AS $${self.body}$$"


@dataclass(frozen=True)
class TriggerSet:
    """The triggers of one app, for each database."""

    postgresql: Sequence[DatabaseTrigger]
    sqlite: Sequence[DatabaseTrigger]
    functions: Sequence[Function] = ()

    def get_expected(self, connection: Any) -> Sequence[DatabaseTrigger]:
        return db.pick(connection, postgresql=self.postgresql, sqlite=self.sqlite)

    def find_missing(self, connection: Any) -> list[DatabaseTrigger]:
        """Return the triggers that are absent, disabled, or not as this version defines them."""
        expected = self.get_expected(connection)
        with connection.cursor() as cursor:
            tables = json.dumps(sorted({trigger.table for trigger in expected}))
            cursor.execute(db.pick(connection, postgresql=_POSTGRESQL_TRIGGERS, sqlite=_SQLITE_TRIGGERS), [tables])
            existing = {name: definition.split() for name, definition in cursor.fetchall()}
        definitions = {function.name: function.definition for function in self.functions}
        return [
            trigger
            for trigger in expected
            if existing.get(trigger.name) != definitions.get(trigger.function, trigger.sql).split()
        ]

    def install(self, connection: Any) -> None:
        """Create or replace the missing triggers. Correct ones are not touched: that would lock their tables.

        Triggers on a table that a later migration creates, or that write one, are left to that migration.
        """
        tables = {"", *connection.introspection.table_names()}
        missing = [
            trigger
            for trigger in self.find_missing(connection)
            if trigger.table in tables and trigger.written_table in tables
        ]
        with connection.cursor() as cursor:
            for function in self._functions_of(missing):
                cursor.execute(function.sql)
            for trigger in missing:
                cursor.execute(trigger.drop_sql)
                cursor.execute(trigger.sql)

    def remove(self, connection: Any) -> None:
        expected = self.get_expected(connection)
        with connection.cursor() as cursor:
            for trigger in expected:
                cursor.execute(trigger.drop_sql)
            for function in self._functions_of(expected):
                cursor.execute(f"DROP FUNCTION IF EXISTS {function.name}()")

    def _functions_of(self, triggers: Sequence[DatabaseTrigger]) -> list[Function]:
        names = {trigger.function for trigger in triggers}
        return [function for function in self.functions if function.name in names]


# Triggers on these tables (a JSON array) with their definition: a function on PostgreSQL, the statement on SQLite.
_POSTGRESQL_TRIGGERS = """
    SELECT t.tgname, CASE WHEN p.prosecdef THEN 'as owner: ' ELSE 'as caller: ' END || p.prosrc
    FROM json_array_elements_text(%s::json) AS expected(name)
    JOIN pg_trigger t ON t.tgrelid = to_regclass(expected.name)
    JOIN pg_proc p ON p.oid = t.tgfoid
    WHERE NOT t.tgisinternal AND t.tgenabled IN ('O', 'A')
"""
_SQLITE_TRIGGERS = """
    SELECT name, sql FROM sqlite_master
    WHERE type = 'trigger' AND tbl_name IN (SELECT value FROM json_each(%s))
"""

_trigger_sets: dict[str, TriggerSet] = {}  # by app label


def register_triggers(config: AppConfig, trigger_set: TriggerSet) -> None:
    """Install an app's triggers after every migration. To be called by its AppConfig's `ready`."""
    _trigger_sets[config.label] = trigger_set
    pre_migrate.connect(_before_migrations, sender=config, dispatch_uid=f"triggers of {config.label}")
    post_migrate.connect(_after_migrations, sender=config, dispatch_uid=f"triggers of {config.label}")


def install_triggers(label: str, connection: Any) -> None:
    """Install the missing triggers of an app."""
    _trigger_sets[label].install(connection)


def remove_triggers(label: str, connection: Any) -> None:
    """Remove the triggers of an app and their functions."""
    _trigger_sets[label].remove(connection)


def remove_all_triggers(connection: Any) -> None:
    """Remove the triggers of all apps."""
    for trigger_set in _trigger_sets.values():
        trigger_set.remove(connection)


def find_missing_triggers(connection: Any) -> list[str]:
    """Return the names of registered triggers that this database lacks, except of apps with unapplied migrations."""
    loader = MigrationLoader(connection, ignore_no_migrations=True)
    migrated = (trigger_set for label, trigger_set in _trigger_sets.items() if _is_migrated(label, loader))
    return [trigger.name for trigger_set in migrated for trigger in trigger_set.find_missing(connection)]


def _before_migrations(sender: AppConfig, using: str, plan: Sequence[Any] | None = None, **kwargs: Any) -> None:
    connection = connections[using]
    if plan and db.recreates_tables(connection):
        remove_triggers(sender.label, connection)


def _after_migrations(sender: AppConfig, using: str, plan: Sequence[Any] | None = None, **kwargs: Any) -> None:
    """Install an app's triggers. Without a plan nothing was migrated: `flush` sends this signal, too."""
    connection = connections[using]
    if plan is None or not db.is_supported(connection):
        return
    is_allowed = any(router.allow_migrate_model(using, model) for model in sender.get_models())
    if is_allowed and _is_migrated(sender.label, MigrationLoader(connection, ignore_no_migrations=True)):
        install_triggers(sender.label, connection)


def _is_migrated(label: str, loader: MigrationLoader) -> bool:
    return all(leaf in loader.applied_migrations for leaf in loader.graph.leaf_nodes(label))


_pruning = threading.local()


@contextmanager
def allow_pruning(connection: Any) -> Iterator[None]:
    """Let the transaction that the caller has opened delete rows that triggers keep otherwise."""
    if db.is_sqlite(connection):
        with _allow_pruning_by_thread():
            yield
        return
    with connection.cursor() as cursor:
        cursor.execute("SELECT set_config('jobscheduler.prune', 'on', true)")
        yield
        cursor.execute("SELECT set_config('jobscheduler.prune', '', true)")  # after an error, the rollback does it


@contextmanager
def _allow_pruning_by_thread() -> Iterator[None]:
    before, _pruning.is_allowed = _may_prune(), True
    try:
        yield
    finally:
        _pruning.is_allowed = before


def _may_prune() -> bool:
    return getattr(_pruning, "is_allowed", False)


def prepare_connections() -> None:
    """Prepare all connections of this process, also those that are open already. To be called by an app's `ready`."""
    connection_created.connect(_prepare_connection, dispatch_uid="jobs.triggers")
    for connection in connections.all(initialized_only=True):
        if connection.connection is not None:
            _prepare_connection(connection=connection)


def _prepare_connection(*, connection: Any, **kwargs: Any) -> None:
    """Define the function that triggers of SQLite call, and let `flush` delete there: SQLite has no TRUNCATE."""
    if not db.recreates_tables(connection):
        return
    connection.connection.create_function(MAY_PRUNE.removesuffix("()"), 0, _may_prune)
    flush = type(connection.ops).execute_sql_flush

    def execute_sql_flush(sql_list: Sequence[str]) -> None:
        with _allow_pruning_by_thread():
            flush(connection.ops, sql_list)

    connection.ops.execute_sql_flush = execute_sql_flush
