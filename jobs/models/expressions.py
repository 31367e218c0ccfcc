"""Query expressions: literals in the SQL text, times, sizes of JSON, and conditions on tags.

SQLite uses a partial index only if the query repeats the index's condition literally; placeholders do not match it.
`status__in=sql_literals(sorted(ACTIVE))` uses the index that `status__in=sorted(ACTIVE)` cannot use. Conditions with
more than two constants are `is_one_of`, in the index or constraint and in the query.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from django.db.models import BooleanField, F, Func, IntegerField, Q, TextField, Value
from django.db.models.functions import Cast, Now

from jobs import db

_CONSTANT = re.compile(r"[A-Za-z_]+")


class SqlLiteral(Value):
    """Write a whole number or a constant of ASCII letters into the SQL text; never user input."""

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[()]]:
        value = self.value
        if isinstance(value, int):
            return str(int(value)), ()
        if not _CONSTANT.fullmatch(value):
            raise ValueError(f"{value!r} cannot be written into SQL: only whole numbers and constants of letters can")
        return f"'{value}'", ()


def from_now(seconds: float) -> Any:
    """Return the expression for the database's time in so many seconds."""
    return Now() + timedelta(seconds=seconds)


def sql_literals(values: Iterable[int | str]) -> list[Any]:
    """Return the values as literals, for a lookup such as `status__in`."""
    return [SqlLiteral(value) for value in values]


class IsOneOf(Func):
    """Test whether a column has one of several constants.

    SQLite builds a table for an IN list of more than two, in a constraint or the condition of an index anew for each
    row: there it is a chain of OR.
    """

    output_field = BooleanField()

    def __init__(self, column: str, constants: list[str]) -> None:
        super().__init__(F(column))
        self.constants = constants

    def as_sql(self, compiler: Any, connection: Any, *_args: Any, **_context: Any) -> tuple[str, Any]:
        column, params, constants = self._compile(compiler)
        return f"{column} IN ({', '.join(constants)})", params

    def as_sqlite(self, compiler: Any, connection: Any, **_context: Any) -> tuple[str, Any]:
        column, params, constants = self._compile(compiler)
        return f"({' OR '.join(f'{column} = {constant}' for constant in constants)})", tuple(params) * len(constants)

    def _compile(self, compiler: Any) -> tuple[str, Any, list[str]]:
        (expression,) = self.get_source_expressions()  # a column; a parameter where the constraint is validated
        column, params = compiler.compile(expression)
        return column, params, [compiler.compile(SqlLiteral(constant))[0] for constant in self.constants]


def is_one_of(column: str, constants: Iterable[str]) -> Q:
    """Return the condition that a column has one of these constants, written into the SQL text."""
    return Q(IsOneOf(column, [str(constant) for constant in constants]))


class JsonBytes(Func):
    """The bytes of a JSON column as text, counted by the database.

    Not `pg_column_size`: PostgreSQL compresses a megabyte of equal values to a few kilobytes.
    """

    function = "OCTET_LENGTH"
    output_field = IntegerField()

    def __init__(self, column: str) -> None:
        super().__init__(Cast(F(column), TextField()))

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, template="LENGTH(CAST(%(expressions)s AS BLOB))", **context)


class _HasTag(Func):
    """Test whether a JSON array contains a tag, on SQLite, which has no operator for it."""

    template = "EXISTS (SELECT 1 FROM json_each(%(expressions)s)"
    arg_joiner = ") WHERE value = "
    output_field = BooleanField()


class _TagStartsWith(Func):
    """Test whether one of the tags starts with a prefix."""

    output_field = BooleanField()

    def __init__(self, prefix: str) -> None:
        elements, tag = ("json_each", "value") if db.is_sqlite() else ("jsonb_array_elements_text", "tag")
        template = f"EXISTS (SELECT 1 FROM {elements}(%(expressions)s)"  # noqa: S608 — one of two constants
        joiner = f") AS tag WHERE substr({tag}, 1, {len(prefix)}) = "
        super().__init__(F("tags"), Value(prefix), template=template, arg_joiner=joiner)


def has_tag(tag: str) -> Q:
    """Return the condition that a job has this tag."""
    return Q(_HasTag(F("tags"), Value(tag))) if db.is_sqlite() else Q(tags__contains=[tag])


def has_tag_prefix(prefix: str) -> Q:
    """Return the condition that a tag of the job starts with this prefix; no character of it is a wildcard."""
    return Q(_TagStartsWith(prefix))
