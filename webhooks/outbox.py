"""Writes down what is owed to whom, inside the transaction of the move that it tells of.

One row an event, however many endpoints want it: see docs/decisions/0008-webhooks-outbox.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from jobs import clock, db
from jobs.hooks import Event, GroupFinished, Moved
from jobs.ids import uuid7
from jobs.models import JobTemplate
from webhooks import bodies, circuits, events, snapshots
from webhooks.interest import listening
from webhooks.models import WebhookEndpoint, WebhookMessage

ID_BYTES = 16
_nudges: list[Callable[[], None]] = []  # senders of this process


@dataclass(frozen=True)
class Owed:
    endpoints: bytes
    urgent: bool

    @classmethod
    def to(cls, endpoints: Sequence[tuple[UUID, int]]) -> Owed:
        """Each with its failures in a row."""
        answering = any(not circuits.is_broken(failures) for _, failures in endpoints)
        return cls(pack(pk for pk, _ in endpoints), answering)


def write(told: Sequence[Event]) -> None:
    """The hook. What nobody wants leaves no trace."""
    named = [(event, name) for event in told if (name := events.name_of(event)) is not None]
    if not named:
        return
    wanted = _write_moves([(event, name) for event, name in named if isinstance(event, Moved)])
    for event, _name in named:
        if isinstance(event, GroupFinished):
            wanted |= _write_group(event)
    listening.learned(wanted)
    if any(wanted.values()):
        tell_senders()


def pack(endpoints: Iterable[UUID]) -> bytes:
    return b"".join(sorted(each.bytes for each in endpoints))


def unpack(owed: Any) -> list[UUID]:
    raw = bytes(owed or b"")
    return [UUID(bytes=raw[start : start + ID_BYTES]) for start in range(0, len(raw), ID_BYTES)]


def on_news(nudge: Callable[[], None]) -> None:
    """Call `nudge` whenever this process has committed something that is owed."""
    _nudges.append(nudge)


def no_more_news(nudge: Callable[[], None]) -> None:
    if nudge in _nudges:
        _nudges.remove(nudge)


def tell_senders() -> None:
    """With the commit, those of this process; all others look often enough."""
    transaction.on_commit(_nudge, using=db.alias())


def _nudge() -> None:
    for each in tuple(_nudges):
        each()


def _write_moves(moves: Sequence[tuple[Moved, str]]) -> dict[str, bool]:
    """Returns the events that somebody wanted, and whether one of them is there to receive it."""
    if db.is_sqlite() or not moves:
        return _write_here(moves)
    from jobs.engine.sql.prepared import execute

    rows = [
        {"id": str(uuid7()), "job_id": str(move.job_id), "event": name, "tenant": move.tenant, "ended": name in _ENDS}
        | ({} if move.retried_by is None else {"retried_by": str(move.retried_by)})
        for move, name in moves
    ]
    return dict(execute(db.connection(), _insert(), [json.dumps(rows)]))


def _write_here(moves: Sequence[tuple[Moved, str]]) -> dict[str, bool]:
    wanted = _owed({(move.tenant, name) for move, name in moves})
    kept = [(move, name, wanted[move.tenant, name]) for move, name in moves if (move.tenant, name) in wanted]
    lives_on = {move.job_id for move, name, _owed in kept if name not in _ENDS}
    snapshot_of = snapshots.take(lives_on) if lives_on else {}
    now = timezone.now()
    WebhookMessage.objects.using(db.alias()).bulk_create(
        WebhookMessage(
            tenant=move.tenant,
            event=name,
            job_id=move.job_id,
            retried_by=move.retried_by,
            at=now,
            snapshot=None if name in _ENDS else snapshot_of.get(move.job_id),
            owed=owed.endpoints,
            urgent=owed.urgent,
        )
        for move, name, owed in kept
    )
    return {name: owed.urgent for _move, name, owed in kept}


def _write_group(event: GroupFinished) -> dict[str, bool]:
    """A group may be opened again, so its body is made at once."""
    owed = _owed({(event.tenant, events.GROUP_FINISHED)}).get((event.tenant, events.GROUP_FINISHED))
    if owed is None:
        return {}
    now = clock.now()
    WebhookMessage.objects.using(db.alias()).create(
        tenant=event.tenant,
        event=events.GROUP_FINISHED,
        group_id=event.group_id,
        at=now,
        owed=owed.endpoints,
        urgent=owed.urgent,
        body=bodies.of_group(event.group_id, events.GROUP_FINISHED, now),
    )
    return {events.GROUP_FINISHED: owed.urgent}


def _owed(asked: set[tuple[str, str]]) -> dict[tuple[str, str], Owed]:
    """Who wants which event, for each of these tenants that has somebody."""
    tenants = {tenant for tenant, _name in asked}
    rows = WebhookEndpoint.objects.using(db.alias()).filter(enabled=True, tenant__in=tenants)
    found: dict[tuple[str, str], list[tuple[UUID, int]]] = {}
    for pk, tenant, said, failures in rows.values_list("pk", "tenant", "events", "failures"):
        for key in asked:
            if key[0] == tenant and events.wants(said, key[1]):
                found.setdefault(key, []).append((pk, failures))
    return {key: Owed.to(endpoints) for key, endpoints in found.items()}


_ENDS = frozenset(events.ENDS)


@cache
def _insert() -> str:
    """Endpoints are looked up, snapshots taken and rows written in one statement: nothing travels but the moves."""
    job = ", ".join(f"j.{name}" for name in snapshots.JOB)
    run = ", ".join(f"r.{name}" for name in snapshots.RUN)
    return f"""
    WITH told AS MATERIALIZED (
        SELECT * FROM json_to_recordset(%s::json)
               AS t(id uuid, job_id uuid, event text, tenant text, ended boolean, retried_by uuid)
    ),
    wanted AS MATERIALIZED (
        SELECT t.tenant, t.event, string_agg(uuid_send(e.id), ''::bytea ORDER BY e.id) AS owed,
               bool_or(e.failures < {circuits.BREAK_AFTER:d}) AS urgent
        FROM (SELECT DISTINCT tenant, event FROM told) t
        JOIN {WebhookEndpoint._meta.db_table} e ON e.enabled AND e.tenant = t.tenant
             AND e.events ?| ARRAY[t.event, split_part(t.event, '.', 1) || '.*', '*']
        GROUP BY t.tenant, t.event
    ),
    written AS (
        INSERT INTO {WebhookMessage._meta.db_table} (id, tenant, event, job_id, retried_by, at, owed, urgent, snapshot)
        SELECT t.id, t.tenant, t.event, t.job_id, t.retried_by, statement_timestamp(), w.owed, w.urgent,
               CASE WHEN NOT t.ended THEN (
                   SELECT json_build_object(
                       'job', (SELECT row_to_json(s) FROM (SELECT {job}) s),
                       'run', (SELECT row_to_json(s) FROM (
                           SELECT {run} FROM jobscheduler_jobrun r WHERE r.job_id = j.id) s),
                       'template', (SELECT name FROM {JobTemplate._meta.db_table} WHERE id = j.template_id))::text
                   FROM jobscheduler_job j WHERE j.id = t.job_id) END
        FROM told t JOIN wanted w ON w.tenant = t.tenant AND w.event = t.event
    )
    SELECT event, bool_or(urgent) FROM wanted GROUP BY event
    """  # noqa: S608 — our own words
