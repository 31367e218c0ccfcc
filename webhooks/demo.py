"""The endpoints of the demo. Their host can never exist, so that nobody is sent anything."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from jobs import clock, db
from jobs.actors import Actor
from jobs.demo import TENANT
from webhooks import events, fanout, leases, services
from webhooks.models import DeliveryStatus, WebhookAttempt, WebhookDelivery, WebhookEndpoint

SHOP, OLD = "https://shop.example.invalid/hooks/jobs", "https://former-shop.example.invalid/hooks"
ANSWERS = {200: "HTTP/1.1 200 OK\ncontent-type: text/plain", 503: "HTTP/1.1 503 Service Unavailable\nretry-after: 60"}


def prepare(actor: Actor) -> None:
    services.create(SHOP, [events.COMPLETED, events.FAILED, events.GROUP_FINISHED], tenant=TENANT, actor=actor)
    services.create(OLD, [events.FAILED], tenant=TENANT, actor=actor)


def finish(actor: Actor) -> None:
    """Fan out the events of the past, and say how they were received."""
    with db.atomic():
        while fanout.fan_out():
            pass
        _receive(list(WebhookDelivery.objects.filter(endpoint__in=_endpoints()).order_by("pk")))
        for endpoint in _endpoints().filter(url=OLD).select_for_update(no_key=True):
            leases.disable(endpoint, "demo: it answered 410 Gone")


def clear(actor: Actor) -> None:
    for key in list(_endpoints().values_list("pk", flat=True)):
        services.delete(key, actor=actor)


def _receive(deliveries: Sequence[WebhookDelivery]) -> None:
    """Most of them well, one in nine not at all, and the last few after a pause."""
    now = clock.now()
    lively = [each for each in deliveries if each.endpoint.url != OLD]
    last = {each.pk for each in lively[-3:]}
    for number, each in enumerate(deliveries):
        if each.pk in last:
            later = now + timedelta(hours=1)
            _settle(each, 503, status=DeliveryStatus.PENDING, next_try_at=later, attempts=2, error="answered 503")
        elif each.endpoint.url == OLD or number % 9 == 8:
            _settle(each, 503, status=DeliveryStatus.FAILED, next_try_at=None, attempts=4, error="answered 503")
        else:
            done = {"status": DeliveryStatus.DELIVERED, "next_try_at": None, "delivered_at": now}
            _settle(each, 200, **done, attempts=1)


def _settle(delivery: WebhookDelivery, answer: int, **became: Any) -> None:
    WebhookDelivery.objects.filter(pk=delivery.pk).update(response_status=answer, **became)
    WebhookAttempt.objects.bulk_create(
        WebhookAttempt(
            delivery_id=delivery.pk,
            took_ms=40 + 7 * attempt,
            response_status=answer,
            response_head=ANSWERS[answer],
            response_body="ok" if answer == 200 else "try again later",
            error=became.get("error", ""),
        )
        for attempt in range(became["attempts"])
    )


def _endpoints() -> Any:
    return WebhookEndpoint.objects.filter(tenant=TENANT)
