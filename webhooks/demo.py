"""The endpoints of the demo. Their host can never exist, so that nobody is sent anything."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from jobs import clock, db
from jobs.actors import Actor
from jobs.demo import TENANT
from webhooks import deliveries as leases
from webhooks import events, fanout, services
from webhooks.models import DeliveryStatus, WebhookAttempt, WebhookDelivery, WebhookEndpoint

SHOP, OLD = "https://shop.example.invalid/hooks/jobs", "https://former-shop.example.invalid/hooks"
ANSWERS = {200: "HTTP/1.1 200 OK\ncontent-type: text/plain", 503: "HTTP/1.1 503 Service Unavailable\nretry-after: 60"}


def prepare(actor: Actor) -> None:
    services.create(SHOP, [events.COMPLETED, events.FAILED, events.GROUP_FINISHED], tenant=TENANT, actor=actor)
    services.create(OLD, [events.FAILED], tenant=TENANT, actor=actor)


def finish(actor: Actor) -> None:
    """Fan out the events of the past; most are received well, one in nine not at all, the last few after a pause."""
    with db.atomic():
        while fanout.fan_out():
            pass
        deliveries = list(WebhookDelivery.objects.filter(endpoint__in=_endpoints()).order_by("pk"))
        last = [delivery for delivery in deliveries if delivery.endpoint.url != OLD][-3:]
        now = clock.now()
        for number, delivery in enumerate(deliveries):
            if delivery in last:
                _settle(delivery, 503, DeliveryStatus.PENDING, 2, next_try_at=now + timedelta(hours=1))
            elif delivery.endpoint.url == OLD or number % 9 == 8:
                _settle(delivery, 503, DeliveryStatus.FAILED, 4, next_try_at=None)
            else:
                _settle(delivery, 200, DeliveryStatus.DELIVERED, 1, next_try_at=None, delivered_at=now)
        for endpoint in _endpoints().filter(url=OLD).select_for_update(no_key=True):
            leases.disable_endpoint(endpoint, "demo: it answered 410 Gone")


def clear(actor: Actor) -> None:
    for key in list(_endpoints().values_list("pk", flat=True)):
        services.delete(key, actor=actor)


def _settle(delivery: WebhookDelivery, answer: int, status: DeliveryStatus, attempts: int, **times: Any) -> None:
    error = "" if answer == 200 else f"answered {answer}"
    fields = {"status": status, "attempts": attempts, "response_status": answer, "error": error, **times}
    WebhookDelivery.objects.filter(pk=delivery.pk).update(**fields)
    WebhookAttempt.objects.bulk_create(
        WebhookAttempt(
            delivery_id=delivery.pk,
            took_ms=40 + 7 * attempt,
            response_status=answer,
            response_head=ANSWERS[answer],
            response_body="ok" if answer == 200 else "try again later",
            error=error,
        )
        for attempt in range(attempts)
    )


def _endpoints() -> Any:
    return WebhookEndpoint.objects.filter(tenant=TENANT)
