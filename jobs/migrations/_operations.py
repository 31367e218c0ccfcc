"""Migration steps whose SQL depends on the database."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from django.db.migrations.operations.base import Operation

from jobs import db, triggers


class VendorSQL(Operation):
    """Statements for each vendor, and those that take them back. A vendor that is not named does nothing."""

    reduces_to_sql = True
    reversible = True

    def __init__(self, *, forwards: dict[str, Sequence[str]], backwards: dict[str, Sequence[str]]) -> None:
        self.forwards = forwards
        self.backwards = backwards

    def state_forwards(self, app_label: str, state: Any) -> None:
        return None

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        self._run(app_label, schema_editor, self.forwards)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        self._run(app_label, schema_editor, self.backwards)

    def describe(self) -> str:
        return "SQL of the database's own kind"

    def _run(self, app_label: str, schema_editor: Any, statements: dict[str, Sequence[str]]) -> None:
        if not self.allow_migrate_model(schema_editor.connection.alias, _model(app_label)):
            return
        for statement in statements.get(schema_editor.connection.vendor, ()):
            schema_editor.execute(statement, params=None)


class OnlyOnSQLite(Operation):
    """Operations whose statements only SQLite needs; the state changes everywhere."""

    reduces_to_sql = True
    reversible = True

    def __init__(self, *operations: Operation) -> None:
        self.operations = operations

    def state_forwards(self, app_label: str, state: Any) -> None:
        for operation in self.operations:
            operation.state_forwards(app_label, state)

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if not db.recreates_tables(schema_editor.connection):
            return
        for operation in self.operations:
            to_state = from_state.clone()
            operation.state_forwards(app_label, to_state)
            operation.database_forwards(app_label, schema_editor, from_state, to_state)
            from_state = to_state

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        if not db.recreates_tables(schema_editor.connection):
            return
        states = [to_state]
        for operation in self.operations:
            state = states[-1].clone()
            operation.state_forwards(app_label, state)
            states.append(state)
        for operation, after, before in reversed(list(zip(self.operations, states[1:], states[:-1], strict=True))):
            operation.database_backwards(app_label, schema_editor, after, before)

    def describe(self) -> str:
        return "On SQLite only"


class InstallTriggers(Operation):
    """Install the triggers that an app has registered (see `jobs.triggers`); backwards, remove them."""

    reduces_to_sql = False
    reversible = True

    def state_forwards(self, app_label: str, state: Any) -> None:
        return None

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        self._run(app_label, schema_editor, triggers.install_triggers)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        self._run(app_label, schema_editor, triggers.remove_triggers)

    def describe(self) -> str:
        return "Install triggers"

    def _run(self, app_label: str, schema_editor: Any, change: Callable[[str, Any], None]) -> None:
        if self.allow_migrate_model(schema_editor.connection.alias, _model(app_label)):
            change(app_label, schema_editor.connection)


class RemoveTriggers(Operation):
    """Remove all triggers on SQLite, where they prevent that a table is recreated; they are installed after the run.

    `jobs.triggers` removes them before a run, but an earlier migration of the same run may have installed them.
    """

    reduces_to_sql = False
    reversible = True

    def state_forwards(self, app_label: str, state: Any) -> None:
        return None

    def database_forwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        connection = schema_editor.connection
        if self.allow_migrate_model(connection.alias, _model(app_label)) and db.recreates_tables(connection):
            triggers.remove_all_triggers(connection)

    def database_backwards(self, app_label: str, schema_editor: Any, from_state: Any, to_state: Any) -> None:
        return None  # a run that goes back installs none

    def describe(self) -> str:
        return "Remove triggers"


def _model(app_label: str) -> Any:
    from django.apps import apps

    return next(apps.get_app_config(app_label).get_models())
