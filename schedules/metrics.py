"""Expose the schedules to Prometheus; `jobs.metrics` collects them."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from django.db.models import Count, Q, Value
from django.db.models.functions import Now
from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from jobs.metrics import Labels, gauge
from schedules import services
from schedules.firing import BROKEN_PREFIX
from schedules.models import LATE_SEC

MISSED_WITHIN = timedelta(days=1)


def collect(tenant: str | None) -> Iterator[Metric]:
    """Count the schedules of one tenant, or of all, along partial indexes."""
    rows = services.of(tenant).order_by()
    missed = rows.filter(missed_at__gt=Now() - MISSED_WITHIN)
    kinds = [
        found.annotate(kind=Value(kind)).values("kind").annotate(n=Count("pk")).values_list("kind", "n")
        for kind, found in (("overdue", rows.overdue()), ("missed", missed))
    ]
    counted = dict(kinds[0].union(kinds[1], all=True))  # one statement, of which each part follows its index
    late = f"Enabled schedules that are overdue by more than {LATE_SEC} seconds."
    yield GaugeMetricFamily("jobs_schedules_overdue", late, value=counted.get("overdue", 0))
    lost = "Schedules that did not fire due times within the last day, because it was too late for them."
    yield GaugeMetricFamily("jobs_schedules_missed", lost, value=counted.get("missed", 0))
    is_broken = Count("pk", filter=Q(disabled_reason__startswith=BROKEN_PREFIX))
    counts = rows.filter(enabled=False).aggregate(disabled=Count("pk"), broken=is_broken)
    broken = counts["broken"]
    causes: dict[Labels, float] = {("broken",): broken, ("other",): counts["disabled"] - broken}
    yield gauge("jobs_schedules_disabled", "Disabled schedules; broken: by the scheduler.", ["cause"], causes)
