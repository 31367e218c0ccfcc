"""Queries on the queue and the workers, along partial indexes. `live_counts` counts all jobs."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from django.db.models import Avg, Case, Count, F, FloatField, Min, Q, QuerySet, Sum, Value, When
from django.db.models.functions import Cast, Now

from jobs.conf import conf
from jobs.models import Gate, Job, JobMinute, Lease, LeaseKind, Worker, WorkerState
from jobs.models.expressions import is_one_of
from jobs.models.job import RARE_STATUSES, JobQuerySet
from jobs.models.worker import heartbeat_timeout
from jobs.policies.concurrency import Flow, InUse
from jobs.states import Status

SHOW_SILENT_SEC = 3600  # how long a worker without heartbeats is still shown
FLOW_COLUMNS = ("tenant", "job_type", "resource", "addon_id")
BLOCKED_TARGETS_LIMIT = 1000  # the count of blocked targets stops here
SILENT = "SILENT"  # the state of a worker without a recent heartbeat, whatever its row has


@dataclass(frozen=True)
class WorkerCounts:
    """The number of workers by state, and the slots of those that send heartbeats."""

    states: dict[str, int]
    slots: int
    busy: int
    stuck: int


class ActiveJobs(NamedTuple):
    """Jobs of one flow that one process of a worker runs; `process` is empty for offers and direct calls."""

    flow: Flow
    process: str
    jobs: int
    expected_sec: float | None  # the mean of their `expected_duration_sec`
    progress: float | None
    started_at: datetime | None  # of the first start; of an offer None
    resumed: int  # those that were claimed more than once: since their first start they have waited, too


def get_oldest_waiting_job() -> Job | None:
    """Return the oldest of the jobs that wait for a slot or for their target, not for their time."""
    ready = Job.objects.filter(gate=Gate.READY)
    in_lanes = Job.objects.in_lanes().filter(lane__isnull=False)
    oldest: list[tuple[datetime, UUID]] = []
    for waiting in (ready.filter(remote=False), ready.filter(remote=True), in_lanes):  # one index for each
        oldest += waiting.order_by("created_at", "id").values_list("created_at", "id")[:1]
    return Job.objects.filter(pk=min(oldest)[1]).first() if oldest else None


def running_jobs() -> JobQuerySet:
    """Return the running jobs, the one that started first at the top."""
    running = Job.objects.running().select_related("run").order_by("run__started_at")
    return running.defer("params", "checkpoint", "run__artifacts")


def blocking_jobs() -> JobQuerySet:
    """Return the jobs that block their target until an operator acts."""
    return Job.objects.filter(holds_lane=True, status__in=[Status.PAUSED, Status.FAILED]).order_by("lane_id")


def unhandled_failures() -> Q:
    """Return the condition of failed jobs that were neither retried nor resolved, along their partial index."""
    failed = is_one_of("status", RARE_STATUSES) & Q(status=Status.FAILED)
    return failed & Q(resolved_at__isnull=True, retried_by__isnull=True)


def list_workers() -> list[Worker]:
    """Return the workers that have not stopped, those without recent heartbeats too, by name."""
    return list(online_workers().order_by("name", "-id"))


def online_workers() -> QuerySet[Worker]:
    """Return the workers that have not stopped and sent a heartbeat within SHOW_SILENT_SEC."""
    oldest_shown = Now() - timedelta(seconds=max(SHOW_SILENT_SEC, 2 * conf.LEASE_SEC))
    return Worker.objects.filter(heartbeat_at__gt=oldest_shown).exclude(state=WorkerState.STOPPED)


def list_active_jobs() -> list[ActiveJobs]:
    """Return what uses the limits, as a claim counts it: active jobs, and granted leases of direct calls."""
    direct = Lease.objects.filter(kind=LeaseKind.DIRECT, ended_at__isnull=True, granted_at__isnull=False)
    active = Job.objects.active().order_by().values_list(*FLOW_COLUMNS, "lease_owner")
    active = active.annotate(
        Count("pk"),
        Avg("expected_duration_sec"),
        Avg("progress"),
        Min("dispatched_at"),
        resumed=Count("pk", filter=Q(fence__gt=F("attempt"))),
    )
    unknown = Cast(Value(None), FloatField())
    calls = direct.order_by().values_list(*FLOW_COLUMNS, "owner")
    calls = calls.annotate(Count("pk"), expected=unknown, progress=unknown, started=Min("granted_at"), resumed=Value(0))
    rows = active.union(calls, all=True).order_by()
    return [
        ActiveJobs(Flow(*flow), (owner or "").rpartition("#")[0], jobs, expected, progress, started_at, resumed)
        for *flow, owner, jobs, expected, progress, started_at, resumed in rows
    ]


def count_in_use() -> InUse:
    """Count the active jobs and direct calls by the keys of limits."""
    return InUse((active.flow, active.jobs) for active in list_active_jobs())


def count_recovered(within: timedelta, tenant: str | None = None) -> int:
    """Count the jobs that lease recovery failed within this time."""
    minutes = JobMinute.objects.filter(minute__gt=Now() - within)
    if tenant is not None:
        minutes = minutes.filter(tenant=tenant)
    count: int | None = minutes.aggregate(total=Sum("recovered"))["total"]
    return count or 0


def count_expired_leases(tenant: str | None = None) -> int:
    """Count the running jobs whose lease has expired; recovery acts GRACE_SEC later."""
    expired = Job.objects.active().running().filter(lease_expires_at__lt=Now())
    return (expired if tenant is None else expired.filter(tenant=tenant)).count()


def count_blocked_targets(tenant: str | None = None) -> int:
    """Count the targets that wait for an operator, up to BLOCKED_TARGETS_LIMIT."""
    blocking = blocking_jobs() if tenant is None else blocking_jobs().filter(tenant=tenant)
    return blocking[:BLOCKED_TARGETS_LIMIT].count()


def count_workers(tenant: str | None = None) -> WorkerCounts:
    """Count the workers of `online_workers` by state, and sum their slots, in one query.

    With `tenant`, only those that serve it: workers of all tenants, and its own.
    """
    state = Case(When(heartbeat_at__gt=Now() - heartbeat_timeout(), then=F("state")), default=Value(SILENT))
    columns = ("state_now", "slots", "busy", "stuck", "serves__tenant")
    online = online_workers().order_by().annotate(state_now=state)
    rows = [
        row
        for row in online.values_list(*columns, named=True)
        if tenant is None or row.serves__tenant in (None, tenant)
    ]
    names = [*map(str, (WorkerState.RUNNING, WorkerState.QUIET, WorkerState.STOPPING)), SILENT]
    states = Counter(row.state_now for row in rows)
    beating = [row for row in rows if row.state_now != SILENT]
    sums = {name: sum(getattr(row, name) for row in beating) for name in ("slots", "busy", "stuck")}
    return WorkerCounts(dict.fromkeys(names, 0) | states, **sums)
