"""The outbox in SQL, for SQLite: its only writer waits for us, so each of these is one quick statement."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from functools import cache, lru_cache
from typing import Any
from uuid import UUID

from jobs import db
from jobs.hooks import Moved
from jobs.ids import uuid7
from jobs.models import Job, JobEvent, JobRun
from webhooks import audiences, bundles, events, snapshots
from webhooks.models import WebhookAudience, WebhookBundle, WebhookEndpoint, WebhookMessage

_ENDPOINT, _AUDIENCE = WebhookEndpoint._meta.db_table, WebhookAudience._meta.db_table
_MESSAGE, _BUNDLE = WebhookMessage._meta.db_table, WebhookBundle._meta.db_table
_JOB, _RUN, _EVENT = Job._meta.db_table, JobRun._meta.db_table, JobEvent._meta.db_table
_ENDS = frozenset(events.ENDS)
_IN_BUNDLES = _ENDS | {events.STARTED}


def write(moves: Sequence[tuple[Moved, str]]) -> set[str]:
    """What `outbox_sql` does on PostgreSQL. Returns the events that somebody wanted."""
    told: dict[str, dict[str, list[Moved]]] = {}  # by tenant and event
    for move, name in moves:
        told.setdefault(move.tenant, {}).setdefault(name, []).append(move)
    wanted: set[str] = set()
    for tenant, by_name in told.items():
        found = _audiences(tenant, by_name)
        packed = {name for name in found if name in _IN_BUNDLES and len(by_name[name]) > 1}
        when = _times([move.job_id for name in packed for move in by_name[name]]) if packed else {}
        for name, audience in found.items():
            if name in packed:
                _write_bundle(tenant, name, audience, by_name[name], when)
            else:
                _write_each(tenant, name, audience, by_name[name])
        wanted |= found.keys()
    return wanted


# ---------------------------------------------------------------------- who wants it


def _audiences(tenant: str, names: Collection[str]) -> dict[str, str]:
    """Of each event that somebody wants, those who do, as the audience that they are; a new one is written down."""
    if not (said := _ask(f"SELECT id, events FROM {_ENDPOINT} WHERE enabled AND tenant = %s", [tenant])):  # noqa: S608 — our own words
        return {}
    heard = _heard(tuple(sorted(said)))
    found = {name: heard[name] for name in names if name in heard}
    for known in set(found.values()):
        _ask(f"INSERT OR IGNORE INTO {_AUDIENCE} (id, endpoints) VALUES (%s, %s)", known)  # noqa: S608 — our own words
    return {name: key for name, (key, _packed) in found.items()}


@lru_cache(maxsize=256)
def _heard(said: tuple[tuple[str, str], ...]) -> dict[str, tuple[str, bytes]]:
    """Who hears of what, given all endpoints with their filters as they are stored."""
    words = {endpoint: json.loads(stored) for endpoint, stored in said}
    hearing = {name: [each for each in words if events.wants(words[each], name)] for name in events.EVENTS}
    packed = {name: bytes.fromhex("".join(found)) for name, found in hearing.items() if found}  # as `audiences.pack`
    return {name: (audiences.key(each).hex, each) for name, each in packed.items()}


# ---------------------------------------------------------------------- what it is


def _write_each(tenant: str, name: str, audience: str, moves: Sequence[Moved]) -> None:
    taken = _taken(name, {move.job_id for move in moves})
    rows = [
        (uuid7().hex, tenant, name, move.job_id.hex, _hex(move.retried_by), audience, taken.get(move.job_id))
        for move in moves
    ]
    with db.connection().cursor() as cursor:
        cursor.executemany(_INSERT, rows)


_INSERT = f"""
    INSERT INTO {_MESSAGE} (id, tenant, event, job_id, retried_by, audience_id, snapshot)
    VALUES (%s, %s, %s, %s, %s, %s, %s)
