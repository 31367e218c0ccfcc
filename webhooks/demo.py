"""The endpoints of the demo. Their hosts cannot exist, so that nothing is ever sent."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from jobs import clock, db
from jobs.actors import Actor
from jobs.demo import TENANT
from webhooks import events, fanout, services
from webhooks.deliveries import disable_endpoint
from webhooks.models import DeliveryStatus, WebhookAttempt, WebhookDelivery, WebhookEndpoint

SHOP_URL, OLD_SHOP_URL = "https://shop.example.invalid/hooks/jobs", "https://former-shop.example.invalid/hooks"
RESPONSE_HEADS = {
    200: "HTTP/1.1 200 OK\ncontent-type: text/plain",
    503: "HTTP/1.1 503 Service Unavailable\nretry-after: 60",
}


def prepare(actor: Actor) -> None:
    services.create(SHOP_URL, [events.COMPLETED, events.FAILED, events.GROUP_FINISHED], tenant=TENANT, actor=actor)
    services.create(OLD_SHOP_URL, [events.FAILED], tenant=TENANT, actor=actor)


def finish(actor: Actor) -> None:
    """Fan out the events of the demo's jobs: most deliveries succeed, one in nine fails, the last wait for a retry."""
    with db.atomic():
        while fanout.fan_out():
            pass
        deliveries = list(WebhookDelivery.objects.filter(endpoint__in=_endpoints()).order_by("pk"))
        last_deliveries = [delivery for delivery in deliveries if delivery.endpoint.url != OLD_SHOP_URL][-3:]
        now = clock.now()
        for number, delivery in enumerate(deliveries):
            if delivery in last_deliveries:
                _record(delivery, DeliveryStatus.PENDING, 2, next_try_at=now + timedelta(hours=1))
            elif delivery.endpoint.url == OLD_SHOP_URL or number % 9 == 8:
                _record(delivery, DeliveryStatus.FAILED, 4, next_try_at=None)
            else:
                _record(delivery, DeliveryStatus.DELIVERED, 1, next_try_at=None, delivered_at=now)
        for endpoint in _endpoints().filter(url=OLD_SHOP_URL).select_for_update(no_key=True):
            disable_endpoint(endpoint, "demo: it answered 410 Gone")


def clear(actor: Actor) -> None:
    for endpoint_id in list(_endpoints().values_list("pk", flat=True)):
        services.delete(endpoint_id, actor=actor)


def _record(delivery: WebhookDelivery, status: DeliveryStatus, attempts: int, **times: Any) -> None:
    response_status = 200 if status == DeliveryStatus.DELIVERED else 503
    error = "" if response_status == 200 else f"answered {response_status}"
    fields = {"status": status, "attempts": attempts, "response_status": response_status, "error": error, **times}
    WebhookDelivery.objects.filter(pk=delivery.pk).update(**fields)
    WebhookAttempt.objects.bulk_create(
        WebhookAttempt(
            delivery_id=delivery.pk,
            took_ms=40 + 7 * attempt,
            response_status=response_status,
            response_head=RESPONSE_HEADS[response_status],
            response_body="ok" if response_status == 200 else "try again later",
            error=error,
        )
        for attempt in range(attempts)
    )


def _endpoints() -> Any:
    return WebhookEndpoint.objects.filter(tenant=TENANT)
