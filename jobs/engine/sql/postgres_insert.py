"""How jobs are born on PostgreSQL: one statement, whatever their number, that says only what there is to say.

Columns that are alike travel once, columns that are NULL not at all. What differs travels as one text a column,
a line for each row: no other way of sending ten thousand values costs so little on either side.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import cache
from operator import attrgetter
from typing import Any

from jobs.engine import wakeup
from jobs.engine.sql.batch import Batch, Row
from jobs.engine.sql.columns import BLANK, FOLLOWS, HELD, INSERTED
from jobs.engine.sql.prepared import NOW, execute

NULL = "\x01"
_AS_TEXT: dict[str, Callable[[Any], str]] = {
    "uuid": attrgetter("hex"),
    "text": str,
    "jsonb": str,
    "boolean": str,
    "timestamptz": datetime.isoformat,
}


def insert_jobs(
    connection: Any, rows: Sequence[Row], actor: tuple[str, str], reason: str, guard: str = ""
) -> list[Any]:
    """Insert rows with event and mark; returns what was new: id, created_at, position, gate (of many, the id alone).

    Nothing is new if the guard (SQL) is false.
    """
    answers = _insert(connection, Batch.of(rows), actor, reason, guard)
    if len(rows) == 1:
        return [answer[:4] for answer in answers]
    ((new, _),) = answers
    born = [row[0] for row in rows[:new]] if isinstance(new, int) else new or []  # a number is that of all, or none
    return [(each, None, None, None) for each in born]


def _insert(connection: Any, batch: Batch, actor: tuple[str, str], reason: str, guard: str) -> list[Any]:
    sql = _statement(tuple(batch.same), tuple(batch.many), batch.holds_some(), guard)
    many = {name: _lines(name, column) for name, column in batch.many.items()}
    said = {"actor_kind": actor[0], "actor": actor[1], "reason": reason}
    return execute(connection, sql, {**batch.same, **many, **said})


def _lines(name: str, column: Sequence[Any]) -> str:
    text = _AS_TEXT.get(INSERTED[name], str)
    lines = map(text, column) if None not in column else (NULL if each is None else text(each) for each in column)
    joined = "\n".join(lines)
    if joined.count("\n") != len(column) - 1:
        raise ValueError(f"A {name} has a line break.")  # the gate lets none through; rows must not slip
    return joined


@cache
def _statement(same: tuple[str, ...], many: tuple[str, ...], held: bool, guard: str) -> str:
    says = {name: f"{literal}::{INSERTED[name]}" for name, literal in Batch.usual().items()}
    says |= {name: f"%({name})s::{INSERTED[name]}" for name in same}
    says |= {name: f"g.{name}::jsonb" if INSERTED[name] == "jsonb" else f"g.{name}" for name in many}
    keyed = "idempotency_key" in says
    names = [name for name in says if name != "position"]
    parts = [
        f"""born AS (
        INSERT INTO jobscheduler_job ({", ".join(names)}, priority, position, created_at, gate, {", ".join(BLANK)})
        SELECT {", ".join(says[name] for name in names)}, {says["base_priority"]}, {_position(says)}, {NOW}, {_gate(says)},
               {", ".join(BLANK.values())}
        FROM {_given(many)} WHERE {guard or "true"}{_ONE_PER_KEY.format(**says) if keyed else ""}
        RETURNING id, created_at, position, gate, status, hold, lane_id)""",
        _events(held),
    ]
    if "lane_id" in says:
        parts.append(
            "mark AS (INSERT INTO jobscheduler_lanemark (lane_id) SELECT DISTINCT lane_id FROM born WHERE gate = 2)"
        )
    return f"WITH {', '.join(parts)} {_answer(bool(many), keyed, wakeup.LANE if 'lane_id' in says else wakeup.READY)}"


# In one order, or two batches that share keys would wait for each other.
_ONE_PER_KEY = """
        ORDER BY {tenant}, {idempotency_key}, n
        ON CONFLICT (tenant, idempotency_key) WHERE idempotency_key IS NOT NULL DO NOTHING"""


def _given(many: tuple[str, ...]) -> str:
    if not many:
        return "(SELECT 1 AS n) g"
    kinds = {name: "text" if INSERTED[name] == "jsonb" else INSERTED[name] for name in many}
    arrays = ", ".join(f"string_to_array(%({name})s, chr(10), chr(1))::{kind}[]" for name, kind in kinds.items())
    return f"unnest({arrays}) WITH ORDINALITY AS g({', '.join(many)}, n)"


def _position(says: dict[str, str]) -> str:
    now = f"(extract(epoch FROM {NOW}) * 1000000)::bigint * 1024 + n - 1"
    return f"coalesce({says['position']}, {now})" if "position" in says else now


def _gate(says: dict[str, str]) -> str:
    later = f"WHEN {says['not_before']} > {NOW} THEN 1 " if "not_before" in says else ""
    laned = f"WHEN {says['lane_id']} IS NOT NULL THEN 2 " if "lane_id" in says else ""
    return f"CASE WHEN {says['status']} <> 'QUEUED' THEN 0 {later}{laned}ELSE 3 END"


def _events(held: bool) -> str:
    why = f"""
        UNION ALL SELECT id, {NOW}, 'HELD', status, status, %(actor_kind)s, %(actor)s,
                         CASE WHEN hold THEN '{HELD}' ELSE '{FOLLOWS}' END FROM born WHERE status = 'PENDING'"""
    return f"""event AS (
        INSERT INTO jobscheduler_jobevent (job_id, at, kind, from_status, to_status, actor_kind, actor_name, reason)
        SELECT id, {NOW}, 'SUBMITTED', '', status, %(actor_kind)s, %(actor)s, %(reason)s::text FROM born{why if held else ""})"""


def _answer(several: bool, keyed: bool, news: str) -> str:
    """Sleeping workers are told in the same breath: a statement of its own would cost another round trip."""
    told = f"pg_notify('{wakeup.CHANNEL}', '{news}')::text"
    if not several:
        return f"SELECT id, created_at, position, gate, CASE WHEN gate > 0 THEN {told} END FROM born"
    return f"SELECT {'array_agg(id)' if keyed else 'count(*)'}, CASE WHEN bool_or(gate > 0) THEN {told} END FROM born"
