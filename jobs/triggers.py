"""Triggers in the database: install them, remove them, and name those that are missing.

Each app registers one `TriggerSet`. Its migration installs it, and so does `post_migrate`: on SQLite, Django remakes a
table to change it, and the table's triggers go with the old one, whichever app they belong to. A trigger that only
mentions a table keeps that table from being remade, so on SQLite they are removed before migrations run.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from django.apps import AppConfig
from django.db import connections, router
from django.db.migrations.loader import MigrationLoader
from django.db.models.signals import post_migrate, pre_migrate


class Trigger(NamedTuple):
    """`sql` is its CREATE TRIGGER statement. `function` is the PostgreSQL function that it executes."""

    name: str
    table: str
    sql: str
    function: str = ""


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

    postgresql: Sequence[Trigger]
    sqlite: Sequence[Trigger]
    functions: Sequence[Function] = ()

    def expected(self, connection: Any) -> Sequence[Trigger]:
        return self.postgresql if connection.vendor == "postgresql" else self.sqlite

    def missing(self, connection: Any) -> list[str]:
        """Name the triggers that are absent, disabled, or not as this version defines them."""
        expected = self.expected(connection)
        if connection.vendor == "postgresql":
            function_of = {function.name: function for function in self.functions}
            definitions = {trigger.name: function_of[trigger.function].definition for trigger in expected}
        else:
            definitions = {trigger.name: _normalize(trigger.sql) for trigger in expected}
        existing = _existing(connection, {trigger.table for trigger in expected})
        return [name for name, definition in definitions.items() if existing.get(name) != definition]

    def install(self, connection: Any) -> None:
        """Create or replace what is missing. A trigger that is as it should be is not touched: that locks its table."""
        missing = set(self.missing(connection))
        triggers = [trigger for trigger in self.expected(connection) if trigger.name in missing]
        used = {trigger.function for trigger in triggers}
        with connection.cursor() as cursor:
            for function in self.functions:
                if connection.vendor == "postgresql" and function.name in used:
                    cursor.execute(function.sql)
            for trigger in triggers:
                cursor.execute(_drop(connection, trigger))
                cursor.execute(trigger.sql)

    def remove(self, connection: Any) -> None:
        with connection.cursor() as cursor:
            for trigger in self.expected(connection):
                cursor.execute(_drop(connection, trigger))
            for function in self.functions if connection.vendor == "postgresql" else ():
                cursor.execute(f"DROP FUNCTION IF EXISTS {function.name}()")


_sets: dict[str, TriggerSet] = {}  # by app label


def register(config: AppConfig, triggers: TriggerSet) -> None:
    """Keep an app's triggers in place: called by its AppConfig's `ready`."""
    _sets[config.label] = triggers
    pre_migrate.connect(_before_migrations, sender=config, dispatch_uid=f"triggers of {config.label}")
    post_migrate.connect(_after_migrations, sender=config, dispatch_uid=f"triggers of {config.label}")


def install_triggers(label: str, connection: Any) -> None:
    _sets[label].install(connection)


def remove_triggers(label: str, connection: Any) -> None:
    _sets[label].remove(connection)


def missing_triggers(connection: Any) -> list[str]:
    """Name every trigger of ours that this database lacks; of apps with migrations left to apply, nothing is said."""
    loader = MigrationLoader(connection, ignore_no_migrations=True)
    migrated = (triggers for label, triggers in _sets.items() if _is_migrated(label, loader))
    return [name for triggers in migrated for name in triggers.missing(connection)]


def _before_migrations(sender: AppConfig, using: str, plan: Sequence[Any] | None = None, **kwargs: Any) -> None:
    connection = connections[using]
    if plan and connection.vendor == "sqlite":
        remove_triggers(sender.label, connection)


def _after_migrations(sender: AppConfig, using: str, plan: Sequence[Any] | None = None, **kwargs: Any) -> None:
    """Without a plan nothing was migrated: `flush` sends this signal, too."""
    connection = connections[using]
    if plan is None or connection.vendor not in ("postgresql", "sqlite"):
        return
    allowed = any(router.allow_migrate_model(using, model) for model in sender.get_models())
    if allowed and _is_migrated(sender.label, MigrationLoader(connection, ignore_no_migrations=True)):
        install_triggers(sender.label, connection)


def _is_migrated(label: str, loader: MigrationLoader) -> bool:
    return all(leaf in loader.applied_migrations for leaf in loader.graph.leaf_nodes(label))


def _existing(connection: Any, tables: Iterable[str]) -> dict[str, str]:
    """Triggers on these tables: on PostgreSQL with what their function is, on SQLite with their statement."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(_POSTGRES_TRIGGERS, [sorted(tables)])
            return dict(cursor.fetchall())
        cursor.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'")
        return {name: _normalize(sql) for name, sql in cursor.fetchall()}


_POSTGRES_TRIGGERS = """
    SELECT t.tgname, CASE WHEN p.prosecdef THEN 'as owner: ' ELSE 'as caller: ' END || p.prosrc
    FROM unnest(%s::text[]) AS expected(name)
    JOIN pg_trigger t ON t.tgrelid = to_regclass(expected.name)
    JOIN pg_proc p ON p.oid = t.tgfoid
    WHERE NOT t.tgisinternal AND t.tgenabled IN ('O', 'A')
"""


def _drop(connection: Any, trigger: Trigger) -> str:
    table = f" ON {trigger.table}" if connection.vendor == "postgresql" else ""
    return f"DROP TRIGGER IF EXISTS {trigger.name}{table}"


def _normalize(sql: str) -> str:
    return " ".join(sql.split())
