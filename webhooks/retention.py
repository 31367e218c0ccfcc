"""Retention: messages and deliveries are deleted with their job or group, which stays while one of them is pending."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from uuid import UUID

from django.db.models import QuerySet

from jobs import clock, db
from jobs.conf import conf
from webhooks.models import DeliveryStatus, WebhookAttempt, WebhookDelivery, WebhookMessage

BATCH_SIZE = 500


def veto_deletion(ids: Sequence[UUID]) -> Iterable[UUID]:
    """Return those of these jobs or groups that have a message to fan out or a pending delivery."""
    messages, pending = WebhookMessage.objects, WebhookDelivery.objects.filter(status=DeliveryStatus.PENDING)
    return {
        *messages.of_jobs(ids).filter(fanned_out_at__isnull=True).values_list("job_id", flat=True),
        *messages.filter(group_id__in=ids, fanned_out_at__isnull=True).values_list("group_id", flat=True),
        *pending.filter(job_id__in=ids).values_list("job_id", flat=True),
        *pending.filter(message__group_id__in=ids).values_list("message__group_id", flat=True),
    }


def delete_with(ids: Sequence[UUID]) -> None:
    """Delete the messages of jobs or groups that are being deleted in this transaction."""
    _delete_messages(WebhookMessage.objects.of_jobs(ids))
    _delete_messages(WebhookMessage.objects.filter(group_id__in=ids))


def delete_old_tests() -> object:
    """Delete one batch of test deliveries older than RETENTION_DAYS: they belong to no job. Return the number."""
    if conf.RETENTION_DAYS is None:
        return "off"
    before = clock.now() - timedelta(days=conf.RETENTION_DAYS)
    old = WebhookMessage.objects.filter(at__lt=before, job_id__isnull=True, group_id__isnull=True)
    old = old.filter(fanned_out_at__isnull=False).exclude(deliveries__status=DeliveryStatus.PENDING)
    with db.atomic():
        return _delete_messages(old.order_by("pk")[:BATCH_SIZE])


def _delete_messages(messages: QuerySet[WebhookMessage]) -> int:
    """Delete messages and their deliveries, with one statement for each table: `QuerySet.delete` loads each row."""
    ids, using = list(messages.values_list("pk", flat=True)), db.alias()
    if ids:
        deliveries = WebhookDelivery.objects.filter(message_id__in=ids)
        WebhookAttempt.objects.filter(delivery__in=deliveries)._raw_delete(using)
        deliveries._raw_delete(using)
        WebhookMessage.objects.filter(pk__in=ids)._raw_delete(using)
    return len(ids)
