"""Any number of senders: each delivery is in one pair of hands at a time, and only those hands write down its fate."""

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
from webhooks import circuit_breaker, fanout, services
from webhooks import deliveries as leases
from webhooks.deliveries import AttemptResult
from webhooks.models import WebhookAttempt, WebhookDelivery, WebhookEndpoint
from webhooks.sender import Sender

pytestmark = pytest.mark.django_db
Receive = Callable[..., Receiver]


def due(number: int = 1, **fields: Any) -> WebhookEndpoint:
    there = create_endpoint("https://example.org/", "job.completed", **fields)
    WebhookDeliveryFactory.create_batch(number, endpoint=there)
    return there


def make_result(task: leases.ClaimedDelivery, status: int | None = 200, **extra: Any) -> AttemptResult:
    bad = {} if status == 200 else {"error": f"answered {status}"}
    return AttemptResult(task, 5, status=status, **{**bad, **extra})


def test_what_one_sender_has_taken_another_does_not_get() -> None:
    due(3)
    assert len(leases.claim_due(10)) == 3
    assert leases.claim_due(10) == []


def test_no_more_than_four_an_endpoint_are_out_at_once_over_all_senders() -> None:
    due(10)
    due(10)
    taken = leases.claim_due(100)
    assert sorted(sum(claim.endpoint_id == pk for claim in taken) for pk in {claim.endpoint_id for claim in taken}) == [
        4,
        4,
    ]
    leases.record_results([make_result(taken[0])])
    (another,) = leases.claim_due(100)
    assert another.endpoint_id == taken[0].endpoint_id


def test_a_lease_that_ran_out_is_anybodys() -> None:
    due()
    (lost,) = leases.claim_due(1)
    WebhookDelivery.objects.update(lease_expires_at=timezone.now() - timedelta(seconds=1))
    (again,) = leases.claim_due(1)
    assert again.id == lost.id
    assert again.token != lost.token


def test_who_lost_the_lease_writes_nothing_down() -> None:
    due()
    (lost,) = leases.claim_due(1)
    WebhookDelivery.objects.update(lease_expires_at=timezone.now() - timedelta(seconds=1))
    (ours,) = leases.claim_due(1)
    leases.record_results([make_result(lost)])
    assert (list_deliveries()[0].status, list_deliveries()[0].attempts) == ("PENDING", 0)
    assert not WebhookAttempt.objects.exists()
    leases.record_results([make_result(ours)])
    assert (list_deliveries()[0].status, list_deliveries()[0].attempts) == ("DELIVERED", 1)


def test_an_outcome_that_is_recorded_twice_counts_once() -> None:
    due()
    (task,) = leases.claim_due(1)
    leases.record_results([make_result(task, 500)])
    leases.record_results([make_result(task, 500)])
    assert (list_deliveries()[0].attempts, WebhookAttempt.objects.count()) == (1, 1)


def test_a_sender_that_was_killed_has_used_up_no_try() -> None:
    """What it had in hand is tried again when its lease is over, however often that happens."""
    due()
    for _ in range(20):
        assert len(leases.claim_due(1)) == 1
        WebhookDelivery.objects.update(lease_expires_at=timezone.now() - timedelta(seconds=1))
    assert list_deliveries()[0].attempts == 0


def test_not_before_its_time_and_not_while_the_circuit_is_open_or_the_endpoint_disabled() -> None:
    later = timezone.now() + timedelta(hours=1)
    due(enabled=False)
    due(open_until=later)
    waits = due()
    WebhookDelivery.objects.filter(endpoint=waits).update(next_try_at=later)
    assert leases.claim_due(10) == []


def test_retries_come_after_10_20_and_40_seconds_then_it_has_failed() -> None:
    due()
    waited = []
    for _ in range(4):
        WebhookDelivery.objects.filter(status="PENDING").update(next_try_at=timezone.now())
        (task,) = leases.claim_due(1)
        leases.record_results([make_result(task, 500)])
        (delivery,) = list_deliveries()
        if delivery.next_try_at is not None:
            waited.append(round((delivery.next_try_at - timezone.now()).total_seconds()))
    assert waited == [10, 20, 40]
    assert (delivery.status, delivery.attempts) == ("FAILED", 4)


# ---------------------------------------------------------------------- circuits


def test_five_failures_in_a_row_open_the_circuit_and_one_success_closes_it() -> None:
    there = due(10)
    for failed in range(1, 7):
        WebhookEndpoint.objects.update(open_until=None)
        (task, *_) = leases.claim_due(1)
        leases.record_results([make_result(task, 500)])
        there.refresh_from_db()
        assert (there.failures, there.open_until is not None) == (failed, failed >= circuit_breaker.FAILURE_THRESHOLD)
    WebhookEndpoint.objects.update(open_until=timezone.now())
    (task,) = leases.claim_due(100)
    leases.record_results([make_result(task)])
    there.refresh_from_db()
    assert (there.failures, there.open_until) == (0, None)


