"""New rows, column by column: most columns say the same in every row, or what is usual, or nothing at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jobs.engine.sql.columns import INSERTED, USUAL

Row = list[Any]  # values in the order of INSERTED, JSON as text
AT = {name: index for index, name in enumerate(INSERTED)}


@dataclass(frozen=True)
class Batch:
    """Columns in neither `same` nor `many` have their usual value in every row, or are NULL."""

    size: int
    same: dict[str, Any]
    many: dict[str, Sequence[Any]]

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Batch:
        size = len(rows)
        same: dict[str, Any] = {}
        many: dict[str, Sequence[Any]] = {}
        for name, column in zip(INSERTED, zip(*rows, strict=True), strict=True):
            first = column[0]
            if (name == "id" and size > 1) or column.count(first) < size:
                many[name] = column
            elif first is not None and first != USUAL.get(name):
                same[name] = first
        return cls(size, same, many)

    def has(self, name: str) -> bool:
        return name in self.same or name in self.many

    @staticmethod
    def usual() -> dict[str, str]:
        """SQL for the usual values, the same on both databases."""
        return {name: f"'{value}'" if isinstance(value, str) else str(value).lower() for name, value in USUAL.items()}

    def holds_some(self) -> bool:
        """Whether some row is born PENDING."""
        return self.same.get("status") == "PENDING" or "PENDING" in self.many.get("status", ())
