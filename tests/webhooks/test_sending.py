"""What is owed arrives, signed, with a stable id and body, whatever receivers do; and nothing they do costs us more
than the time and bytes that we allow."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.webhooks import receiver as manners
from tests.webhooks.conftest import Settings
from tests.webhooks.receiver import Manner, Receiver
from tests.webhooks.scenes import completed, deliveries, endpoint, round_of_sending
from webhooks import services
from webhooks.models import WebhookAttempt

pytestmark = pytest.mark.django_db
Receive = Callable[..., Receiver]


def test_a_receiver_gets_each_event_once_and_can_verify_it(receive: Receive) -> None:
    there = receive()
    _, secret = services.create(there.url, ["job.*"])
    job = completed(params={"password": "hunter2"})
    round_of_sending()
    assert sorted(each.type for each in there.seen) == ["job.completed", "job.queued", "job.started"]
    for each in there.seen:
        document = each.verify(secret)
        assert document["data"]["id"] == str(job.pk)
        assert "hunter2" not in each.body.decode()
    assert {each.status for each in deliveries()} == {"DELIVERED"}
    assert sorted(there.ids) == sorted(str(each.pk) for each in deliveries())


BAD: dict[str, tuple[Manner, str]] = {
    "500": (manners.status(500, b"sorry"), "answered 500"),
    "404": (manners.status(404), "answered 404"),
    "redirect": (manners.status(302, Location="http://127.0.0.1:1/"), "answered 302; redirects are not followed"),
    "permanent redirect": (manners.status(308, Location="http://127.0.0.1:1/"), "redirects are not followed"),
    "closes early": (manners.close_early, "closed the connection without an answer"),
    "resets": (manners.reset, "closed the connection without an answer"),
    "closes within the head": (manners.close_within_head, ""),
    "garbage": (manners.garbage, "did not answer in proper HTTP"),
    "another protocol": (manners.no_http, "did not answer in proper HTTP"),
    "endless head": (manners.flood_head, "did not answer in proper HTTP"),
    "endless 100 Continue": (manners.flood_of_continues, "too large a head"),
    "binary": (manners.binary_body, "answered 500"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_answer_is_a_failed_try_and_says_why(name: str, receive: Receive, told: Settings) -> None:
    manner, why = BAD[name]
    told(WEBHOOK_MAX_RETRIES=0)
    endpoint(receive(manner).url, "job.completed")
    completed()
    round_of_sending()
    (delivery,) = deliveries()
    if name == "closes within the head":  # as much of a head as there was said 200
        assert (delivery.status, delivery.attempts) == ("DELIVERED", 1)
        return
    assert (delivery.status, delivery.attempts) == ("FAILED", 1)
    assert why in delivery.error
