"""Hands messages out: makes the body, once, and a delivery for each endpoint that is owed it.

Messages of one audience stand in one lane. A lane moves while one of its endpoints has room for more; where all of them
are busy it waits, and where none of them answers it is in no hurry.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from uuid import UUID, uuid4

from django.db.models import Model, QuerySet

from jobs import db
from jobs.ids import uuid7
from webhooks import audiences, bodies, bundles, circuits
from webhooks.leases import DISABLED, as_uuid
from webhooks.models import DeliveryStatus, WebhookBundle, WebhookDelivery, WebhookEndpoint, WebhookMessage

ROOM = 25  # deliveries that may wait at an endpoint while more messages are owed to it
MESSAGES, DELIVERIES = 200, 500  # a batch
FOR_NOBODY = 100  # deliveries, where nobody receives
LANES = 100


@dataclass(frozen=True)
class State:
    """How an endpoint stands."""

    enabled: bool
    answers: bool
    has_room: bool


@dataclass(frozen=True)
class Lanes:
    """Audiences that are owed something, by how soon they get it. Those that are busy are in neither."""

    urgent: list[UUID]
    unhurried: list[UUID]


def lanes() -> Lanes:
    members = audiences.members(_owed_to())
    state = _states({endpoint for endpoints in members.values() for endpoint in endpoints})
    urgent, unhurried = [], []
    for audience, endpoints in members.items():
        answering = [state[each] for each in endpoints if each in state and state[each].enabled and state[each].answers]
        if any(each.has_room for each in answering):
            urgent.append(audience)
        elif not answering:
            unhurried.append(audience)
    return Lanes(urgent, unhurried)


def hand_out(lane: UUID, deliveries: int = DELIVERIES) -> int:
    """One batch of the oldest, in one transaction; what other senders have in hand is theirs. How many messages."""
    endpoints = audiences.members([lane]).get(lane, [])
    most = max(1, min(MESSAGES, deliveries // max(len(endpoints), 1)))
    _unpack(lane, most)
    ahead = bodies.made(_bodiless(_owed(lane)[:most])) if db.is_sqlite() else {}  # its only writer need not wait for it
    with db.atomic() as connection:
        enabled = dict(_endpoints(endpoints).values_list("pk", "enabled"))
        messages = list(_owed(lane).select_for_update(skip_locked=True)[:most])
        if messages and not enabled:  # all of them are deleted
            WebhookMessage.objects.filter(pk__in=[each.pk for each in messages]).delete()
        elif messages:
            made = ahead | bodies.made([each for each in _bodiless(messages) if each.pk not in ahead])
            _write(connection, _KEEP, [(made.get(each.pk, each.body), each.pk) for each in messages])
            for is_enabled, statement in _INSERT.items():
                to = [endpoint for endpoint in enabled if enabled[endpoint] == is_enabled]
                _write(connection, statement, [_delivery(each, endpoint) for each in messages for endpoint in to])
    return len(messages)


def _unpack(lane: UUID, most: int) -> None:
    """So that there are as many messages, if as many are owed."""
    missing = most - len(_owed(lane).values_list("pk")[:most])
    if missing > 0:
        with db.atomic():
            bundles.unpack(lane, missing)


def _bodiless(messages: Iterable[WebhookMessage]) -> list[WebhookMessage]:
    return [each for each in messages if each.body is None]


def _owed_to() -> list[UUID]:
    """The audiences of what is owed. Where there are too many to look at, some of them: they all get their turn."""
    found = _owed_from(UUID(int=0))
    return found if len(found) < LANES else _owed_from(uuid4()) or found


def _owed_from(start: UUID) -> list[UUID]:
    """From one to the next along the indexes, however many messages or bundles each has."""
    connection = db.connection()
    begin = WebhookMessage._meta.pk.get_db_prep_value(start, connection)
    with connection.cursor() as cursor:
        cursor.execute(_OWED_FROM, [begin, begin])
        return [as_uuid(each) for (each,) in cursor.fetchall()]


def _walk(model: type[Model]) -> str:
    following = f"SELECT audience_id FROM {model._meta.db_table} WHERE audience_id"  # noqa: S608 — our own words
    return f"""SELECT audience FROM (
        WITH RECURSIVE lane(audience) AS (
            SELECT * FROM ({following} >= %s ORDER BY audience_id LIMIT 1) AS first
            UNION ALL
            SELECT ({following} > lane.audience ORDER BY audience_id LIMIT 1) FROM lane WHERE lane.audience IS NOT NULL
        )
        SELECT audience FROM lane WHERE audience IS NOT NULL LIMIT {LANES:d}
    ) AS walked"""  # noqa: S608 — our own words


_OWED_FROM = f"{_walk(WebhookMessage)} UNION {_walk(WebhookBundle)} ORDER BY audience LIMIT {LANES:d}"


def _states(ids: Collection[UUID]) -> dict[UUID, State]:
    """Past the ORM, as all that is asked again and again while jobs run."""
    if not ids:
        return {}
    connection = db.connection()
    key = WebhookEndpoint._meta.pk
    with connection.cursor() as cursor:
        cursor.execute(_standing(len(ids)), [key.get_db_prep_value(each, connection) for each in ids])
        return {
            as_uuid(pk): State(bool(enabled), not circuits.is_broken(failures), full is None)
            for pk, enabled, failures, full in cursor.fetchall()
        }


@cache
def _standing(endpoints: int) -> str:
    """The last one finds an endpoint's room taken."""
    waiting = f"{WebhookDelivery._meta.db_table} d WHERE d.endpoint_id = e.id AND d.status = '{DeliveryStatus.PENDING}'"
    return f"""
    SELECT id, enabled, failures, (SELECT 1 FROM {waiting} LIMIT 1 OFFSET {ROOM - 1:d})
    FROM {WebhookEndpoint._meta.db_table} e WHERE id IN ({", ".join(["%s"] * endpoints)})
    """  # noqa: S608 — our own words


