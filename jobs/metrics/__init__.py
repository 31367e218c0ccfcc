"""What Prometheus reads. Live jobs are counted along partial indexes, the rest is summed from the rollup.

A counter never goes back: it is read from the database alone, and neither pruning nor folding changes what it sums.
"""

from __future__ import annotations

from jobs import census
from jobs.metrics import counters, gauges
from jobs.metrics.exposition import CONTENT_TYPE as CONTENT_TYPE
from jobs.metrics.exposition import Family, text


def render(tenant: str | None = None) -> str:
    """Of one tenant's jobs, or of all; workers serve all of them."""
    return text(families(tenant))


def families(tenant: str | None = None) -> list[Family]:
    counted = census.take(tenant)
    return [
        counters.enqueued(counted),
        *counters.ended(counted),
        *gauges.live(counted),
        *gauges.trouble(tenant),
        *gauges.workers(),
        gauges.build_info(),
    ]