def test_the_pause_grows_with_the_failures_and_has_an_end() -> None:
    assert [circuit_breaker.pause_sec(item) for item in (5, 6, 7, 8, 9, 10, 1000)] == [10, 20, 40, 80, 160, 300, 300]


def test_a_broken_endpoint_is_probed_by_one_alone_and_first_by_what_has_waited_least() -> None:
    there = due(5, failures=5)
    newest = list_deliveries()[-1]
    WebhookDelivery.objects.exclude(pk=newest.pk).update(next_try_at=timezone.now() - timedelta(hours=1))
    (probe,) = leases.claim_due(100)
    assert probe.id == newest.pk
    assert leases.claim_due(100) == []
    leases.record_results([make_result(probe)])
    assert len(leases.claim_due(100)) == 4
    assert there


def test_while_a_circuit_is_open_deliveries_wait_and_no_attempt_is_counted() -> None:
    due(50, failures=5)
    for _ in range(3):
        WebhookEndpoint.objects.update(open_until=None)
        (probe,) = leases.claim_due(100)
        leases.record_results([make_result(probe, None, error="refused the connection")])
        assert leases.claim_due(100) == []  # until the pause is over
    assert sorted(delivery.attempts for delivery in list_deliveries()) == [0] * 47 + [1] * 3
    assert {delivery.status for delivery in list_deliveries()} == {"PENDING"}
    assert WebhookAttempt.objects.count() == 3


def test_a_resend_is_tried_at_once_whatever_the_circuit_says() -> None:
    there = due(5, failures=9, open_until=timezone.now() + timedelta(hours=1))
    third = list_deliveries()[2]
    assert leases.claim_due(100) == []
    services.resend(third.pk)
    (probe,) = leases.claim_due(100)
    assert probe.id == third.pk
    leases.record_results([make_result(probe)])
    there.refresh_from_db()
    assert (there.failures, there.open_until) == (0, None)
    assert len(leases.claim_due(100)) == 4


def test_a_resend_that_fails_waits_again_like_the_others() -> None:
    there = due(2, failures=9, open_until=timezone.now() + timedelta(hours=1))
    services.resend(list_deliveries()[0].pk)
    (probe,) = leases.claim_due(100)
    leases.record_results([make_result(probe, 500)])
    WebhookDelivery.objects.update(next_try_at=timezone.now())
    assert leases.claim_due(100) == []
    there.refresh_from_db()
    assert there.failures == 10


def test_a_resend_does_not_wait_for_a_probe_that_is_under_way() -> None:
    due(3, failures=9)
    (first,) = leases.claim_due(100)
    other = next(delivery for delivery in list_deliveries() if delivery.pk != first.id)
    services.resend(other.pk)
    assert [delivery.id for delivery in leases.claim_due(100)] == [other.pk]


@pytest.mark.parametrize("how", ["those of an endpoint", "selected ones"])
def test_of_a_bulk_resend_one_is_the_probe_and_the_rest_wait_for_it(how: str) -> None:
    there = due(failures=9, open_until=timezone.now() + timedelta(hours=1))
    WebhookDelivery.objects.all().delete()
    WebhookDeliveryFactory.create_batch(6, endpoint=there, failed=True)
    ids = [delivery.pk for delivery in list_deliveries()]
    assert (services.resend_failed(there.pk) if how == "those of an endpoint" else services.resend_many(ids)) == 6
    (probe,) = leases.claim_due(100)
    assert probe.id == ids[0]
    assert leases.claim_due(100) == []
    leases.record_results([make_result(probe)])
    assert len(leases.claim_due(100)) == leases.MAX_CONCURRENT


def test_a_test_is_tried_at_once_too() -> None:
    there = due(3, failures=9, open_until=timezone.now() + timedelta(hours=1))
    sent = services.send_test(there.pk)
    assert [delivery.id for delivery in leases.claim_due(100)] == [sent.pk]


# ---------------------------------------------------------------------- giving up


def fail_once(there: WebhookEndpoint) -> None:
    WebhookEndpoint.objects.filter(pk=there.pk).update(open_until=None)
    WebhookDelivery.objects.filter(status="PENDING").update(next_try_at=timezone.now())
    (task, *_) = leases.claim_due(1)
    leases.record_results([make_result(task, 500)])
    there.refresh_from_db()


def test_after_three_days_of_nothing_but_failures_the_endpoint_is_disabled() -> None:
    there = due(20)
    for _ in range(8):
        fail_once(there)
    assert there.failing_since is not None
    began = timezone.now() - timedelta(days=3)
    WebhookEndpoint.objects.update(failing_since=began + timedelta(minutes=5))
    fail_once(there)
    assert there.enabled
    WebhookEndpoint.objects.update(failing_since=began)
    fail_once(there)
    assert (there.enabled, there.disabled_reason) == (False, f"Nothing but failures since {began:%Y-%m-%d %H:%M} UTC.")
    assert {delivery.status for delivery in list_deliveries()} == {"FAILED"}
    assert {delivery.error for delivery in list_deliveries() if delivery.attempts == 0} == {"endpoint disabled"}
    assert not there.subscriptions.filter(until__isnull=True).exists()


