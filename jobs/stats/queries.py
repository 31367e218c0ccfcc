"""The queue in figures, read along partial indexes. `census` counts all jobs by kind."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import Case, Count, F, QuerySet, Sum, Value, When
from django.db.models.functions import Now

from jobs.conf import conf
from jobs.models import Gate, Job, JobMinute, Lease, LeaseKind, Worker, WorkerState
from jobs.models.expressions import sql_literals
from jobs.models.job import JobQuerySet
from jobs.policies.concurrency import Flow, InUse
from jobs.states import ACTIVE, Status

SILENT_SEC = 3600  # how long a worker that says nothing is still worth showing
FLOW = ("tenant", "job_type", "resource", "addon_id")
AT_WORK = tuple(sorted(ACTIVE))  # the condition of a partial index
IN_LANE = (Gate.LANE, Gate.READY)
MANY = 1000  # blocked targets are counted up to here: more than any person looks at
SILENT = "SILENT"  # a worker that was not heard of for a lease, whatever it said last


@dataclass(frozen=True)
class Workforce:
    """How many workers there are by state, and the slots of those that were heard of."""

    states: dict[str, int]
    slots: int
    busy: int
    stuck: int


def oldest_waiting() -> Job | None:
    """Of the jobs that wait for a slot or their lane (not for their time), the one that has waited longest."""
    ready = Job.objects.filter(gate=Gate.READY)
    in_lanes = Job.objects.filter(gate__in=sql_literals(IN_LANE), lane__isnull=False)
    oldest: list[tuple[datetime, UUID]] = []
    for waiting in (ready.filter(remote=False), ready.filter(remote=True), in_lanes):  # an index each
        oldest += waiting.order_by("created_at", "id").values_list("created_at", "id")[:1]
    return Job.objects.filter(pk=min(oldest)[1]).first() if oldest else None


def running() -> JobQuerySet:
    """What runs, the longest first."""
    return Job.objects.running().select_related("run").order_by("run__started_at")


def blocking() -> JobQuerySet:
    """Jobs that shut their lane until a person mends them."""
    return Job.objects.filter(holds_lane=True, status__in=[Status.PAUSED, Status.FAILED]).order_by("lane_id")


def workers() -> list[Worker]:
    """Workers that live, and those that fell silent not long ago."""
    return list(present_workers().order_by("name", "-id"))


def present_workers() -> QuerySet[Worker]:
    heard = Now() - timedelta(seconds=max(SILENT_SEC, 2 * conf.LEASE_SEC))
    return Worker.objects.filter(heartbeat_at__gt=heard).exclude(state=WorkerState.STOPPED)


def in_use() -> InUse:
    """What counts against the limits, as a claim counts it: active jobs, and leases of direct executions."""
    active = Job.objects.filter(status__in=sql_literals(AT_WORK)).order_by().values_list(*FLOW).annotate(Count("pk"))
    direct = Lease.objects.filter(kind=LeaseKind.DIRECT)
    leases = direct.filter(ended_at__isnull=True, granted_at__isnull=False)
    held = leases.order_by().values_list(*FLOW).annotate(Count("pk"))
    return InUse([(Flow(*row[:4]), row[4]) for row in active.union(held, all=True).order_by()])


def recovered(within: timedelta, tenant: str | None = None) -> int:
    """How many jobs recovery ended of late."""
    lately = JobMinute.objects.filter(minute__gt=Now() - within)
    if tenant is not None:
        lately = lately.filter(tenant=tenant)
    count: int | None = lately.aggregate(found=Sum("recovered"))["found"]
    return count or 0


def expired_leases(tenant: str | None = None) -> int:
    """Running jobs whose holder has not renewed its lease; recovery takes them when the grace is over, too."""
    over = Job.objects.filter(status__in=sql_literals(AT_WORK), status=Status.RUNNING, lease_expires_at__lt=Now())
    return (over if tenant is None else over.filter(tenant=tenant)).count()


def blocked_targets(tenant: str | None = None) -> int:
    """How many targets wait for a person, up to MANY."""
    blocked = blocking() if tenant is None else blocking().filter(tenant=tenant)
    return blocked[:MANY].count()


def workforce() -> Workforce:
    """The workers that live, and those that fell silent not long ago, in one query."""
    heard = Now() - timedelta(seconds=conf.LEASE_SEC)
    speaks = Case(When(heartbeat_at__gt=heard, then=F("state")), default=Value(SILENT))
    rows = present_workers().order_by().annotate(now=speaks).values_list("now", "slots", "busy", "stuck")
    names = [*map(str, (WorkerState.RUNNING, WorkerState.QUIET, WorkerState.STOPPING)), SILENT]
    states = Counter(row[0] for row in rows)
    slots, busy, stuck = (sum(row[place] for row in rows if row[0] != SILENT) for place in (1, 2, 3))
    return Workforce(dict.fromkeys(names, 0) | states, slots, busy, stuck)
