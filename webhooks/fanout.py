"""Fan out messages: build the body of each, once, and insert a delivery for each endpoint that subscribed to it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import Count, QuerySet

from jobs import db
from jobs.conf import conf
from jobs.stats.cache import RateLimitedCache
from webhooks import payloads, subscriptions
from webhooks.circuit_breaker import FAILURE_THRESHOLD
from webhooks.models import DeliveryStatus, WebhookDelivery, WebhookMessage

# Limits of a batch; a single message may exceed them.
MAX_MESSAGES, MAX_DELIVERIES, MAX_PAYLOAD_BYTES = 200, 5000, 4 * 2**20
IDLE_BELOW = 25  # an endpoint with fewer pending deliveries is idle
DISABLED, BACKLOG_FULL = "endpoint disabled", "backlog full"


class NewDelivery(NamedTuple):
    """A delivery to insert. One with an `error` is inserted as FAILED, and can be resent."""

    endpoint_id: UUID
    error: str


# The ids of messages by the deliveries to insert for each: most messages have the same ones.
DeliveryPlan = dict[tuple[NewDelivery, ...], list[int]]


class Batch(NamedTuple):
    """The bodies of messages by id, and their endpoints as read before the rows were locked."""

    bodies: dict[int, bytes]  # empty for messages without subscribers
    endpoint_ids: set[UUID]


def fan_out(limit: int = MAX_MESSAGES) -> int:
    """Fan out one batch of the oldest messages in one transaction, locked from other senders; return their number."""
    if db.has_one_writer():  # the bodies are built before the only write lock is taken
        batch = _prepare_batch(list(_pending_messages()[:limit]))
        with db.atomic() as connection:
            return _write_batch(connection, list(_pending_messages().filter(pk__in=list(batch.bodies))), batch)
    with db.atomic() as connection:
        messages = list(_pending_messages().select_for_update(skip_locked=True)[:limit])
        batch = _prepare_batch(messages)
        if batch.endpoint_ids:
            with connection.cursor() as cursor:
                cursor.execute(_LOCK_ENDPOINTS, [sorted(batch.endpoint_ids)])
        return _write_batch(connection, messages, batch)


# A transaction that disables or deletes one of them waits for this one, and then fails the deliveries written here.
_LOCK_ENDPOINTS = "SELECT 1 FROM jobscheduler_webhookendpoint WHERE id = ANY(%s::uuid[]) ORDER BY id FOR SHARE"


def has_idle_endpoint() -> bool:
    """Return whether an endpoint that responds has fewer than IDLE_BELOW pending deliveries."""
    with db.connection().cursor() as cursor:
        cursor.execute(_HAS_IDLE_ENDPOINT, [FAILURE_THRESHOLD, IDLE_BELOW - 1])
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


def _pending_messages() -> QuerySet[WebhookMessage]:
    return WebhookMessage.objects.filter(fanned_out_at__isnull=True).order_by("pk")


def _prepare_batch(messages: Sequence[WebhookMessage]) -> Batch:
    recipients = subscriptions.find_recipients(messages)
    batch: list[WebhookMessage] = []
    delivery_count = 0
    for message in messages:
        delivery_count += len(recipients[message.pk])
        if batch and delivery_count > MAX_DELIVERIES:
            break
        batch.append(message)
    bodies = payloads.build_bodies([message for message in batch if recipients[message.pk]], MAX_PAYLOAD_BYTES)
    endpoint_ids = {recipient.endpoint_id for pk in bodies for recipient in recipients[pk]}
    without_subscribers = {message.pk: b"" for message in batch if not recipients[message.pk]}
    return Batch(bodies | without_subscribers, endpoint_ids)


def _write_batch(connection: Any, messages: Iterable[WebhookMessage], batch: Batch) -> int:
    done = [message for message in messages if message.pk in batch.bodies]
    if not done:
        return 0
    recipients = subscriptions.find_recipients(done)  # read again, under the lock
    sent_ids = [message.pk for message in done if recipients[message.pk] and batch.bodies[message.pk]]
    WebhookMessage.objects.filter(pk__in={message.pk for message in done}.difference(sent_ids)).delete()
    write_rows = db.pick(connection, postgresql=_write_on_postgresql, sqlite=_write_on_sqlite)
    with connection.cursor() as cursor:
        write_rows(cursor, {pk: batch.bodies[pk] for pk in sent_ids}, _plan_deliveries(sent_ids, recipients))
    return len(done)


def _plan_deliveries(
    message_ids: Sequence[int], recipients: Mapping[int, Sequence[subscriptions.Recipient]]
) -> DeliveryPlan:
    """Decide which deliveries to insert. WEBHOOK_MAX_PENDING may be exceeded by the batches of concurrent senders."""
    pending = _pending_counts.get("all endpoints", _count_pending, Counter.total)
    plan: DeliveryPlan = {}
    for message_id in message_ids:
        new = []
        for endpoint_id, is_enabled in recipients[message_id]:
            is_full = pending[endpoint_id] >= conf.WEBHOOK_MAX_PENDING
            error = DISABLED if not is_enabled else BACKLOG_FULL if is_full else ""
            pending[endpoint_id] += not error
            new.append(NewDelivery(endpoint_id, error))
        plan.setdefault(tuple(new), []).append(message_id)
    return plan


_pending_counts: RateLimitedCache[Counter[UUID]] = RateLimitedCache()  # counting 200,000 takes 0.2 s on SQLite


def _count_pending() -> Counter[UUID]:
    """Count the pending deliveries of each endpoint. Batches of this process add what they insert."""
    rows = WebhookDelivery.objects.filter(status=DeliveryStatus.PENDING).order_by()
    return Counter(dict(rows.values_list("endpoint_id").annotate(Count("pk"))))


# Literal SQL: the ORM takes a third of a millisecond for a row, and an unresponsive receiver gets thousands.


def _write_on_postgresql(cursor: Any, bodies: Mapping[int, bytes], plan: DeliveryPlan) -> None:
    cursor.execute(_STORE_BODIES_ON_POSTGRESQL, [list(bodies), list(bodies.values())])
    for new, message_ids in plan.items():
        endpoint_ids, errors = zip(*new, strict=True)
        cursor.execute(_INSERT_ON_POSTGRESQL, [list(endpoint_ids), list(errors), message_ids])


def _write_on_sqlite(cursor: Any, bodies: Mapping[int, bytes], plan: DeliveryPlan) -> None:
    cursor.executemany(_STORE_BODIES_ON_SQLITE, [(body, pk) for pk, body in bodies.items()])
    for new, message_ids in plan.items():
        rows = [(delivery.endpoint_id.hex, delivery.error) for delivery in new]
        cursor.execute(_INSERT_ON_SQLITE, [json.dumps(message_ids), json.dumps(rows)])


_STORE_BODIES_ON_POSTGRESQL = """
    UPDATE jobscheduler_webhookmessage m SET body = built.body, fanned_out_at = statement_timestamp()
    FROM unnest(%s::bigint[], %s::bytea[]) AS built (id, body) WHERE m.id = built.id
"""
_STORE_BODIES_ON_SQLITE = """
    UPDATE jobscheduler_webhookmessage
    SET body = %s, fanned_out_at = strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now') WHERE id = %s
"""
# Ids are UUIDs of version 7, as in `jobs.ids.uuid7`: 48 bits of milliseconds, the version, random bits.
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
    SELECT lower(printf('%%012x', (julianday('now') - 2440587.5) * 86400000) || '7' || substr(hex(randomblob(2)), 2)
                 || substr('89ab', 1 + abs(random() %% 4), 1) || substr(hex(randomblob(8)), 2)),
           d.value ->> 0, m.id, m.event, m.job_id, m.group_id, d.value ->> 1,
           CASE WHEN d.value ->> 1 = '' THEN 'PENDING' ELSE 'FAILED' END,
           CASE WHEN d.value ->> 1 = '' THEN strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now') END, 0, 0, 0
    FROM json_each(%s) message CROSS JOIN jobscheduler_webhookmessage m CROSS JOIN json_each(%s) d
    WHERE m.id = message.value
"""
