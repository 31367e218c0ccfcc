"""Every delivery arrives signed, with a stable id and body; no receiver costs more than the allowed time and bytes."""

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
from tests.support import webhook_receiver as behaviours
from tests.support.webhook_receiver import Behaviour, Receiver
from tests.support.webhooks import complete_job, create_endpoint, fail_job, list_deliveries, send_round
from tests.support.worker_processes import wait_until
from tests.webhooks.conftest import Settings
from webhooks import deliveries, sender, services, url_guard
from webhooks.models import WebhookAttempt, WebhookEndpoint

pytestmark = pytest.mark.django_db
Receive = Callable[..., Receiver]


def test_a_receiver_gets_each_event_once_and_can_verify_it(receive: Receive) -> None:
    receiver = receive()
    _, secret = services.create(receiver.url, ["job.*"])
    job = complete_job(params={"password": "hunter2"})
    send_round()
    assert sorted(request.type for request in receiver.seen) == ["job.completed", "job.queued", "job.started"]
    for request in receiver.seen:
        document = request.verify(secret)
        assert document["data"]["id"] == str(job.pk)
        assert "hunter2" not in request.body.decode()
    assert {delivery.status for delivery in list_deliveries()} == {"DELIVERED"}
    assert sorted(receiver.ids) == sorted(str(delivery.pk) for delivery in list_deliveries())


BAD_RESPONSES: dict[str, tuple[Behaviour, str]] = {
    "500": (behaviours.respond(500, b"sorry"), "answered 500"),
    "404": (behaviours.respond(404), "answered 404"),
    "redirect": (behaviours.respond(302, Location="http://127.0.0.1:1/"), "answered 302; redirects are not followed"),
    "permanent redirect": (behaviours.respond(308, Location="http://127.0.0.1:1/"), "redirects are not followed"),
    "closes early": (behaviours.close_early, "closed the connection without an answer"),
    "resets": (behaviours.reset, "closed the connection without an answer"),
    "closes within the head": (behaviours.close_within_head, "closed the connection without an answer"),
    "garbage": (behaviours.send_garbage, "sent an invalid HTTP response"),
    "another protocol": (behaviours.send_smtp_banner, "sent an invalid HTTP response"),
    "endless head": (behaviours.flood_head, "headers that are too large"),
    "endless 100 Continue": (behaviours.flood_continues, "headers that are too large"),
    "binary": (behaviours.send_binary_body, "answered 500"),
}
SLOW_RESPONSES: dict[str, tuple[Behaviour, str]] = {
    "hangs": (behaviours.hang, "did not answer in time"),
    "drips its head": (behaviours.drip_head, "did not answer in time"),
    "drips its body": (behaviours.drip_body, "answered 500"),
}


@pytest.mark.parametrize("name", BAD_RESPONSES)
def test_a_bad_response_is_a_failed_attempt_with_its_reason(name: str, receive: Receive, configure: Settings) -> None:
    behaviour, error = BAD_RESPONSES[name]
    configure(WEBHOOK_MAX_RETRIES=0)
    create_endpoint(receive(behaviour).url, "job.completed")
    complete_job()
    send_round()
    (delivery,) = list_deliveries()
    assert (delivery.status, delivery.attempts, delivery.tries.count()) == ("FAILED", 1, 1)
    assert error in delivery.error


@pytest.mark.parametrize("name", SLOW_RESPONSES)
def test_a_receiver_that_never_ends_is_cut_off(name: str, receive: Receive, configure: Settings) -> None:
    """Each would go on for hours, sending just enough bytes to stay below a timeout between two reads."""
    behaviour, error = SLOW_RESPONSES[name]
    configure(WEBHOOK_MAX_RETRIES=0, WEBHOOK_TIMEOUT_SEC=0.5)
    create_endpoint(receive(behaviour).url, "job.completed")
    complete_job()
    send_round()
    (delivery,) = list_deliveries()
    assert (delivery.status, delivery.attempts) == ("FAILED", 1)
    assert error in delivery.error


