"""Deliveries are deleted with their job; a job is kept while a message or delivery of it is pending."""

from __future__ import annotations

from datetime import timedelta

import pytest

from jobs import clock
from jobs.engine.maintenance import runner
from jobs.engine.maintenance.retention import PrunePass
from jobs.models import Job, JobGroup
from jobs.services import groups
from tests.factories import WebhookAttemptFactory, WebhookDeliveryFactory, WebhookMessageFactory
from tests.support import executor
from tests.support.webhooks import TYPE, complete_job, create_endpoint, fan_out_all, list_deliveries
from tests.webhooks.conftest import Settings
from webhooks import services
from webhooks.models import WebhookAttempt, WebhookDelivery, WebhookMessage

pytestmark = pytest.mark.django_db


def prune() -> None:
    """Prune as if everything had ended long ago."""
    PrunePass(timedelta(days=-1)).run()


def test_a_job_with_a_pending_message_or_delivery_is_never_pruned() -> None:
    create_endpoint("https://example.org/", "job.completed")
    job = complete_job()
    prune()
    assert Job.objects.filter(pk=job.pk).exists()
    fan_out_all()
    prune()
    assert Job.objects.filter(pk=job.pk).exists()


@pytest.mark.parametrize("status", ["DELIVERED", "FAILED"])
def test_messages_and_deliveries_are_deleted_with_their_job(status: str) -> None:
    create_endpoint("https://example.org/", "job.completed")
    complete_job()
    fan_out_all()
    WebhookDelivery.objects.update(status=status, next_try_at=None)
    WebhookAttemptFactory.create(delivery=list_deliveries()[0])
    prune()
    assert not Job.objects.exists()
    for model in (WebhookMessage, WebhookDelivery, WebhookAttempt):
        assert not model.objects.exists(), model


def test_a_group_is_kept_and_deleted_likewise() -> None:
    create_endpoint("https://example.org/", "group.finished")
    groups.create([{"job_type": TYPE}])
    claimed_job = executor.claim_next()
    assert claimed_job is not None
    executor.complete(claimed_job)
    prune()
    assert JobGroup.objects.exists()
    fan_out_all()
    WebhookDelivery.objects.update(status="DELIVERED", next_try_at=None)
    prune()
    assert not JobGroup.objects.exists()
    assert not WebhookMessage.objects.exists()


def test_test_deliveries_are_deleted_by_their_own_age(configure: Settings) -> None:
    endpoint = create_endpoint()
    old = WebhookMessageFactory.create(at=clock.now() - timedelta(days=40), event="webhook.test")
    WebhookDeliveryFactory.create(endpoint=endpoint, message=old)
    services.send_test(endpoint.pk)
    task = next(task for task in runner.list_tasks() if task.name == "webhook tests")
    assert task.run() == "off"
    configure(RETENTION_DAYS=30)
    assert task.run() == 0  # still pending
    WebhookDelivery.objects.update(status="FAILED", next_try_at=None)
    assert task.run() == 1
    assert [delivery.event for delivery in list_deliveries()] == ["webhook.test"]
