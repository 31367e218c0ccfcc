"""Pages of a list that is in memory as a whole: few rows, made from more than one source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jobs.api import cursors
from jobs.api.callers import Caller
from jobs.api.pages import Paged


def page(
    caller: Caller,
    operation: str,
    asked: Paged,
    rows: Sequence[Any],
    place: Callable[[Any], list[Any]],
    shape: Callable[[Any], dict[str, Any]],
) -> dict[str, Any]:
    """As `pages.page`, for rows that stand in the order of their `place`."""
    bond = cursors.bound_to(operation, caller.tenant, asked.asked())
    if asked.cursor is not None:
        after = cursors.place_of(asked.cursor, bond)
        rows = [row for row in rows if place(row) > after]
    shown, more = rows[: asked.limit], len(rows) > asked.limit
    next_cursor = cursors.seal(bond, place(shown[-1])) if more else None
    return {"items": [shape(row) for row in shown], "next_cursor": next_cursor}
