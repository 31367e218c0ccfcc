"""Fan-out: makes a message's body, once, and a delivery for each endpoint that wants it."""

from __future__ import annotations

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
    """One that has an `error` from the start has FAILED, and can be resent."""

    id: UUID
    endpoint_id: UUID
    message: WebhookMessage
    error: str


def fan_out(limit: int = MESSAGES) -> int:
    """Fan out one batch of the oldest messages in one transaction; return how many. Senders share them by row locks."""
    if db.is_sqlite():  # bodies are made before the only writer is needed
        made = _make_bodies(list(_waiting()[:limit]))
        with db.atomic() as connection:
            return _write(connection, list(_waiting().filter(pk__in=list(made))), made)
    with db.atomic() as connection:
        messages = list(_waiting().select_for_update(skip_locked=True)[:limit])
        return _write(connection, messages, _make_bodies(messages))


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


def _make_bodies(messages: Sequence[WebhookMessage]) -> dict[int, bytes]:
    """Messages that nobody wants any more get an empty one."""
    wanted = subscriptions.recipients(messages)
    made = bodies.make([message for message in messages if wanted[message.pk]], PAYLOAD_BYTES)
    return made | {message.pk: b"" for message in messages if not wanted[message.pk]}


def _write(connection: Any, messages: Iterable[WebhookMessage], made: dict[int, bytes]) -> int:
    batch = [message for message in messages if message.pk in made]
    if not batch:
        return 0
    _lock_endpoints(
        connection, {each.endpoint_id for some in subscriptions.recipients(batch).values() for each in some}
    )
    recipients = subscriptions.recipients(batch)  # as they are under the lock
    unwanted = [message.pk for message in batch if not (recipients[message.pk] and made[message.pk])]
    WebhookMessage.objects.filter(pk__in=unwanted).delete()
    kept = [message for message in batch if message.pk not in set(unwanted)]
    _insert_deliveries(connection, _deliveries(kept, recipients))
    _keep_bodies(connection, {message.pk: made[message.pk] for message in kept})
    return len(batch)


def _deliveries(
    messages: Sequence[WebhookMessage], recipients: dict[int, list[subscriptions.Recipient]]
) -> list[NewDelivery]:
    pending = _pending({each.endpoint_id for message in messages for each in recipients[message.pk]})
    deliveries = []
    for message in messages:
        for endpoint_id, is_enabled in recipients[message.pk]:
            error = ""
            if not is_enabled:
                error = DISABLED
            elif pending.get(endpoint_id, 0) >= conf.WEBHOOK_MAX_PENDING:
                error = BACKLOG_FULL
            else:
                pending[endpoint_id] = pending.get(endpoint_id, 0) + 1
            deliveries.append(NewDelivery(uuid7(), endpoint_id, message, error))
    return deliveries


def _pending(endpoints: set[UUID]) -> dict[UUID, int]:
    """Count what waits at each endpoint. Another sender's batch may be under way: the limit holds but for its rows."""
    rows = WebhookDelivery.objects.filter(endpoint_id__in=endpoints, status=PENDING).order_by()
    return dict(rows.values_list("endpoint_id").annotate(Count("pk")))


def _lock_endpoints(connection: Any, endpoints: set[UUID]) -> None:
    """Whoever disables or deletes one of them waits, and then ends what is written here."""
    if connection.vendor == "postgresql" and endpoints:
        with connection.cursor() as cursor:
            cursor.execute(_LOCK_ENDPOINTS, [sorted(endpoints)])


_LOCK_ENDPOINTS = f"""
    SELECT 1 FROM {WebhookEndpoint._meta.db_table} WHERE id = ANY(%s::uuid[]) ORDER BY id FOR SHARE
"""  # noqa: S608


def _insert_deliveries(connection: Any, deliveries: Sequence[NewDelivery]) -> None:
    """Past the ORM, which takes a third of a millisecond for a row; dead receivers, too, get thousands."""
    with connection.cursor() as cursor:
        if connection.vendor == "postgresql":
            columns = [(each.id, each.endpoint_id, each.message.pk, each.error) for each in deliveries]
            cursor.execute(_INSERT_ON_POSTGRES, [list(column) for column in zip(*columns, strict=True)] or [[]] * 4)
        else:
            cursor.executemany(
                _INSERT_ON_SQLITE,
                [
                    (each.id.hex, each.endpoint_id.hex, each.error, each.error, each.error, each.message.pk)
                    for each in deliveries
                ],
            )


_COLUMNS = "id, endpoint_id, message_id, event, job_id, group_id, status, error, next_try_at"
_INSERT_ON_POSTGRES = f"""
    INSERT INTO {WebhookDelivery._meta.db_table} ({_COLUMNS}, attempts, attempts_before, probe)
    SELECT d.id, d.endpoint_id, m.id, m.event, m.job_id, m.group_id,
           CASE WHEN d.error = '' THEN 'PENDING' ELSE 'FAILED' END, d.error,
           CASE WHEN d.error = '' THEN statement_timestamp() END, 0, 0, false
    FROM unnest(%s::uuid[], %s::uuid[], %s::bigint[], %s::text[]) AS d (id, endpoint_id, message_id, error)
    JOIN {WebhookMessage._meta.db_table} m ON m.id = d.message_id
"""  # noqa: S608
_INSERT_ON_SQLITE = f"""
    INSERT INTO {WebhookDelivery._meta.db_table} ({_COLUMNS}, attempts, attempts_before, probe)
    SELECT %s, %s, m.id, m.event, m.job_id, m.group_id,
           CASE WHEN %s = '' THEN 'PENDING' ELSE 'FAILED' END, %s,
           CASE WHEN %s = '' THEN strftime('%%Y-%%m-%%d %%H:%%M:%%f', 'now') END, 0, 0, 0
    FROM {WebhookMessage._meta.db_table} m WHERE m.id = %s
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
