"""Fan-out: makes a message's body, once, and a delivery for each endpoint that wants it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import Count, QuerySet

from jobs import db
from jobs.conf import conf
from jobs.ids import uuid7
from webhooks import payloads, subscriptions
from webhooks.circuit_breaker import FAILURE_THRESHOLD
from webhooks.models import DeliveryStatus, WebhookDelivery, WebhookMessage

MESSAGES, DELIVERIES, PAYLOAD_BYTES = 200, 5000, 4 * 2**20  # of a batch; one message may have more deliveries
ROOM = 25  # deliveries that may wait at an endpoint before fan-out for it is no longer urgent
DISABLED, BACKLOG_FULL = "endpoint disabled", "backlog full"


class NewDelivery(NamedTuple):
    """To one endpoint. One that has an `error` from the start has FAILED, and can be resent."""

    endpoint_id: UUID
    error: str


# Deliveries to make, and the messages that they are made of: most have the same.
Plan = dict[tuple[NewDelivery, ...], list[int]]


class Batch(NamedTuple):
    """Messages' bodies, and whom they go to as far as was known when those were made."""

    bodies: dict[int, bytes]  # empty for messages that nobody wants any more
    endpoint_ids: set[UUID]


def fan_out(limit: int = MESSAGES) -> int:
    """Fan out one batch of the oldest messages in one transaction; return how many. Senders share them by row locks."""
    if db.is_sqlite():  # bodies are made before the only writer is needed
        batch = _prepare(list(_waiting()[:limit]))
        with db.atomic() as connection:
            return _write(connection, list(_waiting().filter(pk__in=list(batch.bodies))), batch)
    with db.atomic() as connection:
        messages = list(_waiting().select_for_update(skip_locked=True)[:limit])
        batch = _prepare(messages)
        if batch.endpoint_ids:
            with connection.cursor() as cursor:
                cursor.execute(_LOCK_ENDPOINTS, [sorted(batch.endpoint_ids)])
        return _write(connection, messages, batch)


# Whoever disables or deletes one of them waits, and then ends what is written here.
_LOCK_ENDPOINTS = "SELECT 1 FROM jobscheduler_webhookendpoint WHERE id = ANY(%s::uuid[]) ORDER BY id FOR SHARE"


def has_idle_endpoint() -> bool:
    """Tell whether an endpoint that answers could be sent more than waits for it."""
    with db.connection().cursor() as cursor:
        cursor.execute(_HAS_IDLE_ENDPOINT, [FAILURE_THRESHOLD, ROOM - 1])
        return bool(cursor.fetchone()[0])


_HAS_IDLE_ENDPOINT = """
    SELECT EXISTS (
        SELECT 1 FROM jobscheduler_webhookendpoint e
        WHERE e.enabled AND e.failures < %s AND (
            SELECT 1 FROM jobscheduler_webhookdelivery d
            WHERE d.endpoint_id = e.id AND d.status = 'PENDING' LIMIT 1 OFFSET %s
        ) IS NULL
    )
"""


def _waiting() -> QuerySet[WebhookMessage]:
    return WebhookMessage.objects.filter(fanned_out_at__isnull=True).order_by("pk")


def _prepare(messages: Sequence[WebhookMessage]) -> Batch:
    recipients = subscriptions.recipients(messages)
    batch: list[WebhookMessage] = []
    deliveries = 0
    for message in messages:
        deliveries += len(recipients[message.pk])
        if batch and deliveries > DELIVERIES:
            break
        batch.append(message)
    made = payloads.make([message for message in batch if recipients[message.pk]], PAYLOAD_BYTES)
    unwanted = {message.pk: b"" for message in batch if not recipients[message.pk]}
    return Batch(made | unwanted, {recipient.endpoint_id for pk in made for recipient in recipients[pk]})


def _write(connection: Any, messages: Iterable[WebhookMessage], batch: Batch) -> int:
    done = [message for message in messages if message.pk in batch.bodies]
    if not done:
        return 0
    recipients = subscriptions.recipients(done)  # as they are under the lock
    kept = [message.pk for message in done if recipients[message.pk] and batch.bodies[message.pk]]
    WebhookMessage.objects.filter(pk__in={message.pk for message in done}.difference(kept)).delete()
    write_rows = db.pick(connection, postgresql=_write_on_postgresql, sqlite=_write_on_sqlite)
    with connection.cursor() as cursor:
        write_rows(cursor, {pk: batch.bodies[pk] for pk in kept}, _plan_deliveries(kept, recipients))
    return len(done)


