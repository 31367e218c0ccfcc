"""Hands messages out: makes the body, once, and a delivery for each endpoint that is owed it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from jobs import db
from webhooks import bodies, circuits, outbox
from webhooks.leases import DISABLED
from webhooks.models import DeliveryStatus, WebhookDelivery, WebhookEndpoint, WebhookMessage

BATCH = 200


@dataclass(frozen=True)
class HandedOut:
    messages: int = 0
    received: bool = False  # somebody is there to receive one of them


def hand_out(*, urgent: bool, most: int = BATCH) -> HandedOut:
    """One batch of the oldest, in one transaction; what other senders have in hand is theirs."""
    with db.atomic() as connection:
        messages = list(_owed(urgent)[:most])
        if not messages:
            return HandedOut()
        owed = {each.pk: outbox.unpack(each.owed) for each in messages}
        known = _failures({endpoint for ids in owed.values() for endpoint in ids})
        _keep_bodies(connection, [each for each in messages if not known.keys().isdisjoint(owed[each.pk])])
        _forget([pk for pk, ids in owed.items() if known.keys().isdisjoint(ids)])
        WebhookDelivery.objects.using(db.alias()).bulk_create(
            _delivery(each, endpoint, is_enabled=known[endpoint] is not None)
            for each in messages
            for endpoint in owed[each.pk]
            if endpoint in known
        )
    return HandedOut(len(messages), any(each is not None and not circuits.is_broken(each) for each in known.values()))


def _owed(urgent: bool) -> QuerySet[WebhookMessage]:
    rows = WebhookMessage.objects.using(db.alias()).filter(owed__isnull=False, urgent=urgent)
    return rows.order_by("pk").select_for_update(skip_locked=True)


def _failures(ids: set[UUID]) -> dict[UUID, int | None]:
    """Of each endpoint, in a row; None of one that is disabled. One that was deleted meanwhile is owed nothing."""
    rows = WebhookEndpoint.objects.using(db.alias()).filter(pk__in=ids)
    return {
        pk: failures if enabled else None for pk, enabled, failures in rows.values_list("pk", "enabled", "failures")
    }


def _forget(ids: Sequence[UUID]) -> None:
    """Messages whose endpoints are all gone."""
    if ids:
        WebhookMessage.objects.using(db.alias()).filter(pk__in=ids).delete()


def _keep_bodies(connection: Any, messages: Sequence[WebhookMessage]) -> None:
    made = bodies.made([each for each in messages if each.body is None])
    key = WebhookMessage._meta.pk
    rows = [(made.get(each.pk, each.body), key.get_db_prep_value(each.pk, connection)) for each in messages]
    with connection.cursor() as cursor:
        cursor.executemany(_KEEP, rows)


_KEEP = f"UPDATE {WebhookMessage._meta.db_table} SET body = %s, owed = NULL, snapshot = NULL WHERE id = %s"  # noqa: S608


def _delivery(message: WebhookMessage, endpoint: UUID, *, is_enabled: bool) -> WebhookDelivery:
    failed: dict[str, Any] = {"status": DeliveryStatus.FAILED, "next_try_at": None, "error": DISABLED}
    return WebhookDelivery(
        endpoint_id=endpoint,
        message_id=message.pk,
        event=message.event,
        job_id=message.job_id,
        group_id=message.group_id,
        **({} if is_enabled else failed),
    )
