"""The queue in figures. Live states are counted along partial indexes; ended ones are summed from the rollup."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import Count, Sum
from django.db.models.functions import Now

from jobs import db
from jobs.conf import conf
from jobs.literals import literals
from jobs.models import Gate, Job, JobMinute, Lease, Worker, WorkerState
from jobs.models.job import RARE, JobQuerySet
from jobs.policies.concurrency import Flow, InUse
from jobs.states import ACTIVE, TERMINAL, Status

SILENT_SEC = 3600  # how long a worker that says nothing is still worth showing
FLOW = ("tenant", "job_type", "resource", "addon_id")
# The conditions of partial indexes; all live states at once would be a walk over history.
WAITING, AT_WORK = (Status.PENDING, Status.QUEUED), tuple(sorted(ACTIVE))
IN_LANE = (Gate.LANE, Gate.READY)


def counts() -> dict[str, int]:
    """All nine statuses: live ones exact, ended ones as totals of all time."""
    found = dict.fromkeys(map(str, Status), 0)
    for part in (WAITING, AT_WORK):
        found |= count_live(part)
    found[Status.PAUSED] = jobs().filter(status__in=literals(RARE), status=Status.PAUSED).count()
    return found | totals()


def count_live(part: tuple[Status, ...]) -> dict[str, int]:
    live = jobs().filter(status__in=literals(part)).order_by()
    return dict(live.values_list("status").annotate(Count("pk")))


def totals() -> dict[str, int]:
    """How many jobs ever ended as what; pruning keeps these."""
    minutes = JobMinute.objects.using(db.alias()).order_by().values_list("outcome").annotate(Sum("jobs"))
    return dict.fromkeys(map(str, sorted(TERMINAL)), 0) | dict(minutes)


def oldest_waiting() -> Job | None:
    """Of the jobs that wait for a slot or their lane (not for their time), the one that has waited longest."""
    ready = jobs().filter(gate=Gate.READY)
    in_lanes = jobs().filter(gate__in=literals(IN_LANE), lane__isnull=False)
    oldest: list[tuple[datetime, UUID]] = []
    for waiting in (ready.filter(remote=False), ready.filter(remote=True), in_lanes):  # an index each
        oldest += waiting.order_by("created_at", "id").values_list("created_at", "id")[:1]
    return jobs().filter(pk=min(oldest)[1]).first() if oldest else None


def running() -> JobQuerySet:
    """What runs, the longest first."""
    return jobs().running().select_related("run").order_by("run__started_at")


def blocking() -> JobQuerySet:
    """Jobs that shut their lane until a person mends them."""
    return jobs().filter(holds_lane=True, status__in=[Status.PAUSED, Status.FAILED]).order_by("lane_id")


def workers() -> list[Worker]:
    """Workers that live, and those that fell silent not long ago."""
    heard = Now() - timedelta(seconds=max(SILENT_SEC, 2 * conf.LEASE_SEC))
    rows = Worker.objects.using(db.alias()).filter(heartbeat_at__gt=heard)
    return list(rows.exclude(state=WorkerState.STOPPED).order_by("name", "-id"))


def in_use() -> InUse:
    """What counts against the limits, as a claim counts it: active jobs, and leases of direct executions."""
    active = jobs().filter(status__in=literals(AT_WORK)).order_by().values_list(*FLOW).annotate(Count("pk"))
    leases = Lease.objects.using(db.alias()).filter(ended_at__isnull=True, granted_at__isnull=False)
    held = leases.order_by().values_list(*FLOW).annotate(Count("pk"))
    return InUse([(Flow(*row[:4]), row[4]) for row in (*active, *held)])


def jobs() -> JobQuerySet:
    return Job.objects.using(db.alias())