@pytest.mark.parametrize("behaviour", [behaviours.flood_body, behaviours.flood_chunks])
def test_of_a_gigabyte_we_read_64_kib(behaviour: Behaviour, receive: Receive) -> None:
    create_endpoint(receive(behaviour).url, "job.completed")
    complete_job()
    send_round()
    (attempt,) = WebhookAttempt.objects.all()
    assert (attempt.response_status, len(attempt.response_body)) == (200, 64 * 1024)


@pytest.mark.parametrize("headers", [{}, {"Connection": "close"}], ids=["kept alive", "closed by the receiver"])
def test_the_first_64_kib_and_the_head_of_a_response_are_stored(headers: dict[str, str], receive: Receive) -> None:
    create_endpoint(receive(behaviours.respond(503, b"a" * 70_000, X_Why="full", **headers)).url, "job.completed")
    complete_job()
    send_round()
    attempt = WebhookAttempt.objects.order_by("pk")[0]
    assert attempt.response_head.startswith("HTTP/1.1 503 Service Unavailable\n")
    assert "X-Why: full" in attempt.response_head
    assert attempt.response_body == "a" * 64 * 1024


def test_an_address_of_a_family_that_this_host_lacks_is_passed_over(
    receive: Receive, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver, create_socket = receive(), socket.socket

    def without_ipv6(family: int = socket.AF_INET, *args: Any, **kwargs: Any) -> socket.socket:
        if family == socket.AF_INET6:
            raise OSError(errno.EAFNOSUPPORT, "Address family not supported by protocol")
        return create_socket(family, *args, **kwargs)

    monkeypatch.setattr(url_guard, "resolve", lambda *_: ["::1", "127.0.0.1"])
    monkeypatch.setattr(socket, "socket", without_ipv6)
    create_endpoint(f"http://localhost:{receiver.port}/", "job.completed")
    complete_job()
    send_round()
    assert [delivery.status for delivery in list_deliveries()] == ["DELIVERED"]


def test_a_round_of_sending_leaves_nothing_behind_that_follows_commits(receive: Receive) -> None:
    create_endpoint(receive().url, "job.completed")
    before = list(events_committed.receivers)
    send_round()
    assert events_committed.receivers == before


def test_bytes_of_a_response_that_cannot_be_stored_are_replaced(receive: Receive) -> None:
    create_endpoint(receive(behaviours.send_binary_body).url, "job.completed")
    complete_job()
    send_round()
    attempt = WebhookAttempt.objects.order_by("pk")[0]
    assert attempt.response_body.startswith("\ufffd\ufffd\ufffd zero and half")
    assert "X-Odd: caf\xe9" in attempt.response_head


def test_dec_009_error_after_one_attempt_and_three_retries_it_has_failed_and_a_resend_carries_the_same_id_and_body(
    receive: Receive,
) -> None:
    receiver = receive(behaviours.respond(500))
    _, secret = services.create(receiver.url, ["job.completed"])
    complete_job()
    send_round()
    (failed,) = list_deliveries()
    assert (failed.status, failed.attempts, failed.response_status, failed.next_try_at) == ("FAILED", 4, 500, None)
    assert [attempt.response_status for attempt in failed.tries.all()] == [500] * 4
    receiver.behaviour = behaviours.respond(204)
    assert services.resend(failed.pk).status == "PENDING"
    send_round()
    (sent,) = list_deliveries()
    assert (sent.status, sent.attempts, sent.response_status) == ("DELIVERED", 5, 204)
    assert len(receiver.seen) == 5
    assert len({(request.id, request.body) for request in receiver.seen}) == 1
    for request in receiver.seen:
        request.verify(secret)


def test_a_delivered_message_can_be_resent_with_the_same_id_and_body(receive: Receive) -> None:
    receiver = receive()
    create_endpoint(receiver.url, "job.completed")
    complete_job()
    send_round()
    services.resend(list_deliveries()[0].pk)
    send_round()
    assert len(receiver.seen) == 2
    assert len({(request.id, request.body) for request in receiver.seen}) == 1


def test_a_resent_delivery_has_all_its_retries_again(receive: Receive) -> None:
    receiver = receive(behaviours.respond(500))
    create_endpoint(receiver.url, "job.completed")
    complete_job()
    send_round()
    services.resend(list_deliveries()[0].pk)
    send_round()
    assert (list_deliveries()[0].status, list_deliveries()[0].attempts, len(receiver.seen)) == ("FAILED", 8, 8)


def test_a_body_does_not_follow_later_changes_of_the_job(receive: Receive) -> None:
    receiver = receive(behaviours.respond_in_turn(behaviours.respond(500), behaviours.respond(200)))
    create_endpoint(receiver.url, "job.failed")
    job = fail_job()
    send_round()
    jobs.resolve(job.pk)
    jobs.update(job.pk, {"tags": ["later"]})
    services.resend(list_deliveries()[0].pk)
    send_round()
    assert len(receiver.seen) == 3
    assert len({request.body for request in receiver.seen}) == 1


def test_410_disables_the_endpoint_and_ends_its_pending_deliveries(receive: Receive) -> None:
    receiver = receive(behaviours.respond(410))
    endpoint = create_endpoint(receiver.url, "job.completed")
    for _ in range(20):
        complete_job()
    send_round()
    endpoint.refresh_from_db()
    assert (endpoint.enabled, endpoint.disabled_reason) == (False, "The receiver answered 410 Gone.")
    assert {delivery.status for delivery in list_deliveries()} == {"FAILED"}
    assert len(receiver.seen) <= 8  # those already sent when the first response came


@pytest.mark.parametrize("code", [429, 503])
def test_retry_after_pauses_the_whole_endpoint(code: int, receive: Receive, configure: Settings) -> None:
    receiver = receive(behaviours.respond(code, Retry_After="3600"))
    endpoint = create_endpoint(receiver.url, "job.completed")
    complete_job()
    send_round()
    complete_job()
    send_round()
    endpoint.refresh_from_db()
    assert len(receiver.seen) == 1
    assert [delivery.status for delivery in list_deliveries()] == ["PENDING", "PENDING"]
    for moment in (endpoint.open_until, list_deliveries()[0].next_try_at):
        assert moment is not None
        assert timedelta(minutes=59) < moment - timezone.now() < timedelta(minutes=61)


def test_an_endpoint_gets_four_requests_at_once_at_most(receive: Receive) -> None:
    barrier = threading.Barrier(deliveries.MAX_CONCURRENT)  # breaks unless four requests arrive at the same time

    def respond_together(handler: behaviours.Handler) -> None:
        barrier.wait(10)
        behaviours.respond(200)(handler)

    receiver = receive(respond_together)
    create_endpoint(receiver.url, "job.completed")
    for _ in range(20):
        complete_job()
    send_round()
    assert receiver.most_at_once == deliveries.MAX_CONCURRENT
    assert {delivery.status for delivery in list_deliveries()} == {"DELIVERED"}


def test_one_slow_receiver_does_not_hold_up_another(receive: Receive, configure: Settings) -> None:
    configure(WEBHOOK_TIMEOUT_SEC=3, WEBHOOK_MAX_RETRIES=0)
    slow, quick = receive(behaviours.hang), receive()
    create_endpoint(slow.url, "job.completed")
    create_endpoint(quick.url, "job.completed")
    for _ in range(30):
        complete_job()
    send_round()
    assert len(quick.seen) == 30
    assert len(slow.seen) < 30


def test_the_name_of_the_host_is_sent(receive: Receive) -> None:
    receiver = receive()
    create_endpoint(f"http://localhost:{receiver.port}/a%20b?c=d&e=%C3%A9", "job.completed")
    complete_job()
    send_round()
    (request,) = receiver.seen
    assert (request.path, request.headers["Host"]) == ("/a%20b?c=d&e=%C3%A9", f"localhost:{receiver.port}")
    assert request.headers["Content-Type"] == "application/json"


def test_a_secret_that_cannot_be_read_sends_nothing_unsigned(receive: Receive, settings: Any) -> None:
    receiver = receive()
    create_endpoint(receiver.url, "job.completed")
    complete_job()
    settings.SECRET_KEY = "another key altogether"
    send_round()
    (delivery,) = list_deliveries()
    assert receiver.connections == 0
    assert (delivery.status, "rotate it" in delivery.error) == ("FAILED", True)


def test_while_a_secret_is_replaced_both_verify_and_after_a_day_only_the_new_one(receive: Receive) -> None:
    receiver = receive()
    endpoint, old = services.create(receiver.url, ["job.completed"])
    _, new = services.rotate_secret(endpoint.pk)
    complete_job()
    send_round()
    receiver.seen[0].verify(old)
    receiver.seen[0].verify(new)
    WebhookEndpoint.objects.update(old_secret_until=timezone.now() - timedelta(seconds=1))
    complete_job()
    send_round()
    receiver.seen[1].verify(new)
    with pytest.raises(WebhookVerificationError):
        receiver.seen[1].verify(old)


class FanOutClock:
    """The clock of a sender, which a batch of fan-out advances by `batch_sec`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, batch_sec: float, is_idle: bool = False) -> None:
        self.now, self.batch_sec = 1000.0, batch_sec
        monkeypatch.setattr(sender, "time", SimpleNamespace(monotonic=lambda: self.now))
        monkeypatch.setattr(sender.fanout, "fan_out", self.fan_out)
        monkeypatch.setattr(sender.fanout, "has_idle_endpoint", lambda: is_idle)

    def fan_out(self) -> int:
        self.now += self.batch_sec
        return 1


def test_one_slow_batch_puts_off_fan_out_by_a_minute_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FanOutClock(monkeypatch, batch_sec=90)
    slow = sender.Sender()
    slow._fan_out()
    assert slow._next_fan_out_at(clock.now) - clock.now <= 60


@pytest.mark.parametrize(
    ("seconds_since_commit", "is_idle", "pause"), [(0.5, False, 49), (0.5, True, 1), (5.0, False, 1), (5.0, True, 1)]
)
def test_fan_out_yields_to_running_jobs_unless_an_endpoint_waits_for_it(
    seconds_since_commit: float, is_idle: bool, pause: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FanOutClock(monkeypatch, batch_sec=1, is_idle=is_idle)
    began, busy = clock.now, sender.Sender()
    busy._events_committed_at = began - seconds_since_commit
    busy._fan_out()
    assert busy._next_fan_out_at(began) - clock.now == pause


def test_fan_out_goes_on_soon_after_the_jobs_have_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = FanOutClock(monkeypatch, batch_sec=1)
    busy = sender.Sender()
    busy._events_committed_at = clock.now
    busy._fan_out()
    clock.now += sender.BUSY_SEC
    assert busy._next_fan_out_at(clock.now) <= clock.now


@pytest.mark.django_db
def test_without_endpoints_the_sender_polls_rarely(configure: Settings) -> None:
    configure(POLL_SEC=1)
    idle = sender.Sender()
    idle._run_turn()
    assert idle._next_poll_at - idle._polled_at == 10
    create_endpoint("https://example.org/", "job.completed")
    idle._next_poll_at = 0.0
    idle._run_turn()
    assert idle._next_poll_at - idle._polled_at == 1


@pytest.mark.django_db(transaction=True)
def test_a_commit_of_its_own_process_wakes_the_sender(receive: Receive, configure: Settings) -> None:
    configure(POLL_SEC=3600)
    receiver = receive()
    create_endpoint(receiver.url, "job.completed")
    own_sender = sender.Sender()
    own_sender.start()
    try:
        wait_until(lambda: own_sender._polled_at)  # nothing is due; the next poll is in an hour
        complete_job()
        events_committed.send(sender=None)
        wait_until(lambda: receiver.seen)
    finally:
        own_sender.end()
        own_sender.join()
