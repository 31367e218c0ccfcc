"""Expose the queue to Prometheus, in its text format or as OpenMetrics.

Live jobs are counted along partial indexes, the rest is summed from the rollup. A counter never decreases: it is read
from the database alone, and neither retention nor compaction of the rollup changes its sum. Every declared series
starts at 0: a counter that appears with its first increment does not show that increment.

Only declared names have a series of their own, so their number stays bounded. Names in the code and in the settings
are declared: a series changes its label with a deployment, not by itself.

Other apps have metrics of their own: the method `collect_metrics(tenant)` of their AppConfig.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import NamedTuple

from django.apps import apps
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics import exposition as openmetrics
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from jobs import version
from jobs.conf import conf
from jobs.models.rollup import BUCKETS_SEC
from jobs.policies.admission import State
from jobs.registry import registry
from jobs.services.admission import get_state as get_admission_state
from jobs.states import LIVE, TERMINAL, Status
from jobs.stats import live_counts, queries
from jobs.stats.live_counts import JobCounts

TEXT_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
OTHER = "other"
MAX_ADDONS = 100

Labels = tuple[str, ...]
Values = defaultdict[Labels, float]


class Exposition(NamedTuple):
    body: bytes
    content_type: str


def render(tenant: str | None = None, *, as_openmetrics: bool = False) -> Exposition:
    """Render the metrics of one tenant's jobs and of the workers that serve it, or of all."""
    registry = CollectorRegistry()
    if as_openmetrics:  # which prescribes how a bucket's bound is written: "60.0"
        registry.register(JobsCollector(tenant, format_bound=floatToGoString))
        return Exposition(openmetrics.generate_latest(registry), openmetrics.CONTENT_TYPE_LATEST)
    registry.register(JobsCollector(tenant))
    return Exposition(generate_latest(registry), TEXT_CONTENT_TYPE)


def format_plain(bound: float) -> str:
    """Write a bucket's bound as the text format always showed it: 60, not 60.0."""
    return "+Inf" if math.isinf(bound) else f"{bound:g}"


@dataclass(frozen=True)
class JobsCollector(Collector):
    """Collect the metrics of one tenant's jobs, or of all."""

    tenant: str | None = None
    format_bound: Callable[[float], str] = format_plain

    def collect(self) -> Iterator[Metric]:
        counts = live_counts.count_jobs(self.tenant)
        # Add up live and finished jobs: one statement read both.
        values = _zeros(declared_types())
        types, resources = job_type_names(), declared_resources()
        for row in counts.all_rows:
            values[_label(row.resource, resources), _label(types.get(row.job_type), types)] += row.jobs
        yield _counter("jobs_enqueued_total", "Jobs submitted, retries too.", ["resource", "job_type"], values)
        yield from self._collect_finished(counts)
        yield from _collect_live(counts)
        expired = "Running jobs whose worker has missed its heartbeat."
        yield GaugeMetricFamily("jobs_expired_leases", expired, value=queries.count_expired_leases(self.tenant))
        blocked = f"Targets that a paused or failed job blocks; up to {queries.BLOCKED_TARGETS_LIMIT} are counted."
        yield GaugeMetricFamily("jobs_blocked_targets", blocked, value=queries.count_blocked_targets(self.tenant))
        yield from _collect_workers(self.tenant)
        if self.tenant is None:  # all tenants share the machine
            yield from _collect_admission()
        for config in apps.get_app_configs():
            if collect := getattr(config, "collect_metrics", None):
                yield from collect(self.tenant)
        yield gauge("jobs_build_info", "The version of this process.", ["version"], {(version.__version__,): 1})

    def _collect_finished(self, counts: JobCounts) -> Iterator[Metric]:
        finished, retries, recovered = _zeros(), _zeros(), _zeros([()])
        for resource, job_type in declared_types():
            retries[job_type,] = 0
            for outcome in TERMINAL:
                finished[resource, job_type, str(outcome)] = 0
        waited: defaultdict[Labels, Observations] = defaultdict(Observations)
        ran: defaultdict[Labels, Observations] = defaultdict(Observations)
        types, resources = job_type_names(), declared_resources()
        for row in counts.finished:
            job_type = _label(types.get(row.job_type), types)
            finished[_label(row.resource, resources), job_type, row.status] += row.jobs
            retries[job_type,] += row.retried
            recovered[()] += row.recovered
            if row.wait_bucket >= 0:
                waited[job_type,].add(row.wait_bucket, row.jobs, row.wait_sec)
                ran[job_type,].add(row.run_bucket, row.jobs, row.run_sec)
        yield _counter("jobs_finished_total", "Finished jobs.", ["resource", "job_type", "outcome"], finished)
        yield _counter("jobs_retries_total", "Failed jobs that were retried automatically.", ["job_type"], retries)
        lost = "Jobs that failed because their worker stopped sending heartbeats."
        yield _counter("jobs_recovered_total", lost, [], recovered)
        yield self._histogram("jobs_wait_seconds", "From submission to start.", waited)
        yield self._histogram("jobs_attempt_duration_seconds", "From start to finish.", ran)

    def _histogram(self, name: str, documentation: str, series: Mapping[Labels, Observations]) -> Metric:
        family = HistogramMetricFamily(name, documentation, labels=["job_type"])
        bounds = [self.format_bound(bound) for bound in (*BUCKETS_SEC, math.inf)]
        for labels, observations in sorted(series.items()):
            counts = accumulate(observations.counts)
            family.add_metric(labels, list(zip(bounds, counts, strict=True)), observations.total_sec)
        return family


