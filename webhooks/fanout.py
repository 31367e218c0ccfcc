"""Fan-out: makes a message's body, once, and a delivery for each endpoint that wants it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import Count, QuerySet

from jobs import db
from jobs.conf import conf
from jobs.ids import uuid7
from webhooks import bodies, subscriptions
from webhooks.circuits import BREAK_AFTER
from webhooks.models import DeliveryStatus, WebhookDelivery, WebhookEndpoint, WebhookMessage

MESSAGES, PAYLOAD_BYTES = 200, 4 * 2**20  # of a batch
ROOM = 25  # deliveries that may wait at an endpoint before fan-out for it is no longer urgent
DISABLED, BACKLOG_FULL = "endpoint disabled", "backlog full"
PENDING = DeliveryStatus.PENDING


class NewDelivery(NamedTuple):
    """To one endpoint. One that has an `error` from the start has FAILED, and can be resent."""

    endpoint_id: UUID
    error: str


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
        return _write(connection, messages, _prepare(messages))


def has_idle_endpoint() -> bool:
    """Tell whether an endpoint that answers could be sent more than waits for it."""
    with db.connection().cursor() as cursor:
        cursor.execute(_HAS_IDLE_ENDPOINT)
        return bool(cursor.fetchone()[0])


_HAS_IDLE_ENDPOINT = f"""
    SELECT EXISTS (
        SELECT 1 FROM {WebhookEndpoint._meta.db_table} e
        WHERE e.enabled AND e.failures < {BREAK_AFTER:d} AND (
            SELECT 1 FROM {WebhookDelivery._meta.db_table} d
            WHERE d.endpoint_id = e.id AND d.status = '{PENDING}' LIMIT 1 OFFSET {ROOM - 1:d}
        ) IS NULL
    )
"""  # noqa: S608 — our own words


def _waiting() -> QuerySet[WebhookMessage]:
    return WebhookMessage.objects.filter(fanned_out_at__isnull=True).order_by("pk")


def _prepare(messages: Sequence[WebhookMessage]) -> Batch:
    recipients = subscriptions.recipients(messages)
    made = bodies.make([message for message in messages if recipients[message.pk]], PAYLOAD_BYTES)
    unwanted = {message.pk: b"" for message in messages if not recipients[message.pk]}
    return Batch(made | unwanted, {each.endpoint_id for pk in made for each in recipients[pk]})


def _write(connection: Any, messages: Iterable[WebhookMessage], batch: Batch) -> int:
    done = [message for message in messages if message.pk in batch.bodies]
    if not done:
        return 0
    _lock_endpoints(connection, batch.endpoint_ids)
    recipients = subscriptions.recipients(done)  # as they are under the lock
    kept = [message for message in done if recipients[message.pk] and batch.bodies[message.pk]]
    unwanted = {message.pk for message in done} - {message.pk for message in kept}
    WebhookMessage.objects.filter(pk__in=unwanted).delete()
    _keep_bodies(connection, {message.pk: batch.bodies[message.pk] for message in kept})
    _insert_deliveries(connection, _deliveries(kept, recipients))
    return len(done)


def _deliveries(
    messages: Sequence[WebhookMessage], recipients: dict[int, list[subscriptions.Recipient]]
) -> dict[tuple[NewDelivery, ...], list[int]]:
    """Return the deliveries to make, with the messages that they are made of: most have the same."""
    pending = _pending({each.endpoint_id for message in messages for each in recipients[message.pk]})
    found: dict[tuple[NewDelivery, ...], list[int]] = {}
    for message in messages:
        new = tuple(NewDelivery(each.endpoint_id, _error(each, pending)) for each in recipients[message.pk])
        pending.update(each.endpoint_id for each in new if not each.error)
        found.setdefault(new, []).append(message.pk)
    return found


def _error(recipient: subscriptions.Recipient, pending: Counter[UUID]) -> str:
    if not recipient.is_enabled:
        return DISABLED
    return BACKLOG_FULL if pending[recipient.endpoint_id] >= conf.WEBHOOK_MAX_PENDING else ""


def _pending(endpoints: set[UUID]) -> Counter[UUID]:
    """Count what waits at each endpoint. Another sender's batch may be under way: the limit holds but for its rows."""
    rows = WebhookDelivery.objects.filter(endpoint_id__in=endpoints, status=PENDING).order_by()
    return Counter(dict(rows.values_list("endpoint_id").annotate(Count("pk"))))