def _endpoints(ids: Iterable[UUID]) -> QuerySet[WebhookEndpoint]:
    return WebhookEndpoint.objects.filter(pk__in=list(ids))


def _owed(lane: UUID) -> QuerySet[WebhookMessage]:
    return WebhookMessage.objects.filter(audience_id=lane).order_by("pk")


def _write(connection: Any, statement: str, rows: Sequence[Sequence[Any]]) -> None:
    """Past the ORM, which takes a third of a millisecond for a delivery; dead receivers, too, get thousands."""
    if connection.vendor == "sqlite":
        rows = [[each.hex if isinstance(each, UUID) else each for each in row] for row in rows]
    with connection.cursor() as cursor:
        cursor.executemany(statement, rows)


_KEEP = f"UPDATE {WebhookMessage._meta.db_table} SET body = %s, audience_id = NULL, snapshot = NULL WHERE id = %s"  # noqa: S608


_DELIVERY = ("id", "endpoint_id", "message_id", "event", "job_id", "group_id")
_INSERT = {  # by whether the endpoint is enabled
    is_enabled: f"""
    INSERT INTO {WebhookDelivery._meta.db_table}
           ({", ".join(_DELIVERY)}, status, attempts, attempts_before, error{more})
    VALUES ({", ".join(["%s"] * len(_DELIVERY))}, {said})
    """  # noqa: S608 — our own words
    for is_enabled, more, said in (
        (True, "", f"'{DeliveryStatus.PENDING}', 0, 0, ''"),  # due at once, as every new one is
        (False, ", next_try_at", f"'{DeliveryStatus.FAILED}', 0, 0, '{DISABLED}', NULL"),
    )
}


def _delivery(message: WebhookMessage, endpoint: UUID) -> tuple[Any, ...]:
    return (uuid7(), endpoint, message.pk, message.event, message.job_id, message.group_id)
