"""Any number of senders: each delivery is in one pair of hands at a time, and only those hands write down its fate."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from tests.factories import WebhookDeliveryFactory
from tests.webhooks.receiver import Receiver
from tests.webhooks.scenes import completed, deliveries, endpoint, handed_out, round_of_sending
from tests.worker.harness import until
from webhooks import audiences, circuits, fanout, leases
from webhooks.leases import Outcome
from webhooks.models import WebhookAttempt, WebhookDelivery, WebhookEndpoint
from webhooks.sender import Sender

pytestmark = pytest.mark.django_db
Receive = Callable[..., Receiver]


def due(number: int = 1, **fields: Any) -> WebhookEndpoint:
    there = endpoint("https://example.org/", "job.completed", **fields)
    WebhookDeliveryFactory.create_batch(number, endpoint=there)
    return there


def answered(task: leases.Task, status: int | None = 200, **more: Any) -> Outcome:
    bad = {} if status == 200 else {"error": f"answered {status}"}
    return Outcome(task, 5, status=status, **{**bad, **more})


def test_what_one_sender_has_taken_another_does_not_get() -> None:
    due(3)
    assert len(leases.take(10)) == 3
    assert leases.take(10) == []


def test_no_more_than_four_an_endpoint_are_out_at_once_over_all_senders() -> None:
    due(10)
    due(10)
    taken = leases.take(100)
    assert sorted(sum(each.endpoint_id == pk for each in taken) for pk in {each.endpoint_id for each in taken}) == [
        4,
        4,
    ]
    leases.record([answered(taken[0])])
    (another,) = leases.take(100)
    assert another.endpoint_id == taken[0].endpoint_id


def test_a_lease_that_ran_out_is_anybodys() -> None:
    due()
    (lost,) = leases.take(1)
    WebhookDelivery.objects.update(lease_expires_at=timezone.now() - timedelta(seconds=1))
    (again,) = leases.take(1)
    assert again.id == lost.id
    assert again.token != lost.token


def test_who_lost_the_lease_writes_nothing_down() -> None:
    due()
    (lost,) = leases.take(1)
    WebhookDelivery.objects.update(lease_expires_at=timezone.now() - timedelta(seconds=1))
    (ours,) = leases.take(1)
    leases.record([answered(lost)])
    assert (deliveries()[0].status, deliveries()[0].attempts) == ("PENDING", 0)
    assert not WebhookAttempt.objects.exists()
    leases.record([answered(ours)])
    assert (deliveries()[0].status, deliveries()[0].attempts) == ("DELIVERED", 1)


def test_an_outcome_that_is_recorded_twice_counts_once() -> None:
    due()
    (task,) = leases.take(1)
    leases.record([answered(task, 500)])
    leases.record([answered(task, 500)])
    assert (deliveries()[0].attempts, WebhookAttempt.objects.count()) == (1, 1)


def test_a_sender_that_was_killed_has_used_up_no_try() -> None:
    """What it had in hand is tried again when its lease is over, however often that happens."""
    due()
    for _ in range(20):
        assert len(leases.take(1)) == 1
        WebhookDelivery.objects.update(lease_expires_at=timezone.now() - timedelta(seconds=1))
    assert deliveries()[0].attempts == 0


def test_not_before_its_time_and_not_while_the_circuit_is_open_or_the_endpoint_disabled() -> None:
    later = timezone.now() + timedelta(hours=1)
    due(enabled=False)
    due(open_until=later)
    waits = due()
    WebhookDelivery.objects.filter(endpoint=waits).update(next_try_at=later)
    assert leases.take(10) == []


def test_retries_come_after_10_20_and_40_seconds_then_it_has_failed() -> None:
    due()
    waited = []
    for _ in range(4):
        WebhookDelivery.objects.filter(status="PENDING").update(next_try_at=timezone.now())
        (task,) = leases.take(1)
        leases.record([answered(task, 500)])
        (delivery,) = deliveries()
        if delivery.next_try_at is not None:
            waited.append(round((delivery.next_try_at - timezone.now()).total_seconds()))
    assert waited == [10, 20, 40]
    assert (delivery.status, delivery.attempts) == ("FAILED", 4)


# ---------------------------------------------------------------------- circuits


def test_five_failures_in_a_row_open_the_circuit_and_one_success_closes_it() -> None:
    there = due(10)
    for failed in range(1, 7):
        WebhookEndpoint.objects.update(open_until=None)
        (task, *_) = leases.take(1)
        leases.record([answered(task, 500)])
        there.refresh_from_db()
        assert (there.failures, there.open_until is not None) == (failed, failed >= circuits.BREAK_AFTER)
    WebhookEndpoint.objects.update(open_until=timezone.now())
    (task,) = leases.take(100)
    leases.record([answered(task)])
    there.refresh_from_db()
    assert (there.failures, there.open_until) == (0, None)


def test_the_pause_grows_with_the_failures_and_has_an_end() -> None:
    assert [circuits.pause_sec(each) for each in (5, 6, 7, 8, 9, 10, 1000)] == [10, 20, 40, 80, 160, 300, 300]


def test_a_broken_endpoint_is_probed_by_one_alone_and_first_by_what_has_waited_least() -> None:
    there = due(5, failures=5)
    newest = deliveries()[-1]
    WebhookDelivery.objects.exclude(pk=newest.pk).update(next_try_at=timezone.now() - timedelta(hours=1))
    (probe,) = leases.take(100)
    assert probe.id == newest.pk
    assert leases.take(100) == []
    leases.record([answered(probe)])
    assert len(leases.take(100)) == 4
    assert there


def test_a_failed_probe_counts_for_all_that_was_due_then() -> None:
    """So a dead receiver's deliveries fail when they would have failed one by one, without waiting for each."""
    due(50, failures=5)
    late = due(1)
    WebhookDelivery.objects.filter(endpoint=late).update(next_try_at=timezone.now() + timedelta(hours=1))
    for attempts in range(1, 5):
        WebhookEndpoint.objects.update(open_until=None)
        WebhookDelivery.objects.filter(next_try_at__lte=timezone.now() + timedelta(minutes=10)).update(
            next_try_at=timezone.now()
        )
        (probe,) = leases.take(100)
        leases.record([answered(probe, None, error="refused the connection")])
        while circuits.count_unreached(20):
            pass
        counted = WebhookDelivery.objects.exclude(endpoint=late)
        assert set(counted.values_list("attempts", flat=True)) == {attempts}
    assert set(counted.values_list("status", flat=True)) == {"FAILED"}
    assert "had failed" in counted.exclude(pk=probe.id)[0].error
    assert WebhookAttempt.objects.count() == 4  # those that reached out
    assert deliveries(endpoint=late)[0].attempts == 0