@dataclass
class Observations:
    """Durations by bucket; the last bucket is open-ended."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BUCKETS_SEC) + 1))
    total_sec: float = 0.0

    def add(self, bucket: int, count: int, total_sec: float) -> None:
        self.counts[bucket] += count
        self.total_sec += total_sec


def _collect_live(counts: JobCounts) -> Iterator[Metric]:
    resources = declared_resources()
    statuses = _zeros((str(status),) for status in LIVE)
    ready, oldest_sec, running = (_zeros((resource,) for resource in resources) for _ in range(3))
    queued_rows = [row for row in counts.live if row.is_queued]
    addons = {"", *declared_addons(row.addon_id for row in queued_rows if row.addon_id)}
    queued = _zeros((addon,) for addon in addons)
    for row in counts.live:
        resource = _label(row.resource, resources)
        statuses[row.status,] += row.jobs
        if row.is_ready:
            ready[resource,] += row.jobs
            oldest_sec[resource,] = max(oldest_sec[resource,], counts.age_sec(row.since))
        if row.status == Status.RUNNING:
            running[resource,] += row.jobs
    for row in queued_rows:
        queued[_label(row.addon_id, addons),] += row.jobs
    yield gauge("jobs_live", "Jobs that have not finished.", ["status"], statuses)
    yield gauge("jobs_ready", "Jobs that could start now.", ["resource"], ready)
    waiting = "How long the oldest ready job has been ready."
    yield gauge("jobs_oldest_ready_age_seconds", waiting, ["resource"], oldest_sec)
    yield gauge("jobs_running", "Running jobs.", ["resource"], running)
    yield gauge("jobs_queued", "Jobs that have not started.", ["addon"], queued)


def _collect_workers(tenant: str | None) -> Iterator[Metric]:
    workers = queries.count_workers(tenant)
    states: dict[Labels, float] = {(state,): count for state, count in workers.states.items()}
    yield gauge("jobs_workers", "Workers; SILENT: no heartbeat for LEASE_SEC.", ["state"], states)
    yield GaugeMetricFamily("jobs_worker_slots", "Slots of the workers that send heartbeats.", value=workers.slots)
    yield GaugeMetricFamily("jobs_worker_slots_busy", "Slots with a running job.", value=workers.busy)
    stuck = "Slots whose handler ignores its stop request."
    yield GaugeMetricFamily("jobs_worker_slots_stuck", stuck, value=workers.stuck)


def _collect_admission() -> Iterator[Metric]:
    admission = get_admission_state()
    states: dict[Labels, float] = {(str(state),): admission is not None and admission.state == state for state in State}
    yield gauge("jobs_admission_state", "1 for the state of the machine; all 0 without admission.", ["state"], states)
    capacity = "Cost units that may run at once now; absent without admission."
    yield GaugeMetricFamily(
        "jobs_admission_capacity", capacity, value=None if admission is None else admission.capacity
    )
    cost = "Cost units of running, offered and admitted work; absent without admission."
    yield GaugeMetricFamily(
        "jobs_admission_cost_in_use", cost, value=None if admission is None else admission.cost_in_use
    )


def _zeros(series: Iterable[Labels] = ()) -> Values:
    return defaultdict(float, dict.fromkeys(series, 0.0))


def _counter(name: str, documentation: str, labels: Sequence[str], values: Mapping[Labels, float]) -> Metric:
    return _add_values(CounterMetricFamily(name, documentation, labels=labels), values)


def gauge(name: str, documentation: str, labels: Sequence[str], values: Mapping[Labels, float]) -> Metric:
    """Return a gauge with a sample for each tuple of label values."""
    return _add_values(GaugeMetricFamily(name, documentation, labels=labels), values)


def _add_values(family: CounterMetricFamily | GaugeMetricFamily, values: Mapping[Labels, float]) -> Metric:
    for label_values, value in sorted(values.items()):
        family.add_metric(label_values, value)
    return family


def _label(name: str | None, names: Container[str]) -> str:
    """Return the name if it is declared, else OTHER."""
    return name if name is not None and name in names else OTHER


def job_type_names() -> dict[str, str]:
    """Map every name of a job type that this process knows, aliases too, to its current name."""
    handlers = [registry.get(name) for name in registry.names()]
    return {name: handler.name for handler in handlers for name in (handler.name, *handler.options.aliases)}


def declared_resources() -> set[str]:
    """Return the resources that handlers and the limits of the settings name."""
    return {"default", *(resource for resource, _ in declared_types()), *conf.LIMITS.resource}


def declared_types() -> set[tuple[str, str]]:
    """Return every job type with the resource that its handler names."""
    return {(registry.get(name).options.resource, name) for name in registry.names()}


def declared_addons(names: Iterable[str]) -> set[str]:
    """Return at most MAX_ADDONS addons, those with a limit first: addons are declared nowhere else."""
    limited = set(conf.LIMITS.addon)
    others = sorted(set(names) - limited)
    return {*limited, *others[: max(MAX_ADDONS - len(limited), 0)]}
