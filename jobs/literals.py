"""Values written into the SQL itself, not passed beside it.

SQLite uses a partial index only for a query that repeats the index's condition word for word; a list of placeholders
is not that. So `status__in=literals(sorted(ACTIVE))` finds the index that `status__in=sorted(ACTIVE)` walks past.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from django.db.models import Value

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
