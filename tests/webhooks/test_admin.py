"""Webhooks in the console: same validation as the API, secrets shown once, deliveries listed and resent."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from jobs.models import Job
from tests.factories import JobFactory, WebhookAttemptFactory, WebhookDeliveryFactory
from tests.support.admin_pages import get_list_url, get_page_url
from tests.support.admin_users import create_reader, log_in
from tests.support.snapshots import dump_tables
from tests.support.webhooks import ANYWHERE, complete_job, create_endpoint, fan_out_all, list_deliveries, send_round
from webhooks import services
from webhooks.models import WebhookDelivery, WebhookEndpoint, WebhookSubscription

pytestmark = pytest.mark.django_db
FORM = {"tenant": "default", "url": ANYWHERE, "events": ["job.completed", "job.failed"], "enabled": "on"}


def get_action_url(row: Any, verb: str) -> str:
    return get_page_url(row).replace("/change/", f"/verb/{verb}/")


def find_secret(page: str) -> str:
    match = re.search(r'id="secret">(whsec_[^<]+)<', page)
    assert match, page
    return match.group(1)


def test_an_endpoint_is_created_and_its_secret_shown_in_the_response_and_nowhere_else(boss: Client) -> None:
    response = boss.post(f"{get_list_url(WebhookEndpoint)}add/", FORM)
    secret = find_secret(response.content.decode())
    assert (response.status_code, "no-store" in response["Cache-Control"]) == (200, True)
    endpoint = WebhookEndpoint.objects.get()
    assert (endpoint.url, endpoint.events, endpoint.enabled) == (ANYWHERE, ["job.completed", "job.failed"], True)
    for url in (
        get_page_url(endpoint),
        get_list_url(WebhookEndpoint),
        get_page_url(endpoint).replace("/change/", "/history/"),
        "/admin/",
    ):
        assert secret not in boss.get(url).content.decode()
    assert secret not in str(list(LogEntry.objects.values()))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("url", "http://127.0.0.1/"),
        ("url", "http://0x7f000001/"),
        ("url", " https://example.org/"),
        ("url", ""),
        ("url", "x" * 3000),
        ("events", []),
        ("events", ["job.done"]),
        ("tenant", "a b"),
    ],
)
def test_the_form_refuses_the_same_input_as_the_api(field: str, value: Any, boss: Client) -> None:
    response = boss.post(f"{get_list_url(WebhookEndpoint)}add/", {**FORM, field: value})
    assert (response.status_code, WebhookEndpoint.objects.count()) == (200, 0)
    assert field in response.context["adminform"].form.errors


def test_an_endpoint_is_changed_through_the_services(boss: Client) -> None:
    endpoint = create_endpoint(failures=7)
    WebhookDeliveryFactory.create(endpoint=endpoint)
    response = boss.post(get_page_url(endpoint), {"url": "https://example.org/new", "events": ["*"]})
    assert response.status_code == 302
    endpoint.refresh_from_db()
    assert (endpoint.url, endpoint.events, endpoint.enabled, endpoint.tenant) == (
        "https://example.org/new",
        ["*"],
        False,
        "default",
    )
    assert list_deliveries()[0].status == "FAILED"  # disabling ends the pending deliveries


def test_an_endpoint_is_deleted_with_its_deliveries(boss: Client) -> None:
    endpoint = create_endpoint()
    WebhookDeliveryFactory.create_batch(3, endpoint=endpoint)
    boss.post(get_page_url(endpoint).replace("/change/", "/delete/"), {"post": "yes"})
    assert not WebhookEndpoint.objects.exists()
    assert not WebhookDelivery.objects.exists()


def test_a_test_is_sent_from_the_page(boss: Client, receive: Any) -> None:
    receiver = receive()
    endpoint = create_endpoint(receiver.url, "job.failed")
    assert "Send test" in boss.get(get_page_url(endpoint)).content.decode()
    assert boss.post(get_action_url(endpoint, "test")).status_code == 302
    send_round()
    assert [request.type for request in receiver.seen] == ["webhook.test"]


def test_a_secret_is_replaced_and_shown_in_the_response(boss: Client, receive: Any) -> None:
    receiver = receive()
    endpoint, first = services.create(receiver.url, ["job.completed"])
    second = find_secret(boss.post(get_action_url(endpoint, "rotate")).content.decode())
    complete_job()
    send_round()
    receiver.seen[0].verify(first)
    receiver.seen[0].verify(second)


def test_deliveries_are_resent_one_by_one_in_a_selection_and_all_that_failed(boss: Client) -> None:
    endpoint = create_endpoint()
    rows = WebhookDeliveryFactory.create_batch(6, endpoint=endpoint, failed=True)
    boss.post(get_action_url(rows[0], "resend"))
    form_data = {"action": "resend", "_selected_action": [str(row.pk) for row in rows[1:3]]}
    assert (
        "2 deliveries queued for resending."
        in boss.post(get_list_url(WebhookDelivery), form_data, follow=True).content.decode()
    )
    assert sorted(delivery.status for delivery in list_deliveries()) == ["FAILED"] * 3 + ["PENDING"] * 3
    boss.post(get_action_url(endpoint, "resend"))
    assert {delivery.status for delivery in list_deliveries()} == {"PENDING"}
    assert {delivery.pk for delivery in list_deliveries()} == {row.pk for row in rows}


def test_nothing_is_resent_to_a_disabled_endpoint_and_it_says_so(boss: Client) -> None:
    delivery = WebhookDeliveryFactory.create(endpoint=create_endpoint(enabled=False), failed=True)
    page = boss.post(get_action_url(delivery, "resend"), follow=True).content.decode()
    assert "This endpoint is disabled" in page
    assert list_deliveries()[0].status == "FAILED"


def test_a_bulk_resend_says_how_many_were_skipped_and_why_and_how_many_wait(boss: Client) -> None:
    suspended = create_endpoint(failures=9, open_until=timezone.now() + timedelta(hours=1))
    rows = WebhookDeliveryFactory.create_batch(3, endpoint=suspended, failed=True)
    rows += WebhookDeliveryFactory.create_batch(2, endpoint=create_endpoint(enabled=False), failed=True)
    leased = {"lease_token": uuid4(), "lease_expires_at": timezone.now() + timedelta(minutes=1)}
    rows.append(WebhookDeliveryFactory.create(endpoint=suspended, **leased))
    form_data = {"action": "resend", "_selected_action": [str(row.pk) for row in rows]}
    page = boss.post(get_list_url(WebhookDelivery), form_data, follow=True).content.decode()
    for sentence in (
        "3 deliveries queued for resending.",
        "2 skipped: endpoint disabled.",
        "1 skipped: being sent at this moment.",
        "The endpoint is suspended: 2 wait until the first one is delivered.",
    ):
        assert sentence in page


def test_a_delivery_that_waits_says_for_what(boss: Client) -> None:
    suspended = create_endpoint(failures=9, open_until=timezone.now() + timedelta(hours=1))
    waiting = WebhookDeliveryFactory.create(endpoint=suspended)
    page = boss.get(get_page_url(waiting)).content.decode()
    assert ("(endpoint suspended)" in page, "Not sent yet." in page) == (True, True)
    services.resend(waiting.pk)
    WebhookDelivery.objects.update(next_try_at=timezone.now() - timedelta(minutes=1))
    page = boss.get(get_page_url(waiting)).content.decode()
    assert ("(endpoint suspended)" in page, "1 min ago" in page, "60 s ago" in page) == (False, False, False)
    assert re.search(r'field-next_attempt.*?class="readonly">now<', page, re.DOTALL)


@pytest.mark.parametrize("reason", ["\x00", "x" * 2001])
def test_a_reason_that_cannot_be_stored_is_refused_before_anything_is_done(boss: Client, reason: str) -> None:
    endpoint = create_endpoint()
    before = dump_tables()
    response = boss.post(get_action_url(endpoint, "rotate"), {"reason": reason}, follow=True)
    assert (response.status_code, dump_tables()) == (200, before)


@pytest.mark.parametrize("verb", ["test", "rotate", "resend"])
def test_a_reader_sees_every_page_and_can_press_nothing(verb: str, looker: Client) -> None:
    endpoint = create_endpoint()
    delivery = WebhookDeliveryFactory.create(endpoint=endpoint, failed=True)
    before = WebhookEndpoint.objects.values().get()
    assert looker.get(get_page_url(endpoint)).status_code == looker.get(get_page_url(delivery)).status_code == 200
    assert looker.post(get_action_url(endpoint, verb)).status_code == 403
    assert looker.post(get_action_url(delivery, "resend")).status_code == 403
    assert looker.get(f"{get_list_url(WebhookEndpoint)}add/").status_code == 403
    assert looker.post(get_page_url(endpoint), {**FORM, "url": "https://example.org/evil"}).status_code == 403
    assert WebhookEndpoint.objects.values().get() == before
    assert list_deliveries()[0].status == "FAILED"


@pytest.mark.parametrize(("verb", "codename"), [("test", "test_webhookendpoint"), ("rotate", "rotate_webhookendpoint")])
def test_each_button_takes_its_own_permission(verb: str, codename: str) -> None:
    endpoint = create_endpoint()
    client = log_in(create_reader("operator", codename))
    assert client.post(get_action_url(endpoint, verb)).status_code in (200, 302)
    for other in {"test", "rotate", "resend"} - {verb}:
        assert client.post(get_action_url(endpoint, other)).status_code == 403


def test_an_action_requires_post_a_known_name_and_an_existing_row(boss: Client) -> None:
    endpoint = create_endpoint()
    assert boss.get(get_action_url(endpoint, "test")).status_code == 405
    assert boss.post(get_action_url(endpoint, "explode")).status_code == 404
    assert (
        boss.post(
            get_action_url(JobFactory.build(), "test").replace("jobs/job", "webhooks/webhookendpoint")
        ).status_code
        == 302  # to the list, with a message
    )


def test_a_delivery_page_shows_attempts_and_their_responses_to_users_who_may_see_payload(
    boss: Client, looker: Client
) -> None:
    attempt = WebhookAttemptFactory.create(response_body="a very private answer", error="answered 500")
    for client, can_view in ((boss, True), (looker, False)):
        page = client.get(get_page_url(attempt.delivery)).content.decode()
        assert "answered 500" in page
        assert ("a very private answer" in page, "HTTP/1.1 500" in page) == (can_view, can_view)


def test_a_job_page_shows_its_deliveries_and_counts_those_to_come(boss: Client) -> None:
    endpoint = create_endpoint("https://example.org/", "job.completed")
    job = complete_job()
    assert "1 more will be created." in boss.get(get_page_url(job)).content.decode()
    fan_out_all()
    page = boss.get(get_page_url(job)).content.decode()
    assert str(list_deliveries()[0].pk) in page
    assert endpoint.origin in page
    other = JobFactory.create()
    assert "job-webhooks" not in boss.get(get_page_url(other)).content.decode()


def test_a_user_who_may_not_see_deliveries_sees_none_on_the_job_page() -> None:
    create_endpoint("https://example.org/", "job.completed")
    job = complete_job()
    fan_out_all()
    client = log_in(User.objects.create_user("narrow", is_staff=True))
    from django.contrib.auth.models import Permission

    User.objects.get(username="narrow").user_permissions.set(Permission.objects.filter(codename="view_job"))
    page = client.get(get_page_url(job))
    assert (page.status_code, "job-webhooks" in page.content.decode()) == (200, False)


def test_the_success_of_the_last_day_is_shown(boss: Client) -> None:
    endpoint = create_endpoint()
    WebhookDeliveryFactory.create_batch(3, endpoint=endpoint, delivered=True)
    WebhookDeliveryFactory.create(endpoint=endpoint, failed=True)
    WebhookDeliveryFactory.create(endpoint=endpoint)
    assert "75 % of 4" in boss.get(get_page_url(endpoint)).content.decode()


SECRET_URL = "https://hooks.example.org/services/T0/SECRET"


def list_pages_with_urls(endpoint: WebhookEndpoint, delivery: WebhookDelivery, job: Job) -> list[str]:
    page = get_page_url(endpoint)
    other_pages = [page.replace("/change/", "/history/"), page.replace("/change/", "/delete/")]
    lists = [get_list_url(model) for model in (WebhookEndpoint, WebhookDelivery, WebhookSubscription)]
    return [page, *other_pages, *lists, get_page_url(delivery), get_page_url(job)]


def test_the_path_of_a_url_is_on_no_page_of_a_user_who_may_not_see_payloads() -> None:
    endpoint = create_endpoint(SECRET_URL, "job.completed")
    job = JobFactory.create(completed=True)
    delivery = WebhookDeliveryFactory.create(endpoint=endpoint, job_id=job.pk)
    write = ("change_webhookendpoint", "delete_webhookendpoint", "test_webhookendpoint")
    for number, also in enumerate(((), write)):
        client = log_in(create_reader(f"reader {number}", *also))
        pages = [client.get(url) for url in list_pages_with_urls(endpoint, delivery, job)]
        assert not any("SECRET" in page.content.decode() for page in pages)
        assert pages[0].status_code == 200
        assert "https://hooks.example.org" in pages[0].content.decode()
    seeing = log_in(create_reader("seeing", "view_payload"))
    pages = [seeing.get(url).content.decode() for url in (get_page_url(endpoint), get_list_url(WebhookEndpoint))]
    assert all("SECRET" in page for page in pages)


def test_a_url_is_not_guessed_by_searching_its_beginning() -> None:
    endpoint = create_endpoint(SECRET_URL, "job.completed")
    for name, also, found in (("blind", (), False), ("seeing", ("view_payload",), True)):
        client = log_in(create_reader(name, *also))
        page = client.get(get_list_url(WebhookEndpoint), {"q": SECRET_URL[:-3]}).content.decode()
        assert (str(endpoint.pk) in page) == found
        assert str(endpoint.pk) in client.get(get_list_url(WebhookEndpoint), {"q": endpoint.pk}).content.decode()


def test_a_url_that_is_not_shown_is_not_changed() -> None:
    endpoint = create_endpoint(SECRET_URL, "job.completed")
    client = log_in(create_reader("writer", "change_webhookendpoint"))
    assert client.post(get_page_url(endpoint), {**FORM, "events": ["job.failed"]}).status_code == 302
    endpoint.refresh_from_db()
    assert (endpoint.url, endpoint.events) == (SECRET_URL, ["job.failed"])
