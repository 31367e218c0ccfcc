"""Deliveries stay as long as their job or group does; and that stays as long as one of them is pending."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from uuid import UUID

from django.db.models import QuerySet

from jobs import clock, db
from jobs.conf import conf
from webhooks.models import DeliveryStatus, WebhookAttempt, WebhookDelivery, WebhookMessage

BATCH = 500


def keep(ids: Sequence[UUID]) -> Iterable[UUID]:
    """Of these jobs or groups, those with a message that is not fanned out, or a delivery that is pending."""
    messages, pending = WebhookMessage.objects, WebhookDelivery.objects.filter(status=DeliveryStatus.PENDING)
    return {
        *messages.of_jobs(ids).filter(fanned_out_at__isnull=True).values_list("job_id", flat=True),
        *messages.filter(group_id__in=ids, fanned_out_at__isnull=True).values_list("group_id", flat=True),
        *pending.filter(job_id__in=ids).values_list("job_id", flat=True),
        *pending.filter(message__group_id__in=ids).values_list("message__group_id", flat=True),
    }


def go_along(ids: Sequence[UUID]) -> None:
    """These jobs or groups are being deleted, in this transaction: so are their messages."""
    _delete(WebhookMessage.objects.of_jobs(ids))
    _delete(WebhookMessage.objects.filter(group_id__in=ids))


def forget_tests() -> object:
    """Test deliveries belong to no job: they go by their own age."""
    if conf.RETENTION_DAYS is None:
        return "off"
    horizon = clock.now() - timedelta(days=conf.RETENTION_DAYS)
    old = WebhookMessage.objects.filter(at__lt=horizon, job_id__isnull=True, group_id__isnull=True)
    old = old.filter(fanned_out_at__isnull=False).exclude(deliveries__status=DeliveryStatus.PENDING)
    with db.atomic():
        return _delete(old.order_by("pk")[:BATCH])


def _delete(messages: QuerySet[WebhookMessage]) -> int:
    """Delete set by set, what refers first; `delete` would load and collect each row."""
    ids, using = list(messages.values_list("pk", flat=True)), db.alias()
    if ids:
        deliveries = WebhookDelivery.objects.filter(message_id__in=ids)
        WebhookAttempt.objects.filter(delivery__in=deliveries)._raw_delete(using)
        deliveries._raw_delete(using)
        WebhookMessage.objects.filter(pk__in=ids)._raw_delete(using)
    return len(ids)
