"""Any number of senders: a delivery is leased to one sender at a time, and only the lease holder records a result."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from jobs import clock
from jobs.ids import min_id_at
from tests.factories import WebhookDeliveryFactory
from tests.support.locks import is_lock_awaited
from tests.support.webhook_receiver import Receiver
from tests.support.webhooks import (
    complete_job,
    create_endpoint,
    enqueue_job,
    fan_out_all,
    list_deliveries,
    list_messages,
    send_round,
)
from tests.support.worker_processes import wait_until
from tests.webhooks.conftest import Settings
from webhooks import circuit_breaker, deliveries, fanout, services
from webhooks.deliveries import AttemptResult
from webhooks.models import WebhookAttempt, WebhookDelivery, WebhookEndpoint
from webhooks.sender import Sender

pytestmark = pytest.mark.django_db
Receive = Callable[..., Receiver]


def create_due(count: int = 1, **fields: Any) -> WebhookEndpoint:
    endpoint = create_endpoint("https://example.org/", "job.completed", **fields)
    WebhookDeliveryFactory.create_batch(count, endpoint=endpoint)
    return endpoint


def build_result(task: deliveries.ClaimedDelivery, status: int | None = 200, **extra: Any) -> AttemptResult:
    failure = {} if status == 200 else {"error": f"answered {status}"}
    return AttemptResult(task, 5, status=status, **{**failure, **extra})


def test_a_delivery_claimed_by_one_sender_is_not_given_to_another() -> None:
    create_due(3)
    assert len(deliveries.claim_due(10)) == 3
    assert deliveries.claim_due(10) == []


def test_no_more_than_four_an_endpoint_are_out_at_once_over_all_senders() -> None:
    create_due(10)
    create_due(10)
    claims = deliveries.claim_due(100)
    assert sorted(
        sum(claim.endpoint_id == pk for claim in claims) for pk in {claim.endpoint_id for claim in claims}
    ) == [
        4,
        4,
    ]
    deliveries.record_results([build_result(claims[0])])
    (next_claim,) = deliveries.claim_due(100)
    assert next_claim.endpoint_id == claims[0].endpoint_id


def test_an_expired_lease_can_be_claimed_by_any_sender() -> None:
    create_due()
    (expired,) = deliveries.claim_due(1)
    WebhookDelivery.objects.update(lease_expires_at=timezone.now() - timedelta(seconds=1))
    (claim,) = deliveries.claim_due(1)
    assert claim.id == expired.id
    assert claim.token != expired.token


def test_a_sender_that_lost_the_lease_records_nothing() -> None:
    create_due()
    (expired,) = deliveries.claim_due(1)
    WebhookDelivery.objects.update(lease_expires_at=timezone.now() - timedelta(seconds=1))
    (current,) = deliveries.claim_due(1)
    deliveries.record_results([build_result(expired)])
    assert (list_deliveries()[0].status, list_deliveries()[0].attempts) == ("PENDING", 0)
    assert not WebhookAttempt.objects.exists()
    deliveries.record_results([build_result(current)])
    assert (list_deliveries()[0].status, list_deliveries()[0].attempts) == ("DELIVERED", 1)


def test_a_result_that_is_recorded_twice_counts_once() -> None:
    create_due()
    (task,) = deliveries.claim_due(1)
    deliveries.record_results([build_result(task, 500)])
    deliveries.record_results([build_result(task, 500)])
    assert (list_deliveries()[0].attempts, WebhookAttempt.objects.count()) == (1, 1)


def test_a_sender_that_was_killed_has_used_up_no_attempt() -> None:
    """Its deliveries are tried again when their leases expire, however often that happens."""
    create_due()
    for _ in range(20):
        assert len(deliveries.claim_due(1)) == 1
        WebhookDelivery.objects.update(lease_expires_at=timezone.now() - timedelta(seconds=1))
    assert list_deliveries()[0].attempts == 0


def test_not_before_its_time_and_not_while_the_circuit_is_open_or_the_endpoint_disabled() -> None:
    later = timezone.now() + timedelta(hours=1)
    create_due(enabled=False)
    create_due(open_until=later)
    waiting = create_due()
    WebhookDelivery.objects.filter(endpoint=waiting).update(next_try_at=later)
    assert deliveries.claim_due(10) == []


def test_dec_009_unit_retries_come_after_10_20_and_40_seconds_then_it_has_failed() -> None:
    create_due()
    delays = []
    for _ in range(4):
        WebhookDelivery.objects.filter(status="PENDING").update(next_try_at=timezone.now())
        (task,) = deliveries.claim_due(1)
        deliveries.record_results([build_result(task, 500)])
        (delivery,) = list_deliveries()
        if delivery.next_try_at is not None:
            delays.append(round((delivery.next_try_at - timezone.now()).total_seconds()))
    assert delays == [10, 20, 40]
    assert (delivery.status, delivery.attempts) == ("FAILED", 4)


# ---------------------------------------------------------------------- circuits


def test_five_failures_in_a_row_open_the_circuit_and_one_success_closes_it() -> None:
    endpoint = create_due(10)
    for failed in range(1, 7):
        WebhookEndpoint.objects.update(open_until=None)
        (task, *_) = deliveries.claim_due(1)
        deliveries.record_results([build_result(task, 500)])
        endpoint.refresh_from_db()
        assert (endpoint.failures, endpoint.open_until is not None) == (
            failed,
            failed >= circuit_breaker.FAILURE_THRESHOLD,
        )
    WebhookEndpoint.objects.update(open_until=timezone.now())
    (task,) = deliveries.claim_due(100)
    deliveries.record_results([build_result(task)])
    endpoint.refresh_from_db()
    assert (endpoint.failures, endpoint.open_until) == (0, None)


def test_the_pause_grows_with_the_failures_and_has_an_end() -> None:
    assert [circuit_breaker.pause_sec(failures) for failures in (5, 6, 7, 8, 9, 10, 1000)] == [
        10,
        20,
        40,
        80,
        160,
        300,
        300,
    ]


def test_a_broken_endpoint_is_probed_by_one_delivery_the_one_that_has_waited_least() -> None:
    endpoint = create_due(5, failures=5)
    newest = list_deliveries()[-1]
    WebhookDelivery.objects.exclude(pk=newest.pk).update(next_try_at=timezone.now() - timedelta(hours=1))
    (probe,) = deliveries.claim_due(100)
    assert probe.id == newest.pk
    assert deliveries.claim_due(100) == []
    deliveries.record_results([build_result(probe)])
    assert len(deliveries.claim_due(100)) == 4
    assert endpoint


def test_while_a_circuit_is_open_deliveries_wait_and_no_attempt_is_counted() -> None:
    create_due(50, failures=5)
    for _ in range(3):
        WebhookEndpoint.objects.update(open_until=None)
        (probe,) = deliveries.claim_due(100)
        deliveries.record_results([build_result(probe, None, error="refused the connection")])
        assert deliveries.claim_due(100) == []  # until the pause ends
    assert sorted(delivery.attempts for delivery in list_deliveries()) == [0] * 47 + [1] * 3
    assert {delivery.status for delivery in list_deliveries()} == {"PENDING"}
    assert WebhookAttempt.objects.count() == 3


def test_a_resend_is_tried_at_once_even_if_the_circuit_is_open() -> None:
    endpoint = create_due(5, failures=9, open_until=timezone.now() + timedelta(hours=1))
    third = list_deliveries()[2]
    assert deliveries.claim_due(100) == []
    services.resend(third.pk)
    (probe,) = deliveries.claim_due(100)
    assert probe.id == third.pk
    deliveries.record_results([build_result(probe)])
    endpoint.refresh_from_db()
    assert (endpoint.failures, endpoint.open_until) == (0, None)
    assert len(deliveries.claim_due(100)) == 4


def test_a_resend_that_fails_waits_again_like_the_others() -> None:
    endpoint = create_due(2, failures=9, open_until=timezone.now() + timedelta(hours=1))
    services.resend(list_deliveries()[0].pk)
    (probe,) = deliveries.claim_due(100)
    deliveries.record_results([build_result(probe, 500)])
    WebhookDelivery.objects.update(next_try_at=timezone.now())
    assert deliveries.claim_due(100) == []
    endpoint.refresh_from_db()
    assert endpoint.failures == 10


def test_a_resend_does_not_wait_for_a_probe_that_is_under_way() -> None:
    create_due(3, failures=9)
    (first,) = deliveries.claim_due(100)
    other = next(delivery for delivery in list_deliveries() if delivery.pk != first.id)
    services.resend(other.pk)
    assert [claim.id for claim in deliveries.claim_due(100)] == [other.pk]


@pytest.mark.parametrize("selection", ["by endpoint", "by id"])
def test_of_a_bulk_resend_one_is_the_probe_and_the_rest_wait_for_it(selection: str) -> None:
    endpoint = create_due(failures=9, open_until=timezone.now() + timedelta(hours=1))
    WebhookDelivery.objects.all().delete()
    WebhookDeliveryFactory.create_batch(6, endpoint=endpoint, failed=True)
    ids = [delivery.pk for delivery in list_deliveries()]
    resent = services.resend_failed(endpoint.pk) if selection == "by endpoint" else services.resend_many(ids).resent
    assert resent == 6
    (probe,) = deliveries.claim_due(100)
    assert probe.id == ids[0]
    assert deliveries.claim_due(100) == []
    deliveries.record_results([build_result(probe)])
    assert len(deliveries.claim_due(100)) == deliveries.MAX_CONCURRENT


def test_a_test_is_tried_at_once_too() -> None:
    endpoint = create_due(3, failures=9, open_until=timezone.now() + timedelta(hours=1))
    sent = services.send_test(endpoint.pk)
    assert [claim.id for claim in deliveries.claim_due(100)] == [sent.pk]


# ---------------------------------------------------------------------- giving up


def fail_once(endpoint: WebhookEndpoint) -> None:
    WebhookEndpoint.objects.filter(pk=endpoint.pk).update(open_until=None)
    WebhookDelivery.objects.filter(status="PENDING").update(next_try_at=timezone.now())
    (task, *_) = deliveries.claim_due(1)
    deliveries.record_results([build_result(task, 500)])
    endpoint.refresh_from_db()


def test_after_three_days_of_nothing_but_failures_the_endpoint_is_disabled() -> None:
    endpoint = create_due(20)
    for _ in range(8):
        fail_once(endpoint)
    assert endpoint.failing_since is not None
    limit = timezone.now() - timedelta(days=3)
    WebhookEndpoint.objects.update(failing_since=limit + timedelta(minutes=5))
    fail_once(endpoint)
    assert endpoint.enabled
    WebhookEndpoint.objects.update(failing_since=limit)
    fail_once(endpoint)
    assert (endpoint.enabled, endpoint.disabled_reason) == (
        False,
        f"Nothing but failures since {limit:%Y-%m-%d %H:%M} UTC.",
    )
    assert {delivery.status for delivery in list_deliveries()} == {"FAILED"}
    assert {delivery.error for delivery in list_deliveries() if delivery.attempts == 0} == {"endpoint disabled"}
    assert not endpoint.subscriptions.filter(until__isnull=True).exists()


def test_one_success_begins_the_three_days_anew() -> None:
    endpoint = create_due(10)
    for _ in range(5):
        fail_once(endpoint)
    WebhookEndpoint.objects.update(failing_since=timezone.now() - timedelta(days=4), open_until=None)
    (task,) = deliveries.claim_due(1)
    deliveries.record_results([build_result(task)])
    endpoint.refresh_from_db()
    assert endpoint.failing_since is None
    fail_once(endpoint)
    assert (endpoint.enabled, endpoint.failures) == (True, 1)
    assert timezone.now() - endpoint.failing_since < timedelta(minutes=1)


def test_how_long_it_takes_to_give_up_can_be_set(configure: Settings) -> None:
    configure(WEBHOOK_GIVE_UP_SEC=60, WEBHOOK_MAX_RETRIES=100)
    endpoint = create_due(failures=5, failing_since=timezone.now() - timedelta(seconds=61))
    fail_once(endpoint)
    assert not endpoint.enabled


def test_enabling_gives_a_fresh_start_before_it_is_given_up_again() -> None:
    endpoint = create_due(failures=9, failing_since=timezone.now() - timedelta(days=4), enabled=False)
    enabled = services.update(endpoint.pk, {"enabled": True})
    assert (enabled.failing_since, enabled.failures) == (None, 0)


# ---------------------------------------------------------------------- fan-out


def test_a_message_goes_to_the_endpoints_subscribed_at_the_time_of_the_event() -> None:
    before = create_endpoint("https://example.org/", "job.completed")
    complete_job()
    create_endpoint("https://example.org/", "job.completed")
    fan_out_all()
    assert [delivery.endpoint_id for delivery in list_deliveries()] == [before.pk]


def test_an_endpoint_that_has_unsubscribed_gets_nothing_and_the_message_is_deleted() -> None:
    changed = create_endpoint("https://example.org/", "job.completed")
    complete_job()
    services.update(changed.pk, {"events": ["job.failed"]})
    fan_out_all()
    assert (list_deliveries(), list_messages()) == ([], [])


def test_an_event_that_stays_subscribed_while_others_change_is_not_lost() -> None:
    changed = create_endpoint("https://example.org/", "job.completed")
    complete_job()
    services.update(changed.pk, {"events": ["job.*"], "url": "https://example.org/other"})
    fan_out_all()
    assert [delivery.event for delivery in list_deliveries()] == ["job.completed"]


def test_no_more_than_so_many_wait_at_an_endpoint_and_the_rest_can_be_resent(configure: Settings) -> None:
    configure(WEBHOOK_MAX_PENDING=3)
    full, other = (
        create_endpoint("https://example.org/", "job.queued"),
        create_endpoint("https://example.org/", "job.queued"),
    )
    WebhookDeliveryFactory.create_batch(2, endpoint=full)
    for _ in range(3):
        enqueue_job()
    fan_out_all()
    results = [(delivery.status, delivery.error) for delivery in list_deliveries(endpoint=full)]
    assert results == [("PENDING", "")] * 3 + [("FAILED", "backlog full")] * 2
    assert {delivery.status for delivery in list_deliveries(endpoint=other)} == {"PENDING"}
    rejected = list_deliveries(endpoint=full)[-1]
    assert rejected.message.body
    assert services.resend(rejected.pk).status == "PENDING"


def test_a_batch_is_bounded_in_rows() -> None:
    create_endpoint("https://example.org/", "job.queued")
    for _ in range(7):
        enqueue_job()
    assert [fanout.fan_out(5), fanout.fan_out(5), fanout.fan_out(5)] == [5, 2, 0]
    assert len({delivery.job_id for delivery in list_deliveries()}) == 7


def test_a_batch_is_bounded_in_deliveries(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first message is an exception: with too many recipients it would never be fanned out."""
    for number in range(3):
        create_endpoint(f"https://example.org/{number}", "job.queued")
    for _ in range(4):
        enqueue_job()
    monkeypatch.setattr(fanout, "MAX_DELIVERIES", 7)
    assert fanout.fan_out() == 2
    monkeypatch.setattr(fanout, "MAX_DELIVERIES", 1)
    assert [fanout.fan_out(), fanout.fan_out(), fanout.fan_out()] == [1, 1, 0]
    assert len(list_deliveries()) == 12


