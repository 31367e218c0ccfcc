"""Expose the queue to Prometheus, in its text format or as OpenMetrics."""

from __future__ import annotations

from typing import NamedTuple

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.utils import floatToGoString

from jobs.metrics.collector import JobsCollector

TEXT_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Exposition(NamedTuple):
    body: bytes
    content_type: str


def render(tenant: str | None = None, *, as_openmetrics: bool = False) -> Exposition:
    """Render the metrics of one tenant's jobs, or of all; workers serve all tenants."""
    registry = CollectorRegistry()
    if as_openmetrics:  # which prescribes how a bucket's bound is written: "60.0"
        registry.register(JobsCollector(tenant, format_bound=floatToGoString))
        return Exposition(openmetrics.generate_latest(registry), openmetrics.CONTENT_TYPE_LATEST)
    registry.register(JobsCollector(tenant))
    return Exposition(generate_latest(registry), TEXT_CONTENT_TYPE)
