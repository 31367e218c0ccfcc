"""Endpoints, jobs that end, and rounds of sending: what most tests of webhooks are made of."""

from __future__ import annotations

from typing import Any

from django.db import transaction

from jobs import services as jobs
from jobs.models import Job
from jobs.outcomes import Completed
from tests import executor, sample_jobs
from webhooks import bundles, fanout, services
from webhooks.models import WebhookBundle, WebhookDelivery, WebhookEndpoint, WebhookMessage
from webhooks.sender import Sender

TYPE = sample_jobs.anything.name
ANYWHERE = "https://example.org/hook"


def endpoint(url: str = ANYWHERE, *events: str, tenant: str = "default", **fields: Any) -> WebhookEndpoint:
    made, _secret = services.create(url, list(events) or ["*"], tenant=tenant)
    if fields:
        WebhookEndpoint.objects.filter(pk=made.pk).update(**fields)
    return services.get(made.pk)


def enqueued(**said: Any) -> Job:
    return jobs.enqueue(TYPE, **said)


def completed(**said: Any) -> Job:
    job = executor.take(enqueued(**said))
    executor.finish(job, Completed({"result": 1}))
    job.refresh_from_db()
    return job


def failed_job(**said: Any) -> Job:
    return executor.fail(executor.take(enqueued(**said)))


def handed_out() -> int:
    """Hand out all that is owed, to whomever; how many messages that were."""
    number = 0
    for lane in fanout._owed_to():
        while batch := fanout.hand_out(lane):
            number += batch
    return number


def round_of_sending() -> Sender:
    """Hand out and try whatever is due."""
    sender = Sender()
    sender.one_round()
    return sender


def deliveries(**filters: Any) -> list[WebhookDelivery]:
    return list(WebhookDelivery.objects.filter(**filters).select_related("message").order_by("pk"))


def unpacked() -> None:
    """Every bundle becomes the messages that it stands for."""
    for lane in set(WebhookBundle.objects.values_list("audience_id", flat=True)):
        with transaction.atomic():
            while bundles.unpack(lane):
                pass


def owed() -> list[tuple[str, Any]]:
    """Event and job of every message, oldest first."""
    unpacked()
    return list(WebhookMessage.objects.order_by("pk").values_list("event", "job_id"))
