"""Expose the webhooks to Prometheus; `jobs.metrics` collects them."""

from __future__ import annotations

from collections.abc import Iterator

from django.db.models import Count, Q, QuerySet
from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from jobs.metrics import Labels, gauge
from jobs.models.expressions import SqlLiteral
from webhooks import services
from webhooks.circuit_breaker import FAILURE_THRESHOLD
from webhooks.models import DeliveryStatus, WebhookMessage

COUNT_LIMIT = 10_000  # counts stop here


def collect(tenant: str | None) -> Iterator[Metric]:
    """Count the deliveries and endpoints of one tenant, or of all, along partial indexes."""
    messages = WebhookMessage.objects.filter(fanned_out_at__isnull=True)
    if tenant is not None:
        messages = messages.filter(tenant=tenant)
    deliveries = services.deliveries_of(tenant)
    pending, failed = (
        deliveries.filter(status=SqlLiteral(str(status))) for status in (DeliveryStatus.PENDING, DeliveryStatus.FAILED)
    )
    stages: dict[Labels, float] = {("fan_out",): _count(messages), ("delivery",): _count(pending)}
    waiting = f"Events that wait for their deliveries, and deliveries that wait for an attempt; up to {COUNT_LIMIT}."
    yield gauge("jobs_webhooks_pending", waiting, ["stage"], stages)
    given_up = f"Deliveries that failed and were not resent; up to {COUNT_LIMIT}."
    yield GaugeMetricFamily("jobs_webhooks_failed", given_up, value=_count(failed))
    is_open = Q(enabled=True, failures__gte=FAILURE_THRESHOLD)
    endpoints = services.of(tenant).aggregate(
        circuits_open=Count("pk", filter=is_open), disabled=Count("pk", filter=Q(enabled=False))
    )
    failing = "Enabled endpoints that keep failing: one delivery is tried from time to time, the others wait."
    yield GaugeMetricFamily("jobs_webhook_circuits_open", failing, value=endpoints["circuits_open"])
    yield GaugeMetricFamily("jobs_webhook_endpoints_disabled", "Disabled endpoints.", value=endpoints["disabled"])


def _count(rows: QuerySet) -> int:
    return rows.order_by()[:COUNT_LIMIT].count()
