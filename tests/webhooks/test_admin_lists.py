"""Webhooks in the console: success rates of endpoints, results of deliveries, and the request of an attempt."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.test import Client
from django.urls import reverse
from django.utils.html import strip_tags

from jobs import clock
from jobs.ids import min_id_at
from tests.factories import JobFactory, WebhookAttemptFactory, WebhookDeliveryFactory, WebhookEndpointFactory
from tests.support.admin_pages import count_queries, get_list_url, get_page_url
from tests.support.admin_users import create_reader, log_in
from webhooks import services
from webhooks.admin import endpoints
from webhooks.models import WebhookDelivery, WebhookEndpoint

pytestmark = pytest.mark.django_db


def test_a_list_of_endpoints_shows_their_recent_success_rates(boss: Client) -> None:
    good, silent = WebhookEndpointFactory.create(), WebhookEndpointFactory.create(enabled=False, disabled_reason="gone")
    WebhookDeliveryFactory.create_batch(3, endpoint=good, delivered=True)
    WebhookDeliveryFactory.create(endpoint=good, failed=True)
    WebhookDeliveryFactory.create(endpoint=good)
    assert endpoints.success_rates([good.pk, silent.pk]) == {good.pk: (3, 4)}
    page = boss.get(get_list_url(WebhookEndpoint)).content.decode()
    assert ("75 % of 4" in page, "gone" in page) == (True, True)


def test_the_overview_names_disabled_endpoints_with_their_reason_but_not_their_path(boss: Client) -> None:
    for number in range(4):
        fields = {"url": f"https://shop-{number}.example/secret", "disabled_reason": "it answered 410 Gone"}
        WebhookEndpointFactory.create(enabled=False, **fields)
    (alert,) = boss.get(reverse("admin:jobscheduler_jobs_overview")).context["alerts"]
    assert (alert.badge, alert.message) == ("Webhook", "4 webhook endpoints were disabled after failures.")
    assert "https://shop-3.example</bdi> “<bdi>it answered 410 Gone" in alert.detail
    assert ("1 more" in alert.detail, "secret" in alert.detail) == (True, False)


def test_a_rate_counts_the_last_hundred_within_a_day() -> None:
    endpoint = WebhookEndpointFactory.create()
    WebhookDeliveryFactory.create_batch(4, endpoint=endpoint, failed=True)
    WebhookDeliveryFactory.create_batch(4, endpoint=endpoint, delivered=True)
    assert endpoints.LIST_RATE_SAMPLE == 100
    assert endpoints.success_rates([endpoint.pk], 5) == {endpoint.pk: (4, 5)}
    WebhookDelivery.objects.all().delete()
    old = min_id_at(clock.now() - timedelta(days=2))
    WebhookDeliveryFactory.create(id=old, endpoint=endpoint, failed=True)
    assert endpoints.success_rates([endpoint.pk]) == endpoints.success_rates([]) == {}


def test_a_rate_says_where_it_is_only_of_the_latest_deliveries(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = WebhookEndpointFactory.create()
    WebhookDeliveryFactory.create_batch(4, endpoint=endpoint, failed=True)
    WebhookDeliveryFactory.create_batch(4, endpoint=endpoint, delivered=True)
    assert "50 % of 8" in boss.get(get_list_url(WebhookEndpoint)).content.decode()
    monkeypatch.setattr(endpoints, "LIST_RATE_SAMPLE", 5)
    assert "80 % of the latest 5" in boss.get(get_list_url(WebhookEndpoint)).content.decode()
    assert "50 % of 8" in boss.get(get_page_url(endpoint)).content.decode()


def test_resending_failed_deliveries_alone_raises_no_success_rate() -> None:
    endpoint = WebhookEndpointFactory.create()
    WebhookDeliveryFactory.create_batch(3, endpoint=endpoint, delivered=True)
    failed = WebhookDeliveryFactory.create_batch(2, endpoint=endpoint, failed=True)
    before = endpoints.success_rates([endpoint.pk])
    assert before == {endpoint.pk: (3, 5)}
    services.resend_many([delivery.pk for delivery in failed])
    assert endpoints.success_rates([endpoint.pk]) == before


def test_a_list_of_deliveries_shows_the_job_and_the_time(boss: Client) -> None:
    job = JobFactory.create(completed=True)
    WebhookDeliveryFactory.create(job_id=job.pk, delivered=True)
    page = boss.get(get_list_url(WebhookDelivery)).content.decode()
    assert f"{job.job_type} …{str(job.pk)[-12:]}" in strip_tags(page)
    assert re.search(r'class="field-created[^"]*"><time datetime=', page)


def test_a_delivery_shows_its_answer_its_time_and_its_request(boss: Client) -> None:
    delivery = WebhookDeliveryFactory.create(failed=True)
    WebhookAttemptFactory.create(delivery=delivery, took_ms=5)
    WebhookAttemptFactory.create(delivery=delivery, took_ms=42)
    page = boss.get(get_list_url(WebhookDelivery)).content.decode()
    assert ("42 ms" in page, "Failed 500" in page) == (True, True)
    page = boss.get(get_page_url(delivery)).content.decode()
    assert (f"webhook-id: {delivery.pk}" in page, f"POST {delivery.endpoint.url}" in page) == (True, True)
    assert "whsec_" not in page
    assert log_in(create_reader("looker")).get(get_page_url(delivery)).status_code == 200


def test_lists_take_as_many_statements_for_many_as_for_few(boss: Client) -> None:
    WebhookAttemptFactory.create()
    baseline = {model: count_queries(boss, get_list_url(model)) for model in (WebhookEndpoint, WebhookDelivery)}
    WebhookAttemptFactory.create_batch(20)
    assert {model: count_queries(boss, get_list_url(model)) for model in baseline} == baseline
    assert max(baseline.values()) <= 8


def test_an_empty_list_says_that_it_is_empty(boss: Client) -> None:
    assert "No endpoints yet." in boss.get(get_list_url(WebhookEndpoint)).content.decode()
    assert "No deliveries yet." in boss.get(get_list_url(WebhookDelivery)).content.decode()
