"""How jobs are born on SQLite: a few statements, whatever their number. What differs from row to row travels as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import cache
from typing import Any
from uuid import UUID

from django.utils import timezone
from pydantic_core import to_json

from jobs.engine.sql.batch import AT, Batch, Row
from jobs.engine.sql.columns import BLANK, FOLLOWS, HELD


def insert_jobs(connection: Any, rows: Sequence[Row], actor: tuple[str, str], reason: str) -> list[Any]:
    """Insert rows with event and mark; returns what was new: id, created_at, position, gate (of many, the id alone)."""
    now = timezone.now()
    new = _insert(connection, rows, actor, reason, now)
    if len(rows) > 1:
        return [(row[0], None, None, None) for row in rows if new is None or row[0] in new]
    (row,) = rows
    position = _first_position(now) if row[AT["position"]] is None else row[AT["position"]]
    return [(row[0], now, position, _gate(row, now))] if new is None else []


def _insert(
    connection: Any, rows: Sequence[Row], actor: tuple[str, str], reason: str, now: datetime
) -> set[UUID] | None:
    batch = Batch.of(rows)
    at = connection.ops.adapt_datetimefield_value(now)
    same = {name: _stored(connection, value) for name, value in batch.same.items()}
    many = [[_stored(connection, value) for value in column] for column in batch.many.values()]
    given = {**same, "given": to_json([*zip(*many, strict=True)]).decode(), "at": at, "first": _first_position(now)}
    new = None
    with connection.cursor() as cursor:
        cursor.execute(_statement(tuple(same), tuple(batch.many)), given)
        ids = [row[0].hex for row in rows]
        if cursor.rowcount < batch.size:
            cursor.execute(_PRESENT, [to_json(ids).decode()])
            ids = [found for (found,) in cursor.fetchall()]
            new = {UUID(hex=found) for found in ids}
        said = {"new": to_json(ids).decode(), "at": at, "kind": actor[0], "name": actor[1], "reason": reason}
        cursor.execute(_SUBMITTED, said)
        if batch.holds_some():
            cursor.execute(_HELD, said)
        if batch.has("lane_id"):
            cursor.execute(_MARK, said)
    return new


@cache
def _statement(same: tuple[str, ...], many: tuple[str, ...]) -> str:
    says = {**Batch.usual(), **{name: f"%({name})s" for name in same}}
    says |= {name: f"json_extract(g.value, '$[{index}]')" for index, name in enumerate(many)}
    names = [name for name in says if name != "position"]
    place = "%(first)s + g.key"
    later = f"WHEN {says['not_before']} > %(at)s THEN 1 " if "not_before" in says else ""
    laned = f"WHEN {says['lane_id']} IS NOT NULL THEN 2 " if "lane_id" in says else ""
    once = "ON CONFLICT (tenant, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING"
    return f"""
    INSERT INTO jobscheduler_job ({", ".join(names)}, priority, position, created_at, gate, {", ".join(BLANK)})
    SELECT {", ".join(says[name] for name in names)}, {says["base_priority"]},
           {f"coalesce({says['position']}, {place})" if "position" in says else place}, %(at)s,
           CASE WHEN {says["status"]} <> 'QUEUED' THEN 0 {later}{laned}ELSE 3 END, {", ".join(BLANK.values())}
    FROM {"json_each(%(given)s)" if many else "(SELECT 0 AS key)"} g WHERE true {once if "idempotency_key" in says else ""}
    """


_PRESENT = "SELECT id FROM jobscheduler_job WHERE id IN (SELECT value FROM json_each(%s))"
_NEW = "FROM json_each(%(new)s) g CROSS JOIN jobscheduler_job j ON j.id = g.value"
_EVENT = """
    INSERT INTO jobscheduler_jobevent (job_id, kind, from_status, to_status, reason, at, actor_kind, actor_name)
    SELECT j.id, {kind}, {source}, j.status, {reason}, %(at)s, %(kind)s, %(name)s {new}"""
_SUBMITTED = _EVENT.format(kind="'SUBMITTED'", source="''", reason="%(reason)s", new=_NEW)
_WHY = f"CASE WHEN j.hold THEN '{HELD}' ELSE '{FOLLOWS}' END"
_HELD = _EVENT.format(kind="'HELD'", source="j.status", reason=_WHY, new=f"{_NEW} WHERE j.status = 'PENDING'")
_MARK = f"INSERT INTO jobscheduler_lanemark (lane_id) SELECT DISTINCT j.lane_id {_NEW} WHERE j.gate = 2"


def _first_position(now: datetime) -> int:
    return int(now.timestamp() * 1_000_000) * 1024


def _gate(row: Row, now: datetime) -> int:
    if row[AT["status"]] != "QUEUED":
        return 0
    if row[AT["not_before"]] is not None and row[AT["not_before"]] > now:
        return 1
    return 3 if row[AT["lane_id"]] is None else 2


def _stored(connection: Any, value: Any) -> Any:
    if isinstance(value, datetime):
        return connection.ops.adapt_datetimefield_value(value)
    return value.hex if isinstance(value, UUID) else value
