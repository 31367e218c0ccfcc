"""Read the payload of lists: the database compares sizes, and Python reads only what a response may contain.

A value above MAX_VALUE_BYTES is not read: it becomes None, and its row `is_truncated`. The values of one response have
at most MAX_PAGE_BYTES. JSON of many tiny nodes takes up to 28 times its size in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.models import Case, F, JSONField, Q, QuerySet, When
from django.db.models.lookups import IsNull, LessThanOrEqual

from jobs.models.expressions import JsonBytes

MAX_VALUE_BYTES = 64 * 1024
MAX_PAGE_BYTES = 8 * 2**20
JOB_PAYLOAD, RUN_PAYLOAD, EVENT_PAYLOAD, PARAMS = ("params", "run__artifacts"), ("artifacts",), ("data",), ("params",)


def read_small(rows: QuerySet[Any], columns: Sequence[str], limit: int | None = None) -> list[Any]:
    """Return the first rows; of these columns, only the values up to MAX_VALUE_BYTES are read."""
    expressions: dict[str, Any] = {}
    for name in columns:
        is_small = Q(LessThanOrEqual(JsonBytes(name), MAX_VALUE_BYTES))
        expressions[f"small_{name}"] = Case(When(is_small, then=F(name)), output_field=JSONField())
        expressions[f"no_{name}"] = IsNull(F(name), True)
    found = list(rows.defer(*columns).annotate(**expressions)[:limit])
    for row in found:
        for name in columns:
            value, is_null = row.__dict__.pop(f"small_{name}"), row.__dict__.pop(f"no_{name}")
            _set_value(row, name, value, is_truncated=value is None and not is_null)
    return found


def read_by_id(
    rows: QuerySet[Any], ids: Sequence[Any], columns: Sequence[str], fitting: int | None = None
) -> list[Any]:
    """Return the rows of these ids in their order, without those that were deleted.

    Values beyond the first rows that fit are not read; `fitting` is their number, if it is known.
    """
    fitting = count_fitting(rows, ids, columns) if fitting is None else fitting
    found = read_small(rows.filter(pk__in=ids[:fitting]), columns)
    for row in rows.filter(pk__in=ids[fitting:]).defer(*columns) if fitting < len(ids) else ():
        for name in columns:
            _set_value(row, name, None, is_truncated=True)
        found.append(row)
    by_id = {row.pk: row for row in found}
    return [by_id[row_id] for row_id in ids if row_id in by_id]


def count_fitting(rows: QuerySet[Any], ids: Sequence[Any], columns: Sequence[str]) -> int:
    """Return how many of these rows, from the first on, have values of MAX_PAGE_BYTES together; at least one.

    So few that they always fit are not measured.
    """
    if not may_exceed_page(len(ids), columns):
        return len(ids)
    sizes = {f"bytes_{name}": JsonBytes(name) for name in columns}
    measured = rows.filter(pk__in=ids).order_by().annotate(**sizes).values_list("pk", *sizes)
    page_bytes = {pk: sum(size for size in row if size and size <= MAX_VALUE_BYTES) for pk, *row in measured}
    total = 0
    for count, row_id in enumerate(ids):
        total += page_bytes.get(row_id, 0)
        if total > MAX_PAGE_BYTES:
            return max(count, 1)
    return len(ids)


def may_exceed_page(count: int, columns: Sequence[str]) -> bool:
    """Return whether so many rows could have values of more than MAX_PAGE_BYTES."""
    return count * len(columns) * MAX_VALUE_BYTES > MAX_PAGE_BYTES


def _set_value(row: Any, name: str, value: Any, *, is_truncated: bool) -> None:
    """Set a column of a row, or of a related row such as `run__artifacts`, if there is one."""
    *path, attribute = name.split("__")
    holder = row
    for relation in path:
        holder = getattr(holder, relation, None)
    if holder is not None:
        setattr(holder, attribute, value)
        if is_truncated:
            holder.is_truncated = row.is_truncated = True
