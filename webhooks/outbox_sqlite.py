"""The outbox in SQL, for SQLite: its only writer waits for us, so each of these is one quick statement."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from typing import Any
from uuid import UUID

from jobs import db
from jobs.hooks import Moved
from jobs.ids import uuid7
from jobs.models import Job, JobRun
from webhooks import audiences, events, snapshots
from webhooks.models import WebhookAudience, WebhookEndpoint, WebhookMessage

_ENDPOINT, _AUDIENCE, _MESSAGE = (model._meta.db_table for model in (WebhookEndpoint, WebhookAudience, WebhookMessage))
_JOB, _RUN = Job._meta.db_table, JobRun._meta.db_table
_ENDS = frozenset(events.ENDS)


def write(moves: Sequence[tuple[Moved, str]]) -> set[str]:
    """What `outbox_sql.insert` does on PostgreSQL. Returns the events that somebody wanted."""
    wanted = {asked: found for asked in {(move.tenant, name) for move, name in moves} if (found := _audience(*asked))}
    kept = [(move, name) for move, name in moves if (move.tenant, name) in wanted]
    if kept:
        taken = _taken(kept)
        _do(_INSERT, [_row(move, name, wanted[move.tenant, name], taken.get(move.job_id)) for move, name in kept])
    return {name for _move, name in kept}


def _audience(tenant: str, event: str) -> str | None:
    """Who wants this event, as the audience that they are; a new one is written down."""
    endpoints = sorted(each for (each,) in _ask(_WANTING, [tenant, *events.filters_for([event])]))
    if not endpoints:
        return None
    packed = bytes.fromhex("".join(endpoints))  # as `audiences.pack` has it
    key = audiences.key(packed).hex
    with db.connection().cursor() as cursor:
        cursor.execute(f"INSERT OR IGNORE INTO {_AUDIENCE} (id, endpoints) VALUES (%s, %s)", [key, packed])  # noqa: S608 — our own words
    return key


_WANTING = f"""
    SELECT DISTINCT e.id FROM {_ENDPOINT} e, json_each(e.events) word
    WHERE e.enabled AND e.tenant = %s AND word.value IN (%s, %s, %s)
"""  # noqa: S608 — our own words
_INSERT = f"""
    INSERT INTO {_MESSAGE} (id, tenant, event, job_id, retried_by, audience_id, snapshot)
    VALUES (%s, %s, %s, %s, %s, %s, %s)
"""  # noqa: S608 — our own words


def _row(move: Moved, name: str, audience: str, snapshot: str | None) -> tuple[Any, ...]:
    retried_by = None if move.retried_by is None else move.retried_by.hex
    return (uuid7().hex, move.tenant, name, move.job_id.hex, retried_by, audience, None if name in _ENDS else snapshot)


def _taken(kept: Sequence[tuple[Moved, str]]) -> dict[UUID, str]:
    """Snapshots of the jobs that live on."""
    claimed = {move.job_id for move, name in kept if name == events.STARTED}
    others = {move.job_id for move, name in kept if name != events.STARTED and name not in _ENDS}
    return (snapshots.take(others) if others else {}) | (_claimed(claimed) if claimed else {})


def _claimed(jobs: Collection[UUID]) -> dict[UUID, str]:
    """As `outbox_sql.along_claims` has it."""
    found = _ask(f"{_snapshot()} WHERE id IN ({', '.join(['%s'] * len(jobs))})", [each.hex for each in jobs])
    return {UUID(hex=key): text for key, text in found}


@cache
def _snapshot() -> str:
    columns = ", ".join(f"'{name}', {_as_json(name)}" for name in snapshots.CLAIMED)
    artifacts = f"json((SELECT artifacts FROM {_RUN} r WHERE r.job_id = {_JOB}.id))"  # noqa: S608 — our own words
    told = f"json_object('claimed', json_object({columns}), 'artifacts', {artifacts})"
    return f"SELECT id, {told} FROM {_JOB}"  # noqa: S608 — our own words


def _as_json(name: str) -> str:
    match Job._meta.get_field(name).get_internal_type():
        case "JSONField":
            return f"json({name})"
        case "DateTimeField":
            return f"{name} || '+00:00'"
    return name


def _ask(sql: str, params: Sequence[Any]) -> list[Any]:
    with db.connection().cursor() as cursor:
        cursor.execute(sql, params)
        return list(cursor.fetchall())


def _do(sql: str, rows: Sequence[Sequence[Any]]) -> None:
    with db.connection().cursor() as cursor:
        cursor.executemany(sql, rows)
