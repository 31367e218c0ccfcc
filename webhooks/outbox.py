"""Writes down what is owed to whom, inside the transaction of the move that it tells of.

One row an event, however many endpoints want it: see docs/decisions/0009-webhooks-outbox.md. Where the engine makes a
move with a single statement, `outbox_sql` is part of that; this is for all the others.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from uuid import UUID

from django.db import transaction

from jobs import clock, db
from jobs.hooks import Event, GroupFinished, Moved
from jobs.ids import uuid7
from webhooks import audiences, bodies, events, outbox_sql, outbox_sqlite
from webhooks.interest import listening
from webhooks.models import WebhookEndpoint, WebhookMessage

_ENDS = frozenset(events.ENDS)
_nudges: list[Callable[[], None]] = []  # senders of this process


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
    if wanted:
        tell_senders()


def on_news(nudge: Callable[[], None]) -> None:
    """Call `nudge` whenever this process has committed something that is owed."""
    _nudges.append(nudge)


def no_more_news(nudge: Callable[[], None]) -> None:
    if nudge in _nudges:
        _nudges.remove(nudge)


def tell_senders() -> None:
    """With the commit, those of this process; all others look often enough."""
    transaction.on_commit(nudge_senders, using=db.alias())


def nudge_senders() -> None:
    for each in tuple(_nudges):
        each()


listening.on_writing = nudge_senders


def _write_moves(moves: Sequence[tuple[Moved, str]]) -> set[str]:
    """Returns the events that somebody wanted."""
    if not moves:
        return set()
    if db.is_sqlite():
        return outbox_sqlite.write(moves)
    from jobs.engine.sql.prepared import execute

    rows = [
        {"id": str(uuid7()), "job_id": str(move.job_id), "event": name, "tenant": move.tenant, "ended": name in _ENDS}
        | ({} if move.retried_by is None else {"retried_by": str(move.retried_by)})
        for move, name in moves
    ]
    return {name for (name,) in execute(db.connection(), outbox_sql.insert(), [json.dumps(rows)])}


def _write_group(event: GroupFinished) -> set[str]:
    """A group may be opened again, so its body is made at once."""
    wanted = _wanted({(event.tenant, events.GROUP_FINISHED)})
    if not wanted:
        return set()
    now = clock.now()
    WebhookMessage.objects.create(
        tenant=event.tenant,
        event=events.GROUP_FINISHED,
        group_id=event.group_id,
        at=now,
        audience_id=wanted[event.tenant, events.GROUP_FINISHED],
        body=bodies.of_group(event.group_id, events.GROUP_FINISHED, now),
    )
    return {events.GROUP_FINISHED}


def _wanted(asked: set[tuple[str, str]]) -> dict[tuple[str, str], UUID]:
    """The audience of each event in each of these tenants that has somebody who wants it."""
    tenants = {tenant for tenant, _name in asked}
    rows = WebhookEndpoint.objects.filter(enabled=True, tenant__in=tenants)
    found: dict[tuple[str, str], list[UUID]] = {}
    for pk, tenant, said in rows.values_list("pk", "tenant", "events"):
        for key in asked:
            if key[0] == tenant and events.wants(said, key[1]):
                found.setdefault(key, []).append(pk)
    return {key: audiences.known(endpoints) for key, endpoints in found.items()}
