"""Write and read subscriptions, the rows by which the outbox's triggers and fan-out find endpoints."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple
from uuid import UUID

from django.db.models.functions import Now

from webhooks import events
from webhooks.models import WebhookEndpoint, WebhookMessage, WebhookSubscription


class Recipient(NamedTuple):
    """An endpoint that receives a message."""

    endpoint_id: UUID
    is_enabled: bool


def write_subscriptions(endpoint: WebhookEndpoint) -> None:
    """Make an endpoint's subscriptions agree with its row. Call it in the transaction of every change to the row."""
    rows = WebhookSubscription.objects.filter(endpoint_id=endpoint.pk)
    wanted = events.expand_patterns(endpoint.events)
    rows.exclude(event__in=wanted).delete()
    if endpoint.enabled:
        rows.filter(until__isnull=False).update(since=Now(), until=None)
    else:
        rows.filter(until__isnull=True).update(until=Now())
    missing = wanted - set(rows.values_list("event", flat=True))
    if endpoint.enabled and missing:
        WebhookSubscription.objects.bulk_create(
            WebhookSubscription(endpoint_id=endpoint.pk, tenant=endpoint.tenant, event=event)
            for event in sorted(missing)
        )


def find_recipients(messages: Iterable[WebhookMessage]) -> dict[int, list[Recipient]]:
    """Return, by message, the endpoints that were subscribed at the time of the event and still are."""
    message_list = list(messages)
    pairs = {(message.tenant, message.event) for message in message_list}
    rows = WebhookSubscription.objects.filter(
        tenant__in={tenant for tenant, _ in pairs}, event__in={event for _, event in pairs}
    )
    by_event: dict[tuple[str, str], list[WebhookSubscription]] = {}
    for row in rows.order_by("pk"):
        by_event.setdefault((row.tenant, row.event), []).append(row)
    return {
        message.pk: [
            Recipient(row.endpoint_id, row.until is None)
            for row in by_event.get((message.tenant, message.event), ())
            if row.since <= message.at and (row.until is None or message.at < row.until)
        ]
        for message in message_list
    }