def test_a_delivery_has_an_id_that_contains_its_time() -> None:
    """Both databases generate such ids; lists, rates and `since` depend on them."""
    create_endpoint("https://example.org/", "job.queued")
    before = min_id_at(clock.now())
    for _ in range(3):
        enqueue_job()
    fan_out_all()
    after = min_id_at(clock.now() + timedelta(milliseconds=1))
    for delivery in list_deliveries():
        assert (before <= delivery.pk <= after, delivery.pk.version) == (True, 7)


def test_an_endpoint_is_idle_if_it_answers_and_has_few_pending_deliveries() -> None:
    assert not fanout.has_idle_endpoint()
    busy = create_endpoint("http://example.org/")
    assert fanout.has_idle_endpoint()
    WebhookDeliveryFactory.create_batch(fanout.IDLE_BELOW, endpoint=busy)
    assert not fanout.has_idle_endpoint()
    create_endpoint("http://example.org/", failures=circuit_breaker.FAILURE_THRESHOLD)
    create_endpoint("http://example.org/", enabled=False)
    assert not fanout.has_idle_endpoint()


def test_an_endpoint_that_was_disabled_or_deleted_meanwhile_is_sent_nothing() -> None:
    disabled, deleted = (
        create_endpoint("https://example.org/", "job.completed"),
        create_endpoint("https://example.org/"),
    )
    complete_job()
    services.update(disabled.pk, {"enabled": False})
    services.delete(deleted.pk)
    fan_out_all()
    (failed,) = list_deliveries()
    assert (failed.endpoint_id, failed.status, failed.error) == (disabled.pk, "FAILED", "endpoint disabled")
    assert failed.message.event == "job.completed"
    assert [event for event, _ in list_messages()] == ["job.completed"]