def test_one_success_begins_the_three_days_anew() -> None:
    there = due(10)
    for _ in range(5):
        fail_once(there)
    WebhookEndpoint.objects.update(failing_since=timezone.now() - timedelta(days=4), open_until=None)
    (task,) = leases.claim_due(1)
    leases.record_results([make_result(task)])
    there.refresh_from_db()
    assert there.failing_since is None
    fail_once(there)
    assert (there.enabled, there.failures) == (True, 1)
    assert timezone.now() - there.failing_since < timedelta(minutes=1)


def test_how_long_it_takes_to_give_up_can_be_set(configure: Settings) -> None:
    configure(WEBHOOK_GIVE_UP_SEC=60, WEBHOOK_MAX_RETRIES=100)
    there = due(failures=5, failing_since=timezone.now() - timedelta(seconds=61))
    fail_once(there)
    assert not there.enabled


def test_enabling_gives_a_fresh_start_before_it_is_given_up_again() -> None:
    there = due(failures=9, failing_since=timezone.now() - timedelta(days=4), enabled=False)
    enabled = services.update(there.pk, {"enabled": True})
    assert (enabled.failing_since, enabled.failures) == (None, 0)


# ---------------------------------------------------------------------- fan-out


def test_a_message_goes_to_those_who_wanted_it_when_it_happened() -> None:
    before = create_endpoint("https://example.org/", "job.completed")
    complete_job()
    create_endpoint("https://example.org/", "job.completed")
    fan_out_all()
    assert [delivery.endpoint_id for delivery in list_deliveries()] == [before.pk]


def test_who_no_longer_wants_it_gets_nothing_and_then_the_message_goes() -> None:
    changed = create_endpoint("https://example.org/", "job.completed")
    complete_job()
    services.update(changed.pk, {"events": ["job.failed"]})
    fan_out_all()
    assert (list_deliveries(), list_messages()) == ([], [])


def test_an_event_that_stays_wanted_while_others_change_is_not_lost() -> None:
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
    stands = [(delivery.status, delivery.error) for delivery in list_deliveries(endpoint=full)]
    assert stands == [("PENDING", "")] * 3 + [("FAILED", "backlog full")] * 2
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
    """But for the first message: what it has too many of would never be made."""
    for place in range(3):
        create_endpoint(f"https://example.org/{place}", "job.queued")
    for _ in range(4):
        enqueue_job()
    monkeypatch.setattr(fanout, "MAX_DELIVERIES", 7)
    assert fanout.fan_out() == 2
    monkeypatch.setattr(fanout, "MAX_DELIVERIES", 1)
    assert [fanout.fan_out(), fanout.fan_out(), fanout.fan_out()] == [1, 1, 0]
    assert len(list_deliveries()) == 12


def test_a_delivery_has_an_id_that_tells_its_time() -> None:
    """Whichever database makes it: lists, rates and `since` go by it."""
    create_endpoint("https://example.org/", "job.queued")
    before = min_id_at(clock.now())
    for _ in range(3):
        enqueue_job()
    fan_out_all()
    after = min_id_at(clock.now() + timedelta(milliseconds=1))
    for delivery in list_deliveries():
        assert (before <= delivery.pk <= after, delivery.pk.version) == (True, 7)


def test_it_is_known_whether_an_endpoint_that_answers_could_be_sent_more() -> None:
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
def test_whoever_disables_an_endpoint_waits_for_fan_out_and_ends_what_it_made() -> None:
    """Else a delivery made meanwhile would stay pending for ever."""
    there = create_endpoint("https://example.org/", "job.completed")
    complete_job()

    def disable() -> None:
        services.update(there.pk, {"enabled": False})
        connection.close()

    other = threading.Thread(target=disable)
    with transaction.atomic():
        fanout.fan_out()
        other.start()
        wait_until(_somebody_waits_for_a_lock)
    other.join()
    (delivery,) = list_deliveries()
    assert (delivery.status, delivery.error) == ("FAILED", "endpoint disabled")


def _somebody_waits_for_a_lock() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM pg_locks WHERE NOT granted")
        return bool(cursor.fetchone()[0])


# ---------------------------------------------------------------------- senders side by side


@pytest.mark.django_db(transaction=True)
def test_senders_side_by_side_send_everything_and_no_delivery_twice(receive: Receive) -> None:
    there = receive()
    create_endpoint(there.url, "job.completed")
    for _ in range(60):
        complete_job()

    def send() -> None:
        Sender().run_once()
        connection.close()

    crowd = [threading.Thread(target=send) for _ in range(4)]
    for item in crowd:
        item.start()
    for item in crowd:
        item.join()
    send_round()
    assert {delivery.status for delivery in list_deliveries()} == {"DELIVERED"}
    assert len(there.seen) == len(set(there.ids)) == 60
    assert there.most_at_once <= leases.MAX_CONCURRENT