def _lock_endpoints(connection: Any, endpoints: set[UUID]) -> None:
    """Whoever disables or deletes one of them waits, and then ends what is written here."""
    if connection.vendor == "postgresql" and endpoints:
        with connection.cursor() as cursor:
            cursor.execute(_LOCK_ENDPOINTS, [sorted(endpoints)])


_LOCK_ENDPOINTS = f"""
    SELECT 1 FROM {WebhookEndpoint._meta.db_table} WHERE id = ANY(%s::uuid[]) ORDER BY id FOR SHARE
"""  # noqa: S608


def _insert_deliveries(connection: Any, deliveries: dict[tuple[NewDelivery, ...], list[int]]) -> None:
    """Past the ORM, which takes a third of a millisecond for a row; dead receivers, too, get thousands."""
    with connection.cursor() as cursor:
        for new, message_ids in deliveries.items():
            if connection.vendor == "postgresql":
                endpoint_ids, errors = zip(*new, strict=True)
                cursor.execute(_INSERT_ON_POSTGRES, [list(endpoint_ids), list(errors), message_ids])
            else:
                cursor.executemany(
                    _INSERT_ON_SQLITE,
                    [(uuid7().hex, each.endpoint_id.hex, each.error, pk) for pk in message_ids for each in new],
                )


_COLUMNS = """id, endpoint_id, message_id, event, job_id, group_id, error, status, next_try_at,
                 attempts, attempts_before, probe"""
# An id is a UUID of version 7, as `jobs.ids.uuid7` makes them: 48 bits of milliseconds, the version, random bits.
_INSERT_ON_POSTGRES = f"""
    INSERT INTO {WebhookDelivery._meta.db_table} ({_COLUMNS})
    SELECT encode(set_bit(set_bit(overlay(
               uuid_send(gen_random_uuid())
               PLACING substring(int8send((extract(epoch FROM clock_timestamp()) * 1000)::bigint) FROM 3) FROM 1 FOR 6
           ), 52, 1), 53, 1), 'hex')::uuid,
           d.endpoint_id, m.id, m.event, m.job_id, m.group_id, d.error,
           CASE WHEN d.error = '' THEN 'PENDING' ELSE 'FAILED' END,
           CASE WHEN d.error = '' THEN statement_timestamp() END, 0, 0, false
    FROM {WebhookMessage._meta.db_table} m
    CROSS JOIN unnest(%s::uuid[], %s::text[]) AS d (endpoint_id, error)
    WHERE m.id = ANY(%s::bigint[])
"""  # noqa: S608
_INSERT_ON_SQLITE = f"""
    INSERT INTO {WebhookDelivery._meta.db_table} ({_COLUMNS})
    SELECT new.id, new.endpoint_id, m.id, m.event, m.job_id, m.group_id, new.error,
           CASE WHEN new.error = '' THEN 'PENDING' ELSE 'FAILED' END,
           CASE WHEN new.error = '' THEN strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now') END, 0, 0, 0
    FROM (SELECT %s AS id, %s AS endpoint_id, %s AS error) new JOIN {WebhookMessage._meta.db_table} m ON m.id = %s
"""  # noqa: S608


def _keep_bodies(connection: Any, made: dict[int, bytes]) -> None:
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            cursor.execute(_KEEP_ON_POSTGRES, [list(made), list(made.values())])
        else:
            cursor.executemany(_KEEP_ON_SQLITE, [(text, pk) for pk, text in made.items()])


_KEEP_ON_POSTGRES = f"""
    UPDATE {WebhookMessage._meta.db_table} m SET body = made.body, fanned_out_at = statement_timestamp()
    FROM unnest(%s::bigint[], %s::bytea[]) AS made (id, body) WHERE m.id = made.id
"""  # noqa: S608
_KEEP_ON_SQLITE = f"""
    UPDATE {WebhookMessage._meta.db_table}
    SET body = %s, fanned_out_at = strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now') WHERE id = %s
"""  # noqa: S608
