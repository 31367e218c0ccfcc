"""Sending beside the work: in real workers, which die and hang as they please, and in single ticks."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
from django.core.management import call_command

from jobs.models import Job, JobEvent
from jobs.services import jobs as jobs
from jobs.states import Status
from tests.support import webhook_receiver as behaviours
from tests.support.webhook_receiver import Receiver
from tests.support.webhooks import complete_job, create_endpoint, list_deliveries
from tests.support.worker_processes import FAST_SETTINGS, Fleet, wait_until, wait_until_all_ended
from tests.webhooks.conftest import Settings
from webhooks import services
from webhooks.models import WebhookDelivery

pytestmark = pytest.mark.django_db(transaction=True)
Receive = Callable[..., Receiver]
QUICK = {
    **FAST_SETTINGS,
    "WEBHOOK_ALLOW_PRIVATE": True,
    "WEBHOOK_TIMEOUT_SEC": 2,
    "WEBHOOK_BACKOFF_SEC": 0.2,
    "POLL_SEC": 0.2,
}


def all_delivered(number: int) -> Callable[[], bool]:
    return lambda: WebhookDelivery.objects.filter(status="DELIVERED").count() == number


def test_a_worker_delivers_what_its_jobs_did(fleet: Fleet, receive: Receive) -> None:
    there = receive()
    _, secret = services.create(there.url, ["job.*"])
    fleet.start("--concurrency=4", settings=QUICK)
    ids = [jobs.enqueue("sample.add", {"a": 1, "b": 2}).pk for _ in range(5)]
    wait_until(all_delivered(15), what=lambda: fleet.logs()[-5000:])
    bodies = [request.verify(secret) for request in there.seen]
    assert sorted((item["data"]["id"], item["type"]) for item in bodies) == sorted(
        (str(pk), event) for pk in ids for event in ("job.queued", "job.started", "job.completed")
    )


def test_a_sender_that_is_killed_is_followed_by_another(fleet: Fleet, receive: Receive) -> None:
    there = receive(behaviours.hang)
    create_endpoint(there.url, "job.completed")
    complete_job()
    victim = fleet.start(settings={**QUICK, "WEBHOOK_TIMEOUT_SEC": 60})
    wait_until(lambda: there.seen)
    victim.kill()
    there.behaviour = behaviours.respond(200)
    fleet.start(settings=QUICK)
    wait_until(all_delivered(1))
    assert len({(request.id, request.body) for request in there.seen}) == 1
    assert list_deliveries()[0].attempts == 1


def test_slow_and_dead_receivers_delay_neither_jobs_nor_recovery(fleet: Fleet, receive: Receive) -> None:
    """With a timeout of a minute, whoever waited for a receiver would not be done in time."""
    slow = receive(behaviours.hang)
    for _ in range(20):
        create_endpoint(slow.url, "*")
    patient = {**QUICK, "WEBHOOK_TIMEOUT_SEC": 60}
    worker = fleet.start("--concurrency=2", settings=patient)
    first = jobs.enqueue("sample.add", {"a": 1, "b": 2})
    wait_until(lambda: slow.seen, what=lambda: fleet.logs()[-5000:])
    jobs.enqueue_many([{"job_type": "sample.add", "params": {"a": 1, "b": 2}}] * 50)
    wait_until_all_ended(30, fleet)
    lost = Job.objects.get(pk=jobs.enqueue("sample.work", {"seconds": 60}, max_retries=0).pk)
    wait_until(lambda: Job.objects.filter(pk=lost.pk, status=Status.RUNNING).exists())
    other = fleet.start("--types=sample.rare", settings=patient)
    worker.kill()
    wait_until(lambda: Job.objects.filter(pk=lost.pk, status=Status.FAILED).exists(), what=lambda: other.output[-5000:])
    assert JobEvent.objects.get(job_id=lost.pk, kind="FAILED").reason == "lease expired"
    assert not WebhookDelivery.objects.filter(status="DELIVERED").exists()
    assert first


def test_a_worker_ends_in_time_although_a_receiver_hangs(fleet: Fleet, receive: Receive) -> None:
    there = receive(behaviours.hang)
    create_endpoint(there.url, "job.completed")
    complete_job()
    worker = fleet.start(settings={**QUICK, "WEBHOOK_TIMEOUT_SEC": 600})
    wait_until(lambda: there.seen)
    worker.terminate()
    assert worker.wait_for_end() == 0


def test_without_housekeeping_a_worker_sends_nothing(fleet: Fleet, receive: Receive) -> None:
    there = receive()
    create_endpoint(there.url, "job.completed")
    fleet.start("--no-housekeeping", settings=QUICK)
    jobs.enqueue("sample.add", {"a": 1, "b": 2})
    wait_until_all_ended(30, fleet)
    assert (there.connections, len(list_deliveries())) == (0, 0)


def test_a_tick_delivers_one_bounded_round(receive: Receive, configure: Settings) -> None:
    there = receive()
    create_endpoint(there.url, "job.completed")
    for _ in range(10):
        complete_job()
    out = io.StringIO()
    call_command("tick", stdout=out)
    assert "webhooks: 10 attempts" in out.getvalue()
    assert len(there.seen) == 10


def test_a_tick_waits_no_longer_than_a_try_may_take(receive: Receive, configure: Settings) -> None:
    there = receive(behaviours.hang)
    configure(WEBHOOK_TIMEOUT_SEC=0.5)
    create_endpoint(there.url, "job.completed")
    for _ in range(100):
        complete_job()
    out: Any = io.StringIO()
    call_command("tick", stdout=out)
    assert "tried" in out.getvalue()
    assert 0 < len(there.seen) < 400
    assert not WebhookDelivery.objects.filter(lease_token__isnull=False).exists()
