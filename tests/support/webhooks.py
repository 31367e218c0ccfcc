"""Create endpoints, finish jobs and send deliveries in tests of webhooks."""

from __future__ import annotations

from typing import Any

from jobs.models import Job
from jobs.outcomes import Completed
from jobs.services import jobs as jobs
from tests.sample_app import job_types
from tests.support import executor
from webhooks import fanout, services
from webhooks.models import WebhookDelivery, WebhookEndpoint, WebhookMessage
from webhooks.sender import Sender

TYPE = job_types.anything.name
ANYWHERE = "https://example.org/hook"


def create_endpoint(url: str = ANYWHERE, *events: str, tenant: str = "default", **fields: Any) -> WebhookEndpoint:
    enabled = fields.pop("enabled", True)
    made, _secret = services.create(url, list(events) or ["*"], tenant=tenant, enabled=enabled)
    if fields:
        WebhookEndpoint.objects.filter(pk=made.pk).update(**fields)
    return services.get(made.pk)


def enqueue_job(**fields: Any) -> Job:
    return jobs.enqueue(TYPE, **fields)


def complete_job(**fields: Any) -> Job:
    job = executor.claim(enqueue_job(**fields))
    executor.finish(job, Completed({"result": 1}))
    job.refresh_from_db()
    return job


def fail_job(**fields: Any) -> Job:
    return executor.fail(executor.claim(enqueue_job(**fields)))


def fan_out_all() -> int:
    """Fan out all messages; return how many."""
    number = 0
    while batch := fanout.fan_out():
        number += batch
    return number


def send_round() -> Sender:
    """Fan out, and try whatever is due."""
    sender = Sender()
    sender.run_once()
    return sender


def list_deliveries(**filters: Any) -> list[WebhookDelivery]:
    return list(WebhookDelivery.objects.filter(**filters).select_related("message").order_by("message_id", "pk"))


def list_messages() -> list[tuple[str, Any]]:
    """Event and job of every message, oldest first."""
    return list(WebhookMessage.objects.order_by("pk").values_list("event", "job_id"))
