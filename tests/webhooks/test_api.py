"""Webhooks over HTTP: endpoints, their deliveries, tests, rotation and resending."""

from __future__ import annotations

from typing import Any

import pytest

from tests.factories import WebhookDeliveryFactory
from tests.support.admin_users import create_reader, log_in
from tests.support.api_client import ApiClient, read_error_locations
from tests.support.webhooks import complete_job, create_endpoint, list_deliveries, send_round
from tests.webhooks.conftest import Settings
from webhooks import services
from webhooks.models import WebhookEndpoint

pytestmark = pytest.mark.django_db
BODY = {"url": "https://example.org/hook", "events": ["job.completed", "job.failed"]}
ENDPOINT = {
    *("id", "tenant", "url", "events", "enabled", "disabled_reason"),
    *("failures", "open_until", "old_secret_until", "created_at"),
}
DELIVERY = {
    *("id", "endpoint_id", "event", "job_id", "group_id", "status", "attempts", "next_try_at", "response_status"),
    *("error", "created_at", "delivered_at"),
}


def test_a_life_of_an_endpoint() -> None:
    api = ApiClient()
    created = api.post("/webhooks", BODY)
    assert (created.status_code, set(created.json())) == (201, ENDPOINT | {"secret"})
    assert created.json()["secret"].startswith("whsec_")
    path = f"/webhooks/{created.json()['id']}"
    assert set(api.get(path).json()) == ENDPOINT
    assert api.get("/webhooks").json()["items"] == [api.get(path).json()]
    changed = api.patch(path, {"events": ["*"], "enabled": False})
    assert (changed.status_code, changed.json()["events"], changed.json()["enabled"]) == (200, ["*"], False)
    assert (api.delete(path).status_code, api.get(path).status_code) == (204, 404)


def test_a_secret_is_shown_when_it_is_created_and_replaced_and_never_else() -> None:
    api = ApiClient()
    created = api.post("/webhooks", BODY)
    endpoint = created.json()
    path = f"/webhooks/{endpoint['id']}"
    rotated = api.post(f"{path}/rotate-secret")
    assert created["Cache-Control"] == rotated["Cache-Control"] == "no-store"
    assert (rotated.status_code, rotated.json()["secret"] == endpoint["secret"]) == (200, False)
    assert rotated.json()["old_secret_until"] is not None
    for response in (api.get(path), api.get("/webhooks"), api.patch(path, {"enabled": True})):
        assert (b"whsec_" in response.content, b'"secret"' in response.content) == (False, False)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({**BODY, "url": "http://169.254.169.254/"}, ["body", "url"]),
        ({**BODY, "url": "http://2130706433/"}, ["body", "url"]),
        ({**BODY, "url": 7}, ["body", "url"]),
        ({**BODY, "url": "x" * 3000}, ["body", "url"]),
        ({**BODY, "events": []}, ["body", "events"]),
        ({**BODY, "events": ["job.done"]}, ["body", "events", 0]),
        ({**BODY, "enabled": 1}, ["body", "enabled"]),
        ({**BODY, "secret": "mine"}, ["body", "secret"]),
        ({"url": "https://example.org/"}, ["body", "events"]),
        ({"events": ["*"]}, ["body", "url"]),
        ({**BODY, "tenant": "a b"}, ["body", "tenant"]),
    ],
)
def test_a_bad_endpoint_is_refused_by_its_field(body: Any, field: list[Any]) -> None:
    assert read_error_locations(ApiClient(tenant=None).post("/webhooks", body)) == [field]
    assert not WebhookEndpoint.objects.exists()


def test_a_test_delivery_can_be_followed_to_its_end(receive: Any) -> None:
    api, receiver = ApiClient(), receive()
    endpoint = api.post("/webhooks", {**BODY, "url": receiver.url}).json()
    sent = api.post(f"/webhooks/{endpoint['id']}/test")
    assert (sent.status_code, set(sent.json()), sent.json()["status"]) == (201, DELIVERY, "PENDING")
    send_round()
    delivery = api.get(f"/webhook-deliveries/{sent.json()['id']}").json()
    assert (delivery["status"], delivery["response_status"], delivery["attempts"]) == ("DELIVERED", 200, 1)
    assert receiver.seen[0].verify(endpoint["secret"])["type"] == "webhook.test"


def test_deliveries_are_listed_by_endpoint_newest_first_and_by_status(receive: Any) -> None:
    api, receiver = ApiClient(), receive()
    endpoint = create_endpoint(receiver.url, "job.completed")
    jobs = [complete_job() for _ in range(5)]
    WebhookDeliveryFactory.create()  # belongs to another endpoint
    send_round()
    WebhookDeliveryFactory.create(endpoint=endpoint, failed=True)
    deliveries = api.list_all(f"/webhooks/{endpoint.pk}/deliveries", 2)
    assert len(deliveries) == 6
    assert [delivery["id"] for delivery in deliveries] == sorted(
        (delivery["id"] for delivery in deliveries), reverse=True
    )
    assert {delivery["job_id"] for delivery in deliveries[1:]} == {str(job.pk) for job in jobs}
    failed = api.get(f"/webhooks/{endpoint.pk}/deliveries?status=FAILED").json()["items"]
    assert [delivery["id"] for delivery in failed] == [deliveries[0]["id"]]
    assert api.get(f"/webhooks/{endpoint.pk}/deliveries?status=LOST").status_code == 422


