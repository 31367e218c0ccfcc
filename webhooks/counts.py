"""How a job's deliveries stand: `{pending, delivered, failed}`, for many jobs in two statements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db.models import CharField, Count, F, Func, IntegerField, QuerySet, Sum, Value

from webhooks import bundles
from webhooks.audiences import ID_BYTES
from webhooks.models import DeliveryStatus, WebhookDelivery, WebhookMessage


def of_jobs(ids: Sequence[UUID]) -> dict[UUID, dict[str, int]]:
    """Of those that have any. What is owed and not handed out yet is pending, too."""
    found: dict[UUID, dict[str, int]] = {}
    for job_id, status, number in _handed_out(ids).union(_owed(ids), all=True).order_by():
        _counted(found, job_id)[status.lower()] += number
    for job_id, number in bundles.owed(ids).items():
        _counted(found, job_id)["pending"] += number
    return found


def _counted(found: dict[UUID, dict[str, int]], job_id: UUID) -> dict[str, int]:
    return found.setdefault(job_id, {"pending": 0, "delivered": 0, "failed": 0})


def _handed_out(ids: Sequence[UUID]) -> QuerySet[Any, Any]:
    rows = WebhookDelivery.objects.filter(job_id__in=ids).order_by()
    return rows.values_list("job_id", "status").annotate(number=Count("pk"))


def _owed(ids: Sequence[UUID]) -> QuerySet[Any, Any]:
    rows = WebhookMessage.objects.filter(job_id__in=ids, audience__isnull=False).order_by()
    said = Value(str(DeliveryStatus.PENDING), output_field=CharField())
    endpoints = Func(F("audience__endpoints"), function="length", output_field=IntegerField()) / ID_BYTES
    return rows.values("job_id").annotate(said=said, number=Sum(endpoints)).values_list("job_id", "said", "number")
