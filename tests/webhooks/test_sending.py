"""What is owed arrives, signed, with a stable id and body, whatever receivers do; and nothing they do costs us more
than the time and bytes that we allow."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from django.utils import timezone
from standardwebhooks import WebhookVerificationError

from jobs.services import jobs as jobs
from jobs.signals import events_committed
from tests.support import webhook_receiver as manners
from tests.support.webhook_receiver import Behaviour, Receiver
from tests.support.webhooks import complete_job, create_endpoint, fail_job, list_deliveries, send_round
from tests.support.worker_processes import wait_until
from tests.webhooks.conftest import Settings
from webhooks import deliveries as leases
from webhooks import sender, services, url_guard
from webhooks.models import WebhookAttempt, WebhookEndpoint

pytestmark = pytest.mark.django_db
Receive = Callable[..., Receiver]


def test_a_receiver_gets_each_event_once_and_can_verify_it(receive: Receive) -> None:
    there = receive()
    _, secret = services.create(there.url, ["job.*"])
    job = complete_job(params={"password": "hunter2"})
    send_round()
    assert sorted(request.type for request in there.seen) == ["job.completed", "job.queued", "job.started"]
    for request in there.seen:
        document = request.verify(secret)
        assert document["data"]["id"] == str(job.pk)
        assert "hunter2" not in request.body.decode()
    assert {delivery.status for delivery in list_deliveries()} == {"DELIVERED"}
    assert sorted(there.ids) == sorted(str(delivery.pk) for delivery in list_deliveries())


BAD: dict[str, tuple[Behaviour, str]] = {
    "500": (manners.respond(500, b"sorry"), "answered 500"),
    "404": (manners.respond(404), "answered 404"),
    "redirect": (manners.respond(302, Location="http://127.0.0.1:1/"), "answered 302; redirects are not followed"),
    "permanent redirect": (manners.respond(308, Location="http://127.0.0.1:1/"), "redirects are not followed"),
    "closes early": (manners.close_early, "closed the connection without an answer"),
    "resets": (manners.reset, "closed the connection without an answer"),
    "closes within the head": (manners.close_within_head, "closed the connection without an answer"),
    "garbage": (manners.send_garbage, "sent an invalid HTTP response"),
    "another protocol": (manners.send_smtp_banner, "sent an invalid HTTP response"),
    "endless head": (manners.flood_head, "headers that are too large"),
    "endless 100 Continue": (manners.flood_continues, "headers that are too large"),
    "binary": (manners.send_binary_body, "answered 500"),
}
SLOW: dict[str, tuple[Behaviour, str]] = {
    "hangs": (manners.hang, "did not answer in time"),
    "drips its head": (manners.drip_head, "did not answer in time"),
    "drips its body": (manners.drip_body, "answered 500"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_answer_is_a_failed_try_and_says_why(name: str, receive: Receive, configure: Settings) -> None:
    manner, why = BAD[name]
    configure(WEBHOOK_MAX_RETRIES=0)
    create_endpoint(receive(manner).url, "job.completed")
    complete_job()
    send_round()
    (delivery,) = list_deliveries()
    assert (delivery.status, delivery.attempts, delivery.tries.count()) == ("FAILED", 1, 1)
    assert why in delivery.error


@pytest.mark.parametrize("name", SLOW)
def test_a_receiver_that_never_ends_is_cut_off(name: str, receive: Receive, configure: Settings) -> None:
    """Each of them would go on for hours, saying just enough for a timeout between two bytes never to come."""
    manner, why = SLOW[name]
    configure(WEBHOOK_MAX_RETRIES=0, WEBHOOK_TIMEOUT_SEC=0.5)
    create_endpoint(receive(manner).url, "job.completed")
    complete_job()
    send_round()
    (delivery,) = list_deliveries()
    assert (delivery.status, delivery.attempts) == ("FAILED", 1)
    assert why in delivery.error


@pytest.mark.parametrize("manner", [manners.flood_body, manners.flood_chunks])
def test_of_a_gigabyte_we_read_64_kib(manner: Behaviour, receive: Receive) -> None:
    create_endpoint(receive(manner).url, "job.completed")
    complete_job()
    send_round()
    (tried,) = WebhookAttempt.objects.all()
    assert (tried.response_status, len(tried.response_body)) == (200, 64 * 1024)


@pytest.mark.parametrize("headers", [{}, {"Connection": "close"}], ids=["kept alive", "closed by the receiver"])
def test_the_first_64_kib_and_the_head_of_an_answer_are_kept(headers: dict[str, str], receive: Receive) -> None:
    create_endpoint(receive(manners.respond(503, b"a" * 70_000, X_Why="full", **headers)).url, "job.completed")
    complete_job()
    send_round()
    tried = WebhookAttempt.objects.order_by("pk")[0]
    assert tried.response_head.startswith("HTTP/1.1 503 Service Unavailable\n")
    assert "X-Why: full" in tried.response_head
    assert tried.response_body == "a" * 64 * 1024


def test_an_address_of_a_family_that_this_host_lacks_is_passed_over(
    receive: Receive, monkeypatch: pytest.MonkeyPatch
) -> None:
    there, make = receive(), socket.socket

    def without_ipv6(family: int = socket.AF_INET, *args: Any, **kwargs: Any) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return make(family, *args, **kwargs)

    monkeypatch.setattr(url_guard, "resolve", lambda *_: ["::1", "127.0.0.1"])
    monkeypatch.setattr(socket, "socket", without_ipv6)
    create_endpoint(f"http://localhost:{there.port}/", "job.completed")
    complete_job()
    send_round()
    assert [delivery.status for delivery in list_deliveries()] == ["DELIVERED"]


def test_a_round_of_sending_leaves_nothing_behind_that_follows_commits(receive: Receive) -> None:
    create_endpoint(receive().url, "job.completed")
    before = list(events_committed.receivers)
    send_round()
    assert events_committed.receivers == before


def test_what_cannot_be_stored_of_an_answer_is_replaced(receive: Receive) -> None:
    create_endpoint(receive(manners.send_binary_body).url, "job.completed")
    complete_job()
    send_round()
    tried = WebhookAttempt.objects.order_by("pk")[0]
    assert tried.response_body.startswith("\ufffd\ufffd\ufffd zero and half")
    assert "X-Odd: caf\xe9" in tried.response_head


def test_after_one_try_and_three_retries_it_has_failed_and_a_resend_carries_the_same_id_and_body(
    receive: Receive,
) -> None:
    there = receive(manners.respond(500))
    _, secret = services.create(there.url, ["job.completed"])
    complete_job()
    send_round()
    (failed,) = list_deliveries()
    assert (failed.status, failed.attempts, failed.response_status, failed.next_try_at) == ("FAILED", 4, 500, None)
    assert [attempt.response_status for attempt in failed.tries.all()] == [500] * 4
    there.behaviour = manners.respond(204)
    assert services.resend(failed.pk).status == "PENDING"
    send_round()
    (sent,) = list_deliveries()
    assert (sent.status, sent.attempts, sent.response_status) == ("DELIVERED", 5, 204)
    assert len(there.seen) == 5
    assert len({(request.id, request.body) for request in there.seen}) == 1
    for request in there.seen:
        request.verify(secret)


def test_what_was_delivered_can_be_sent_again_with_the_same_id_and_body(receive: Receive) -> None:
    there = receive()
    create_endpoint(there.url, "job.completed")
    complete_job()
    send_round()
    services.resend(list_deliveries()[0].pk)
    send_round()
    assert len(there.seen) == 2
    assert len({(request.id, request.body) for request in there.seen}) == 1


def test_a_resent_delivery_has_all_its_retries_again(receive: Receive) -> None:
    there = receive(manners.respond(500))
    create_endpoint(there.url, "job.completed")
    complete_job()
    send_round()
    services.resend(list_deliveries()[0].pk)
    send_round()
    assert (list_deliveries()[0].status, list_deliveries()[0].attempts, len(there.seen)) == ("FAILED", 8, 8)


def test_a_body_does_not_follow_what_becomes_of_the_job(receive: Receive) -> None:
    there = receive(manners.respond_in_turn(manners.respond(500), manners.respond(200)))
    create_endpoint(there.url, "job.failed")
    job = fail_job()
    send_round()
    jobs.resolve(job.pk)
    jobs.update(job.pk, {"tags": ["later"]})
    services.resend(list_deliveries()[0].pk)
    send_round()
    assert len(there.seen) == 3
    assert len({request.body for request in there.seen}) == 1


def test_410_disables_the_endpoint_and_ends_what_it_was_owed(receive: Receive) -> None:
    there = receive(manners.respond(410))
    gone = create_endpoint(there.url, "job.completed")
    for _ in range(20):
        complete_job()
    send_round()
    gone.refresh_from_db()
    assert (gone.enabled, gone.disabled_reason) == (False, "The receiver answered 410 Gone.")
    assert {delivery.status for delivery in list_deliveries()} == {"FAILED"}
    assert len(there.seen) <= 8  # those that were on the wire when the first answer came


@pytest.mark.parametrize("code", [429, 503])
def test_retry_after_is_a_rest_for_the_whole_endpoint(code: int, receive: Receive, configure: Settings) -> None:
    there = receive(manners.respond(code, Retry_After="3600"))
    asked = create_endpoint(there.url, "job.completed")
    complete_job()
    send_round()
    complete_job()
    send_round()
    asked.refresh_from_db()
    assert len(there.seen) == 1
    assert [delivery.status for delivery in list_deliveries()] == ["PENDING", "PENDING"]
    for moment in (asked.open_until, list_deliveries()[0].next_try_at):
        assert moment is not None
        assert timedelta(minutes=59) < moment - timezone.now() < timedelta(minutes=61)


def test_an_endpoint_is_talked_to_by_four_at_most_at_once(receive: Receive) -> None:
    gate = threading.Barrier(leases.MAX_CONCURRENT)  # breaks unless four are there at the same time

    def answer(handler: manners.Handler) -> None:
        gate.wait(10)
        manners.respond(200)(handler)

    there = receive(answer)
    create_endpoint(there.url, "job.completed")
    for _ in range(20):
        complete_job()
    send_round()
    assert there.most_at_once == leases.MAX_CONCURRENT
    assert {delivery.status for delivery in list_deliveries()} == {"DELIVERED"}


def test_one_slow_receiver_does_not_hold_up_another(receive: Receive, configure: Settings) -> None:
    configure(WEBHOOK_TIMEOUT_SEC=3, WEBHOOK_MAX_RETRIES=0)
    slow, quick = receive(manners.hang), receive()
    create_endpoint(slow.url, "job.completed")
    create_endpoint(quick.url, "job.completed")
    for _ in range(30):
        complete_job()
    send_round()
    assert len(quick.seen) == 30
    assert len(slow.seen) < 30


def test_the_name_of_the_host_is_kept(receive: Receive) -> None:
    there = receive()
    create_endpoint(f"http://localhost:{there.port}/a%20b?c=d&e=%C3%A9", "job.completed")
    complete_job()
    send_round()
    (seen,) = there.seen
    assert (seen.path, seen.headers["Host"]) == ("/a%20b?c=d&e=%C3%A9", f"localhost:{there.port}")
    assert seen.headers["Content-Type"] == "application/json"


def test_a_secret_that_cannot_be_read_sends_nothing_unsigned(receive: Receive, settings: Any) -> None:
    there = receive()
    create_endpoint(there.url, "job.completed")
    complete_job()
    settings.SECRET_KEY = "another key altogether"
    send_round()
    (delivery,) = list_deliveries()
    assert there.connections == 0
    assert (delivery.status, "rotate it" in delivery.error) == ("FAILED", True)


def test_while_a_secret_is_replaced_both_verify_and_after_a_day_only_the_new_one(receive: Receive) -> None:
    there = receive()
    made, old = services.create(there.url, ["job.completed"])
    _, new = services.rotate_secret(made.pk)
    complete_job()
    send_round()
    there.seen[0].verify(old)
    there.seen[0].verify(new)
    WebhookEndpoint.objects.update(old_secret_until=timezone.now() - timedelta(seconds=1))
    complete_job()
    send_round()
    there.seen[1].verify(new)
    with pytest.raises(WebhookVerificationError):
        there.seen[1].verify(old)


def test_one_slow_batch_puts_off_fan_out_by_a_minute_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0

    def stall() -> int:
        nonlocal now
        now += 90
        return 1

    monkeypatch.setattr(sender, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(sender.fanout, "fan_out", stall)
    slow = sender.Sender()
    slow._fan_out()
    assert slow._fan_out_at - now <= 60


@pytest.mark.parametrize(
    ("seconds_since_commit", "is_idle", "rest"), [(0.5, False, 19), (0.5, True, 1), (5.0, False, 1), (5.0, True, 1)]
)
def test_fan_out_yields_to_running_jobs_unless_an_endpoint_waits_for_it(
    seconds_since_commit: float, is_idle: bool, rest: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0

    def take_a_second() -> int:
        nonlocal now
        now += 1
        return 1

    monkeypatch.setattr(sender, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(sender.fanout, "fan_out", take_a_second)
    monkeypatch.setattr(sender.fanout, "has_idle_endpoint", lambda: is_idle)
    busy = sender.Sender()
    busy._events_committed_at = now - seconds_since_commit
    busy._fan_out()
    assert busy._fan_out_at - now == rest


@pytest.mark.django_db(transaction=True)
def test_a_commit_of_its_own_process_wakes_the_sender(receive: Receive, configure: Settings) -> None:
    configure(POLL_SEC=3600)
    there = receive()
    create_endpoint(there.url, "job.completed")
    ours = sender.Sender()
    ours.start()
    try:
        wait_until(lambda: ours._polled_at)  # it found nothing, and will look again in an hour
        complete_job()
        events_committed.send(sender=None)
        wait_until(lambda: there.seen)
    finally:
        ours.end()
        ours.join()