def test_failed_deliveries_are_resent_one_by_one_or_all_at_once() -> None:
    api = ApiClient("operate")
    endpoint = create_endpoint()
    WebhookDeliveryFactory.create_batch(3, endpoint=endpoint, failed=True)
    first = list_deliveries()[0]
    response = api.post(f"/webhook-deliveries/{first.pk}/resend")
    assert (response.status_code, response.json()["status"]) == (200, "PENDING")
    assert api.post(f"/webhooks/{endpoint.pk}/resend-failed", {"since": "2030-01-01T00:00:00Z"}).json() == {"count": 0}
    assert api.post(f"/webhooks/{endpoint.pk}/resend-failed").json() == {"count": 2}
    assert api.post(f"/webhooks/{endpoint.pk}/resend-failed", {"since": "yesterday"}).status_code == 422


def test_a_disabled_endpoint_answers_409_to_tests_and_resends() -> None:
    api = ApiClient()
    endpoint = create_endpoint(enabled=False)
    delivery = WebhookDeliveryFactory.create(endpoint=endpoint, failed=True)
    for path in (
        f"/webhooks/{endpoint.pk}/test",
        f"/webhooks/{endpoint.pk}/resend-failed",
        f"/webhook-deliveries/{delivery.pk}/resend",
    ):
        response = api.post(path)
        assert (response.status_code, response.json()["code"]) == (409, "endpoint_disabled")


def test_objects_of_another_tenant_are_404_and_another_tenant_in_the_body_403() -> None:
    theirs = create_endpoint(tenant="acme")
    delivery = WebhookDeliveryFactory.create(endpoint=theirs)
    api = ApiClient()
    for method, path in (
        ("get", f"/webhooks/{theirs.pk}"),
        ("patch", f"/webhooks/{theirs.pk}"),
        ("delete", f"/webhooks/{theirs.pk}"),
        ("get", f"/webhooks/{theirs.pk}/deliveries"),
        ("post", f"/webhooks/{theirs.pk}/test"),
        ("post", f"/webhooks/{theirs.pk}/rotate-secret"),
        ("post", f"/webhooks/{theirs.pk}/resend-failed"),
        ("get", f"/webhook-deliveries/{delivery.pk}"),
        ("post", f"/webhook-deliveries/{delivery.pk}/resend"),
    ):
        response = api.send(method, path, {"enabled": False} if method == "patch" else None)
        assert response.status_code == 404, path
    assert api.get("/webhooks").json()["items"] == []
    assert api.post("/webhooks", {**BODY, "tenant": "acme"}).status_code == 403
    assert ApiClient(tenant="acme").get(f"/webhooks/{theirs.pk}").status_code == 200


@pytest.mark.parametrize(
    ("scope", "allowed"),
    [("read", {"list", "get"}), ("operate", {"resend"}), ("submit", set()), ("work", set()), ("admin", {"all"})],
)
def test_scopes(scope: str, allowed: set[str]) -> None:
    endpoint = create_endpoint()
    delivery = WebhookDeliveryFactory.create(endpoint=endpoint, failed=True)
    api = ApiClient(scope)
    codes = {
        "list": api.get("/webhooks").status_code,
        "get": api.get(f"/webhooks/{endpoint.pk}").status_code,
        "resend": api.post(f"/webhook-deliveries/{delivery.pk}/resend").status_code,
        "test": api.post(f"/webhooks/{endpoint.pk}/test").status_code,
        "rotate": api.post(f"/webhooks/{endpoint.pk}/rotate-secret").status_code,
        "create": api.post("/webhooks", BODY).status_code,
        "update": api.patch(f"/webhooks/{endpoint.pk}", {}).status_code,
        "delete": api.delete(f"/webhooks/{endpoint.pk}").status_code,
    }
    assert {name for name, code in codes.items() if code < 300} == (set(codes) if "all" in allowed else allowed)
    assert {code for code in codes.values() if code >= 300} <= {403}


def test_a_jobs_list_takes_three_statements_for_all_deliveries(
    django_assert_num_queries: Any, configure: Settings
) -> None:
    create_endpoint("https://example.org/", "*")
    ids = [complete_job().pk for _ in range(4)]
    with django_assert_num_queries(3):
        assert {counts["pending"] for counts in services.count_deliveries(ids).values()} == {3}
    assert services.of(None).count() == 1


def test_the_path_of_a_url_is_for_those_who_may_see_payloads() -> None:
    endpoint = create_endpoint("https://hooks.example.org:443/services/T0/SECRET?key=SECRET", "job.completed")
    user = create_reader("reader")
    paths = ("/api/webhooks", f"/api/webhooks/{endpoint.pk}")
    for path in paths:
        text = log_in(user).get(path).content.decode()
        assert ("SECRET" in text, "https://hooks.example.org:443" in text) == (False, True)
    for path in paths:
        assert "SECRET" in log_in(create_reader(f"reader of {path}", "view_payload")).get(path).content.decode()
    assert ApiClient("read").get(f"/webhooks/{endpoint.pk}").json()["url"] == endpoint.url
