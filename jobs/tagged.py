"""Jobs by their tags, on databases that speak of JSON in different words."""

from __future__ import annotations

from django.db.models import BooleanField, F, Func, Q, Value

from jobs import db


class _HasTag(Func):
    """SQLite's JSON has no containment; this is it."""

    template = "EXISTS (SELECT 1 FROM json_each(%(expressions)s)"
    arg_joiner = ") WHERE value = "
    output_field = BooleanField()


class _TagBegins(Func):
    """Takes the tags and a prefix of so many characters."""

    template = "EXISTS (SELECT 1 FROM jsonb_array_elements_text(%(expressions)s)"
    output_field = BooleanField()

    def __init__(self, prefix: str) -> None:
        super().__init__(F("tags"), Value(prefix), arg_joiner=self._joiner(len(prefix)))

    def _joiner(self, length: int) -> str:
        return f") AS tag WHERE left(tag, {length}) = "


class _SqliteTagBegins(_TagBegins):
    template = "EXISTS (SELECT 1 FROM json_each(%(expressions)s)"

    def _joiner(self, length: int) -> str:
        return f") WHERE substr(value, 1, {length}) = "


def has(tag: str) -> Q:
    return Q(_HasTag(F("tags"), Value(tag))) if db.is_sqlite() else Q(tags__contains=[tag])


def begins(prefix: str) -> Q:
    """Letter for letter: no character of the prefix stands for another."""
    return Q(_SqliteTagBegins(prefix) if db.is_sqlite() else _TagBegins(prefix))
