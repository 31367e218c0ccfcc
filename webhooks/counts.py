"""How a job's deliveries stand: `{pending, delivered, failed}`, for many jobs at once."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID

from django.db.models import Count

from webhooks import subscriptions
from webhooks.models import WebhookDelivery, WebhookMessage


def of_jobs(ids: Sequence[UUID]) -> dict[UUID, dict[str, int]]:
    """Of those that have any. Deliveries that fan-out is about to make count as pending."""
    found: dict[UUID, dict[str, int]] = {}
    rows = WebhookDelivery.objects.filter(job_id__in=ids).order_by()
    for job_id, status, number in rows.values_list("job_id", "status").annotate(number=Count("pk")):
        _count(found, job_id, status.lower(), number)
    for job_id, number in about_to_be_made(ids).items():
        _count(found, job_id, "pending", number)
    return found


def about_to_be_made(ids: Sequence[UUID]) -> dict[UUID, int]:
    """How many deliveries the messages of these jobs that are not fanned out will become."""
    waiting = WebhookMessage.objects.of_jobs(ids).filter(fanned_out_at__isnull=True).defer("body")
    messages = list(waiting.order_by())
    recipients = subscriptions.recipients(messages) if messages else {}
    found: dict[UUID, int] = {}
    for message in messages:
        if number := len(recipients[message.pk]):
            found[message.job_id] = found.get(message.job_id, 0) + number
    return found


def _count(found: dict[UUID, dict[str, int]], job_id: UUID, status: str, number: int) -> None:
    found.setdefault(job_id, {"pending": 0, "delivered": 0, "failed": 0})[status] += number