def _plan_deliveries(message_ids: Sequence[int], recipients: Mapping[int, Sequence[subscriptions.Recipient]]) -> Plan:
    """Decide which deliveries to make. Another sender's batch may be under way: the limit holds but for its rows."""
    endpoint_ids = {recipient.endpoint_id for pk in message_ids for recipient in recipients[pk]}
    rows = WebhookDelivery.objects.filter(endpoint_id__in=endpoint_ids, status=DeliveryStatus.PENDING).order_by()
    pending: Counter[UUID] = Counter(dict(rows.values_list("endpoint_id").annotate(Count("pk"))))
    plan: Plan = {}
    for message_id in message_ids:
        new = []
        for endpoint_id, is_enabled in recipients[message_id]:
            is_full = pending[endpoint_id] >= conf.WEBHOOK_MAX_PENDING
            error = DISABLED if not is_enabled else BACKLOG_FULL if is_full else ""
            pending[endpoint_id] += not error
            new.append(NewDelivery(endpoint_id, error))
        plan.setdefault(tuple(new), []).append(message_id)
    return plan


# Past the ORM, which takes a third of a millisecond for a row; dead receivers, too, get thousands.


def _write_on_postgresql(cursor: Any, made: Mapping[int, bytes], plan: Plan) -> None:
    cursor.execute(_KEEP_ON_POSTGRESQL, [list(made), list(made.values())])
    for new, message_ids in plan.items():
        endpoint_ids, errors = zip(*new, strict=True)
        cursor.execute(_INSERT_ON_POSTGRESQL, [list(endpoint_ids), list(errors), message_ids])


def _write_on_sqlite(cursor: Any, made: Mapping[int, bytes], plan: Plan) -> None:
    cursor.executemany(_KEEP_ON_SQLITE, [(text, pk) for pk, text in made.items()])
    for new, message_ids in plan.items():
        rows = [(uuid7().hex, endpoint_id.hex, error, pk) for pk in message_ids for endpoint_id, error in new]
        cursor.executemany(_INSERT_ON_SQLITE, rows)


_KEEP_ON_POSTGRESQL = """
    UPDATE jobscheduler_webhookmessage m SET body = made.body, fanned_out_at = statement_timestamp()
    FROM unnest(%s::bigint[], %s::bytea[]) AS made (id, body) WHERE m.id = made.id
"""
_KEEP_ON_SQLITE = """
    UPDATE jobscheduler_webhookmessage
    SET body = %s, fanned_out_at = strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now') WHERE id = %s
"""
# An id is a UUID of version 7, as `jobs.ids.uuid7` makes them: 48 bits of milliseconds, the version, random bits.
_INSERT_ON_POSTGRESQL = """
    INSERT INTO jobscheduler_webhookdelivery (id, endpoint_id, message_id, event, job_id, group_id, error, status,
                                              next_try_at, attempts, attempts_before, probe)
    SELECT encode(set_bit(set_bit(overlay(
               uuid_send(gen_random_uuid())
               PLACING substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3) FROM 1 FOR 6
           ), 52, 1), 53, 1), 'hex')::uuid,
           d.endpoint_id, m.id, m.event, m.job_id, m.group_id, d.error,
           CASE WHEN d.error = '' THEN 'PENDING' ELSE 'FAILED' END,
           CASE WHEN d.error = '' THEN statement_timestamp() END, 0, 0, false
    FROM jobscheduler_webhookmessage m
    CROSS JOIN unnest(%s::uuid[], %s::text[]) AS d (endpoint_id, error)
    WHERE m.id = ANY(%s::bigint[])
"""
_INSERT_ON_SQLITE = """
    INSERT INTO jobscheduler_webhookdelivery (id, endpoint_id, message_id, event, job_id, group_id, error, status,
                                              next_try_at, attempts, attempts_before, probe)
    SELECT new.id, new.endpoint_id, m.id, m.event, m.job_id, m.group_id, new.error,
           CASE WHEN new.error = '' THEN 'PENDING' ELSE 'FAILED' END,
           CASE WHEN new.error = '' THEN strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now') END, 0, 0, 0
    FROM (SELECT %s AS id, %s AS endpoint_id, %s AS error) new JOIN jobscheduler_webhookmessage m ON m.id = %s
"""
