"""The services for endpoints and deliveries: validation, tenants, enabling, resending and deleting."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.utils import timezone

from jobs.errors import InvalidInput, NotFound
from tests.factories import WebhookAttemptFactory, WebhookDeliveryFactory
from tests.support.webhooks import ANYWHERE, complete_job, create_endpoint, fan_out_all, list_deliveries
from tests.webhooks.conftest import Settings
from webhooks import deliveries, services
from webhooks.models import WebhookAttempt, WebhookDelivery, WebhookEndpoint, WebhookMessage

pytestmark = pytest.mark.django_db

BAD_EVENTS: list[Any] = [[], "job.completed", None, {}, ["job.finished"], ["job.completed", 1], ["JOB.COMPLETED"], [[]]]


@pytest.mark.parametrize("events", BAD_EVENTS)
def test_events_must_be_known(events: Any) -> None:
    with pytest.raises(InvalidInput) as refused:
        services.create(ANYWHERE, events)
    assert refused.value.errors[0]["loc"][0] == "events"


def test_events_are_stored_once_each_in_their_order() -> None:
    endpoint, _ = services.create(ANYWHERE, ["job.failed", "*", "job.failed"])
    assert endpoint.events == ["job.failed", "*"]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"url": "http://127.0.0.1/"}, "url"),
        ({"url": None}, "url"),
        ({"url": 1}, "url"),
        ({"events": []}, "events"),
        ({"enabled": "yes"}, "enabled"),
        ({"enabled": None}, "enabled"),
        ({"secret": "mine"}, "secret"),
        ({"tenant": "acme"}, "tenant"),
    ],
)
def test_an_edit_that_makes_no_sense_changes_nothing(changes: dict[str, Any], field: str) -> None:
    endpoint = create_endpoint()
    with pytest.raises(InvalidInput) as refused:
        services.update(endpoint.pk, changes)
    assert refused.value.errors[0]["loc"] == [field]
    assert services.get(endpoint.pk).url == ANYWHERE


def test_endpoints_and_deliveries_of_another_tenant_are_not_found() -> None:
    endpoint = create_endpoint(tenant="acme")
    delivery = WebhookDeliveryFactory.create(endpoint=endpoint)
    for call in (
        lambda: services.get(endpoint.pk, tenant="default"),
        lambda: services.update(endpoint.pk, {"enabled": False}, tenant="default"),
        lambda: services.delete(endpoint.pk, tenant="default"),
        lambda: services.rotate_secret(endpoint.pk, tenant="default"),
        lambda: services.send_test(endpoint.pk, tenant="default"),
        lambda: services.resend(delivery.pk, tenant="default"),
        lambda: services.resend_failed(endpoint.pk, tenant="default"),
        lambda: services.get(uuid4()),
        lambda: services.get("nonsense"),
        lambda: services.resend("nonsense"),
    ):
        with pytest.raises(NotFound):
            call()
    assert services.get(endpoint.pk, tenant="acme").enabled


def test_disabling_ends_pending_deliveries_and_enabling_resets_the_circuit() -> None:
    endpoint = create_endpoint(failures=7, open_until=timezone.now() + timedelta(hours=1))
    WebhookDeliveryFactory.create_batch(3, endpoint=endpoint)
    in_flight = WebhookDeliveryFactory.create(
        endpoint=endpoint, lease_token=uuid4(), lease_expires_at=timezone.now() + timedelta(minutes=1)
    )
    services.update(endpoint.pk, {"enabled": False})
    assert sorted(delivery.status for delivery in list_deliveries()) == ["FAILED"] * 3 + ["PENDING"]
    assert services.get_delivery(in_flight.pk).status == "PENDING"
    enabled = services.update(endpoint.pk, {"enabled": True})
    assert (enabled.failures, enabled.open_until, enabled.disabled_reason) == (0, None, "")


def test_a_test_is_a_delivery_like_any_other() -> None:
    endpoint = create_endpoint("https://example.org/", "job.failed")
    delivery = services.send_test(endpoint.pk)
    assert (delivery.event, delivery.status, delivery.job_id) == ("webhook.test", "PENDING", None)
    (task,) = deliveries.claim_due(1)
    assert b'"type":"webhook.test"' in task.body


def test_a_disabled_endpoint_is_neither_tested_nor_resent_to() -> None:
    endpoint = create_endpoint(enabled=False)
    delivery = WebhookDeliveryFactory.create(endpoint=endpoint, failed=True)
    for call in (
        lambda: services.send_test(endpoint.pk),
        lambda: services.resend(delivery.pk),
        lambda: services.resend_failed(endpoint.pk),
    ):
        with pytest.raises(services.EndpointDisabled):
            call()


def test_all_that_failed_at_an_endpoint_can_be_resent_at_once(configure: Settings) -> None:
    endpoint, other = create_endpoint(), create_endpoint()
    WebhookDeliveryFactory.create_batch(5, endpoint=endpoint, failed=True)
    WebhookDeliveryFactory.create_batch(2, endpoint=endpoint, delivered=True)
    WebhookDeliveryFactory.create(endpoint=other, failed=True)
    configure(API_BULK_LIMIT=3)
    assert [services.resend_failed(endpoint.pk) for _ in range(3)] == [3, 2, 0]
    assert (
        sorted(delivery.status for delivery in list_deliveries(endpoint=endpoint))
        == ["DELIVERED"] * 2 + ["PENDING"] * 5
    )
    assert list_deliveries(endpoint=other)[0].status == "FAILED"


def test_resending_can_be_limited_to_deliveries_created_since_a_time() -> None:
    endpoint = create_endpoint()
    WebhookDeliveryFactory.create(endpoint=endpoint, failed=True)
    assert services.resend_failed(endpoint.pk, since=timezone.now() + timedelta(minutes=1)) == 0
    assert services.resend_failed(endpoint.pk, since=timezone.now() - timedelta(minutes=1)) == 1


def test_a_delivery_in_flight_is_not_sent_a_second_time_meanwhile() -> None:
    endpoint = create_endpoint()
    delivery = WebhookDeliveryFactory.create(endpoint=endpoint)
    (task,) = deliveries.claim_due(1)
    with pytest.raises(services.DeliveryInFlight):
        services.resend(delivery.pk)
    assert services.resend_many([delivery.pk]) == services.ResentDeliveries(0, in_flight=1)
    assert deliveries.claim_due(10) == []
    assert WebhookDelivery.objects.get().lease_token == task.token


def test_deleting_an_endpoint_deletes_its_deliveries_attempts_and_messages() -> None:
    endpoint, other = (
        create_endpoint("https://example.org/", "job.completed"),
        create_endpoint("https://example.org/", "job.completed"),
    )
    complete_job()
    fan_out_all()
    WebhookAttemptFactory.create(delivery=list_deliveries(endpoint=endpoint)[0])
    services.send_test(endpoint.pk)
    services.delete(endpoint.pk)
    assert [row.pk for row in WebhookEndpoint.objects.all()] == [other.pk]
    assert [delivery.endpoint_id for delivery in list_deliveries()] == [other.pk]
    assert (WebhookAttempt.objects.count(), WebhookMessage.objects.count()) == (0, 1)
    services.delete(other.pk)
    assert WebhookMessage.objects.count() == 0


def test_a_tenant_has_no_more_endpoints_than_a_message_can_reasonably_carry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "MAX_ENDPOINTS", 2)
    create_endpoint()
    create_endpoint()
    with pytest.raises(services.TooManyEndpoints):
        create_endpoint()
    create_endpoint(tenant="acme")