def test_what_became_due_after_the_failure_is_not_counted_by_it() -> None:
    there = due(1, failures=7, failed_at=timezone.now() - timedelta(seconds=5), open_until=timezone.now())
    assert circuits.count_unreached(10) == 0
    assert there


def test_lanes_move_where_somebody_has_room_wait_where_all_are_busy_and_are_in_no_hurry_where_nobody_answers() -> None:
    dead = endpoint("http://example.org/", "job.completed", tenant="dead", failures=9)
    busy = endpoint("http://example.org/", "job.completed", tenant="busy")
    free = endpoint("http://example.org/", "job.completed", tenant="free")
    both = endpoint("http://example.org/", "job.completed", tenant="both", failures=9)
    also = endpoint("http://example.org/", "job.completed", tenant="both")
    WebhookDeliveryFactory.create_batch(fanout.ROOM, endpoint=busy)
    WebhookDeliveryFactory.create_batch(fanout.ROOM - 1, endpoint=free)
    for tenant in ("dead", "busy", "free", "both"):
        completed(tenant=tenant)
    lanes = fanout.lanes()
    assert set(lanes.urgent) == {audiences.key(audiences.pack(each)) for each in ([free.pk], [both.pk, also.pk])}
    assert set(lanes.unhurried) == {audiences.key(audiences.pack([dead.pk]))}


def test_of_more_lanes_than_can_be_looked_at_all_get_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fanout, "LANES", 2)
    monkeypatch.setattr(fanout, "_OWED_FROM", fanout._OWED_FROM.replace("LIMIT 100", "LIMIT 2"))
    for number in range(8):
        endpoint("http://example.org/", "job.completed", tenant=f"t{number}")
        completed(tenant=f"t{number}")
    seen: set[Any] = set()
    until(lambda: seen.update(fanout._owed_to()) or len(seen) == 8)


def test_an_endpoint_that_was_disabled_or_deleted_meanwhile_is_sent_nothing() -> None:
    disabled, deleted = endpoint("https://example.org/", "job.completed"), endpoint("https://example.org/")
    completed()
    WebhookEndpoint.objects.filter(pk=disabled.pk).update(enabled=False)
    WebhookEndpoint.objects.filter(pk=deleted.pk).delete()
    handed_out()
    (failed,) = deliveries()
    assert (failed.endpoint_id, failed.status, failed.error) == (disabled.pk, "FAILED", "the endpoint is disabled")
    assert failed.message.event == "job.completed"
    from webhooks.models import WebhookMessage

    assert list(WebhookMessage.objects.values_list("event", flat=True)) == ["job.completed"]


# ---------------------------------------------------------------------- senders side by side


@pytest.mark.django_db(transaction=True)
def test_senders_side_by_side_send_everything_and_no_delivery_twice(receive: Receive) -> None:
    there = receive()
    endpoint(there.url, "job.completed")
    for _ in range(60):
        completed()

    def send() -> None:
        Sender().one_round()
        connection.close()

    crowd = [threading.Thread(target=send) for _ in range(4)]
    for each in crowd:
        each.start()
    for each in crowd:
        each.join()
    round_of_sending()
    assert {each.status for each in deliveries()} == {"DELIVERED"}
    assert len(there.seen) == len(set(there.ids)) == 60
    assert there.most_at_once <= leases.CONCURRENT
