"""Walks through jobs or runs, newest first, whose cost does not grow with the table.

A walk goes along an index. Where rows must fulfil more than the index knows, it looks at no more than WINDOW of them
and hands back the place that it has come to: the page is short then, and the next one goes on from there.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet

WINDOW = 10_000
DENSE = 4  # a first look at so many rows per row that is wanted, since most filters match most rows


@dataclass(frozen=True)
class Walk:
    """`along` is in the order of `key` by an index; `also` is what is judged row by row."""

    along: QuerySet[Any]
    also: Q = field(default_factory=Q)
    key: str = "pk"
    joined: str = ""  # the same key in a table beside: no database carries the edge over to it by itself
    few: bool = False  # so few rows that all are read: asked for an order, SQLite would walk the table in that order
    measure: QuerySet[Any] | None = None  # what the window is counted in, by its own key, if not in the rows themselves

    def before(self, place: UUID | None) -> Walk:
        if place is None:
            return self
        measure = None if self.measure is None else self.measure.filter(pk__lt=place)
        return replace(self, along=self.along.filter(**{f"{self.key}__lt": place}), measure=measure)

    def look(self, wanted: int, window: int) -> tuple[list[UUID], UUID | None]:
        """The first ids, and the place where the window ended, if it did before the rows did."""
        rows = self.along.filter(self.also)
        if self.few:
            return sorted(rows.order_by().values_list(self.key, flat=True), reverse=True)[:wanted], None
        edge = self._edge(window) if self.also else None
        if edge is not None:
            rows = rows.filter(**{f"{each}__gte": edge for each in (self.key, self.joined) if each})
        return list(self._keys(rows)[:wanted]), edge

    def _edge(self, window: int) -> UUID | None:
        counted = self._keys(self.along) if self.measure is None else Walk(self.measure)._keys(self.measure)
        found: UUID | None = counted[window - 1 : window].first()
        return found

    def _keys(self, rows: QuerySet[Any]) -> Any:
        return rows.order_by(f"-{self.key}").values_list(self.key, flat=True)


def newest(walks: Iterable[Walk], place: UUID | None, limit: int) -> tuple[list[UUID], UUID | None]:
    """The ids of one page over all walks, and the place to go on from, or None at the end."""
    started = [walk.before(place) for walk in walks]
    if len(started) == 1 and started[0].also:
        found = _page([started[0].look(limit + 1, DENSE * limit)], limit)
        if len(found[0]) == limit or found[1] is None:
            return found
    return _page([walk.look(limit + 1, WINDOW) for walk in started], limit)


def _page(looks: Sequence[tuple[list[UUID], UUID | None]], limit: int) -> tuple[list[UUID], UUID | None]:
    """Nothing below the highest edge is certain: another walk may have more there."""
    floor = max((edge for _ids, edge in looks if edge is not None), default=None)
    ids = sorted({each for found, _edge in looks for each in found}, reverse=True)
    certain = [each for each in ids if floor is None or each >= floor]
    if len(certain) > limit:
        return certain[:limit], certain[limit - 1]
    return certain, floor
