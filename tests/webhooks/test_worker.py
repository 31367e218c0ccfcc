"""Deliveries sent by real workers, which are killed and hang, and by single ticks."""

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
FAST_WEBHOOK_SETTINGS = {
    **FAST_SETTINGS,
    "WEBHOOK_ALLOW_PRIVATE": True,
    "WEBHOOK_TIMEOUT_SEC": 2,
    "WEBHOOK_BACKOFF_SEC": 0.2,
    "POLL_SEC": 0.2,
}


def build_delivered_check(count: int) -> Callable[[], bool]:
    return lambda: WebhookDelivery.objects.filter(status="DELIVERED").count() == count


def test_a_worker_delivers_the_events_of_its_jobs(fleet: Fleet, receive: Receive) -> None:
    receiver = receive()
    _, secret = services.create(receiver.url, ["job.*"])
    fleet.start("--concurrency=4", settings=FAST_WEBHOOK_SETTINGS)
    ids = [jobs.enqueue("sample.add", {"a": 1, "b": 2}).pk for _ in range(5)]
    wait_until(build_delivered_check(15), what=lambda: fleet.logs()[-5000:])
    bodies = [request.verify(secret) for request in receiver.seen]
    assert sorted((body["data"]["id"], body["type"]) for body in bodies) == sorted(
        (str(job_id), event) for job_id in ids for event in ("job.queued", "job.started", "job.completed")
    )


def test_dec_009_integration_the_deliveries_of_a_killed_sender_are_sent_by_another(
    fleet: Fleet, receive: Receive
) -> None:
    receiver = receive(behaviours.hang)
    create_endpoint(receiver.url, "job.completed")
    complete_job()
    victim = fleet.start(settings={**FAST_WEBHOOK_SETTINGS, "WEBHOOK_TIMEOUT_SEC": 60})
    wait_until(lambda: receiver.seen)
    victim.kill()
    receiver.behaviour = behaviours.respond(200)
    fleet.start(settings=FAST_WEBHOOK_SETTINGS)
    wait_until(build_delivered_check(1))
    assert len({(request.id, request.body) for request in receiver.seen}) == 1
    assert list_deliveries()[0].attempts == 1


def test_slow_and_dead_receivers_delay_neither_jobs_nor_recovery(fleet: Fleet, receive: Receive) -> None:
    """With a timeout of a minute, a worker that waited for a receiver would not finish in time."""
    slow = receive(behaviours.hang)
    for _ in range(20):
        create_endpoint(slow.url, "*")
    settings = {**FAST_WEBHOOK_SETTINGS, "WEBHOOK_TIMEOUT_SEC": 60}
    worker = fleet.start("--concurrency=2", settings=settings)
    first = jobs.enqueue("sample.add", {"a": 1, "b": 2})
    wait_until(lambda: slow.seen, what=lambda: fleet.logs()[-5000:])
    jobs.enqueue_many([{"job_type": "sample.add", "params": {"a": 1, "b": 2}}] * 50)
    wait_until_all_ended(30, fleet)
    lost = Job.objects.get(pk=jobs.enqueue("sample.work", {"seconds": 60}, max_retries=0).pk)
    wait_until(lambda: Job.objects.filter(pk=lost.pk, status=Status.RUNNING).exists())
    other = fleet.start("--types=sample.rare", settings=settings)
    worker.kill()
    wait_until(lambda: Job.objects.filter(pk=lost.pk, status=Status.FAILED).exists(), what=lambda: other.output[-5000:])
    assert JobEvent.objects.get(job_id=lost.pk, kind="FAILED").reason == "Scheduler crash recovery"
    assert not WebhookDelivery.objects.filter(status="DELIVERED").exists()
    assert first


def test_a_worker_ends_in_time_although_a_receiver_hangs(fleet: Fleet, receive: Receive) -> None:
    receiver = receive(behaviours.hang)
    create_endpoint(receiver.url, "job.completed")
    complete_job()
    worker = fleet.start(settings={**FAST_WEBHOOK_SETTINGS, "WEBHOOK_TIMEOUT_SEC": 600})
    wait_until(lambda: receiver.seen)
    worker.terminate()
    assert worker.wait_for_end() == 0


def test_without_housekeeping_a_worker_sends_nothing(fleet: Fleet, receive: Receive) -> None:
    receiver = receive()
    create_endpoint(receiver.url, "job.completed")
    fleet.start("--no-housekeeping", settings=FAST_WEBHOOK_SETTINGS)
    jobs.enqueue("sample.add", {"a": 1, "b": 2})
    wait_until_all_ended(30, fleet)
    assert (receiver.connections, len(list_deliveries())) == (0, 0)


def test_a_tick_delivers_one_bounded_round(receive: Receive, configure: Settings) -> None:
    receiver = receive()
    create_endpoint(receiver.url, "job.completed")
    for _ in range(10):
        complete_job()
    out = io.StringIO()
    call_command("tick", stdout=out)
    assert "webhooks: 10 attempts" in out.getvalue()
    assert len(receiver.seen) == 10


def test_a_tick_waits_no_longer_than_one_attempt_may_take(receive: Receive, configure: Settings) -> None:
    receiver = receive(behaviours.hang)
    configure(WEBHOOK_TIMEOUT_SEC=0.5)
    create_endpoint(receiver.url, "job.completed")
    for _ in range(100):
        complete_job()
    out: Any = io.StringIO()
    call_command("tick", stdout=out)
    assert "attempts" in out.getvalue()
    assert 0 < len(receiver.seen) < 400
    assert not WebhookDelivery.objects.filter(lease_token__isnull=False).exists()