@pytest.mark.pg_only
@pytest.mark.django_db(transaction=True)
def test_disabling_an_endpoint_waits_for_fan_out_and_ends_its_deliveries() -> None:
    """Otherwise a delivery inserted meanwhile would stay pending for ever."""
    endpoint = create_endpoint("https://example.org/", "job.completed")
    complete_job()

    def disable() -> None:
        services.update(endpoint.pk, {"enabled": False})
        connection.close()

    other = threading.Thread(target=disable)
    with transaction.atomic():
        fanout.fan_out()
        other.start()
        wait_until(is_lock_awaited)
    other.join()
    (delivery,) = list_deliveries()
    assert (delivery.status, delivery.error) == ("FAILED", "endpoint disabled")


# ---------------------------------------------------------------------- senders side by side


@pytest.mark.django_db(transaction=True)
def test_senders_side_by_side_send_everything_and_no_delivery_twice(receive: Receive) -> None:
    receiver = receive()
    create_endpoint(receiver.url, "job.completed")
    for _ in range(60):
        complete_job()

    def send() -> None:
        Sender().run_once()
        connection.close()

    threads = [threading.Thread(target=send) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    send_round()
    assert {delivery.status for delivery in list_deliveries()} == {"DELIVERED"}
    assert len(receiver.seen) == len(set(receiver.ids)) == 60
    assert receiver.most_at_once <= deliveries.MAX_CONCURRENT