"""  # noqa: S608 — our own words


def _taken(name: str, jobs: Collection[UUID]) -> dict[UUID, str]:
    """Snapshots of jobs that live on."""
    if name in _ENDS:
        return {}
    if name != events.STARTED:
        return snapshots.take(jobs)
    return dict(zip(jobs, snapshots.unpacked(_claimed(jobs)), strict=True))


def _times(jobs: Sequence[UUID]) -> dict[str, str]:
    """When each of them moved, from what the move itself wrote down: among the last events, but for rare company."""
    wanted = {each.hex for each in jobs}
    found = {job: at for job, at in _ask(_LATEST, [2 * len(wanted)]) if job in wanted}
    if missing := wanted - found.keys():
        found.update(_ask(_LAST_OF_EACH, [json.dumps(sorted(missing))]))
    return found


_LATEST = f"""
    SELECT job_id, at || '' FROM {_EVENT} WHERE id > (SELECT max(id) FROM {_EVENT}) - %s ORDER BY id
"""  # noqa: S608 — our own words; an expression stays text
_LAST_OF_EACH = f"""
    SELECT value, (SELECT at || '' FROM {_EVENT} WHERE job_id = value ORDER BY id DESC LIMIT 1) FROM json_each(%s)
"""  # noqa: S608 — our own words


def _write_bundle(tenant: str, name: str, audience: str, moves: Sequence[Moved], when: dict[str, str]) -> None:
    """A row for all that happened at the same time."""
    by_time: dict[str, list[Moved]] = {}
    for move in moves:
        by_time.setdefault(when[move.job_id.hex], []).append(move)
    for at, several in by_time.items():
        jobs = [move.job_id for move in several]
        retries = [move.retried_by for move in several]
        retried_by = bundles.pack(retries) if any(retries) else None
        taken = _claimed(jobs) if name == events.STARTED else None
        _ask(_BUNDLED, [tenant, name, audience, at, bundles.pack(jobs), retried_by, taken])


_BUNDLED = f"""
    INSERT INTO {_BUNDLE} (tenant, event, audience_id, at, jobs, retried_by, snapshots)
    VALUES (%s, %s, %s, %s, %s, %s, %s)
"""  # noqa: S608 — our own words


def _claimed(jobs: Collection[UUID]) -> str:
    """Snapshots of jobs that were claimed just now, in their order, as `outbox_sql.along_claims` has them."""
    (found,) = _ask(_claims(), [json.dumps([each.hex for each in jobs])])
    return str(found[0])


@cache
def _claims() -> str:
    kept = f"SELECT artifacts FROM {_RUN} r WHERE r.job_id = {_JOB}.id"  # noqa: S608 — our own words
    artifacts = f"json_group_array(json(CASE WHEN {_JOB}.fence > 1 THEN ({kept}) END))"  # of a run that goes on
    columns = ", ".join(f"'{name}', {_gathered(name)}" for name in snapshots.CLAIMED)
    return f"""
    SELECT json_object({columns}, 'artifacts', {artifacts})
    FROM json_each(%s) told CROSS JOIN {_JOB} ON {_JOB}.id = told.value -- SQLite keeps the order of a cross join
    """  # noqa: S608 — our own words


def _gathered(name: str) -> str:
    if name in snapshots.FOR_ALL:
        return f"max({_JOB}.{name}) || '+00:00'"
    is_json = Job._meta.get_field(name).get_internal_type() == "JSONField"
    return f"json_group_array({f'json({_JOB}.{name})' if is_json else f'{_JOB}.{name}'})"


def _hex(given: UUID | None) -> str | None:
    return None if given is None else given.hex


def _ask(sql: str, params: Sequence[Any]) -> list[Any]:
    """Past Django's cursor, which takes longer than SQLite does, unless the host logs or wraps its queries."""
    connection = db.connection()
    if connection.queries_logged or connection.execute_wrappers:
        with connection.cursor() as cursor:
            cursor.execute(sql, params)
            return list(cursor.fetchall())
    with connection.wrap_database_errors:
        return list(connection.connection.execute(_native(sql), params))


@cache
def _native(sql: str) -> str:
    return sql.replace("%s", "?")
