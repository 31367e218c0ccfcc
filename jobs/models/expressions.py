"""Values written into the SQL itself, not passed beside it.

SQLite uses a partial index only for a query that repeats the index's condition word for word; a list of placeholders
is not that. So `status__in=literals(sorted(ACTIVE))` finds the index that `status__in=sorted(ACTIVE)` walks past.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from django.db.models import BooleanField, F, Func, Q, Value

from jobs import db

_WORD = re.compile(r"[A-Z_]+")


class Literal(Value):
    """A whole number or a word of ours in capitals; nothing that anybody typed."""

    def as_sql(self, compiler: Any, connection: Any) -> tuple[str, tuple[()]]:
        value = self.value
        if isinstance(value, int):
            return str(int(value)), ()
        if not _WORD.fullmatch(value):
            raise ValueError(f"{value!r} is not a word to write into SQL")
        return f"'{value}'", ()


def literals(values: Iterable[int | str]) -> list[Any]:
    return [Literal(value) for value in values]


class _HasTag(Func):
    """SQLite's JSON has no containment; this is it."""

    template = "EXISTS (SELECT 1 FROM json_each(%(expressions)s)"
    arg_joiner = ") WHERE value = "
    output_field = BooleanField()


class _TagBegins(Func):
    """Takes the tags and a prefix."""

    output_field = BooleanField()

    def __init__(self, prefix: str) -> None:
        elements, tag = ("json_each", "value") if db.is_sqlite() else ("jsonb_array_elements_text", "tag")
        template = f"EXISTS (SELECT 1 FROM {elements}(%(expressions)s)"  # noqa: S608 — one of two names
        joiner = f") AS tag WHERE substr({tag}, 1, {len(prefix)}) = "
        super().__init__(F("tags"), Value(prefix), template=template, arg_joiner=joiner)


def has_tag(tag: str) -> Q:
    return Q(_HasTag(F("tags"), Value(tag))) if db.is_sqlite() else Q(tags__contains=[tag])


def has_tag_prefix(prefix: str) -> Q:
    """Letter for letter: no character of the prefix stands for another."""
    return Q(_TagBegins(prefix))
