"""The facts that explain a job: its row, its target, its limits, the workers that can run it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import OuterRef, Q, Subquery
from django.db.models.functions import Now

from jobs.conf import conf
from jobs.errors import NotFound
from jobs.models import ConcurrencyLimit, Gate, GroupMode, Job, JobEvent, Lease, LeaseKind, Target, Worker, WorkerState
from jobs.models.expressions import sql_literals
from jobs.policies.concurrency import Flow, InUse, Limit
from jobs.services import remote
from jobs.states import LIVE, EventKind, Status
from jobs.stats import queries

EVENT_KINDS = (EventKind.SUBMITTED, EventKind.HELD, EventKind.PAUSED, EventKind.DENIED, EventKind.ADMITTED)


@dataclass
class Facts:
    job: Job
    now: datetime
    viewer_tenant: str | None = None  # None: the viewer sees every tenant
    events: dict[str, JobEvent] = field(default_factory=dict)  # the last of each kind in EVENT_KINDS
    predecessor: Job | None = None
    target: Target | None = None
    lane: list[Job] = field(default_factory=list)  # the job that holds the lane, then the first one that waits in it
    limits: list[ConcurrencyLimit] = field(default_factory=list)
    in_use: InUse = field(default_factory=InUse)
    reservations: list[Lease] = field(default_factory=list)
    workers: list[Worker] = field(default_factory=list)  # those that can run it
    has_recent_poller: bool = True  # whether a remote worker polls for it, if it is a remote job

    @property
    def flow(self) -> Flow:
        return Flow(self.job.tenant, self.job.job_type, self.job.resource, self.job.addon_id)

    @property
    def slots(self) -> int:
        return sum(max(worker.slots - worker.stuck, 0) for worker in self.workers)

    def is_visible(self, tenant: str) -> bool:
        """Return whether the viewer sees what belongs to this tenant."""
        return self.viewer_tenant in (None, tenant)

    def has_common_limit(self, lease: Lease) -> bool:
        """Return whether a limit applies to both the job and the lease."""
        flow = Flow(lease.tenant, lease.job_type, lease.resource, lease.addon_id)
        return any(limit.key == flow.key(limit.scope) for limit in self.limits)


def load_facts(job_id: UUID, viewer_tenant: str | None = None) -> Facts:
    """Read the facts about one job. Raise NotFound if there is none."""
    extra = {"database_now": Now(), "holder_id": Subquery(_HOLDER), "head_id": Subquery(_HEAD)}
    job = _jobs().annotate(**extra).select_related("group", "lane").filter(pk=job_id).first()
    if job is None:
        raise NotFound(f"There is no job {job_id}.")
    facts = Facts(job, job.database_now, viewer_tenant)
    if job.status in LIVE and job.status != Status.RUNNING:
        rows = JobEvent.objects.filter(job_id=job.pk, kind__in=EVENT_KINDS).order_by("-id")[:50]
        facts.events = {row.kind: row for row in reversed(rows)}
    if job.status == Status.PENDING:
        facts.predecessor = _find_predecessor(job)
    if job.status != Status.QUEUED:
        return facts
    if job.lane_id is not None:
        facts.target = job.lane  # None until the promoter has created the row
        facts.lane = _list_lane(job)
    facts.limits = [limit for limit in list_limits_in_force() if limit.key == facts.flow.key(limit.scope)]
    facts.in_use = queries.count_in_use()
    facts.reservations = [lease for lease in list_waiting_calls() if facts.has_common_limit(lease)]
    if job.remote:
        facts.has_recent_poller = remote.has_recent_poller(job)
    else:
        facts.workers = [worker for worker in list_running_workers() if can_run(worker, job)]
    return facts


def can_run(worker: Worker, job: Job) -> bool:
    """Return whether a worker serves the type, the resource and the tenant of a job."""
    serves = worker.serves
    resources, tenant = serves.get("resources"), serves.get("tenant")
    return (
        job.job_type in serves.get("types", ())
        and (resources is None or job.resource in resources)
        and (tenant is None or tenant == job.tenant)
    )


def to_limit(row: ConcurrencyLimit) -> Limit:
    return Limit(row.scope, row.key, row.max, row.paused)


def _find_predecessor(job: Job) -> Job | None:
    """Return the job of its group that it waits for: the first unfinished one before it, or a later active one."""
    if job.group is None or job.group.mode != GroupMode.SEQUENTIAL:
        return None
    others = _jobs().filter(group_id=job.group_id, status__in=sql_literals(sorted(LIVE))).exclude(pk=job.pk)
    predecessors = others.filter(Q(group_index__lt=job.group_index) | ~Q(status=Status.PENDING))
    return predecessors.order_by("group_index").first()


def _list_lane(job: Job) -> list[Job]:
    job_ids = [pk for pk in (job.holder_id, job.head_id) if pk is not None]  # type: ignore[attr-defined]
    jobs = {job.pk: job for job in _jobs().filter(pk__in=job_ids)} if job_ids else {}
    return [jobs[pk] for pk in dict.fromkeys(job_ids) if pk in jobs]


_OF_LANE = Job.objects.filter(lane_id=OuterRef("lane_id"))
_HOLDER = _OF_LANE.filter(holds_lane=True).order_by("-pk").values("pk")[:1]
_HEAD = _OF_LANE.filter(gate__in=sql_literals([Gate.LANE, Gate.READY])).in_dispatch_order().values("pk")[:1]


def list_limits_in_force() -> list[ConcurrencyLimit]:
    rows = ConcurrencyLimit.objects.filter(Q(max__isnull=False) | Q(paused=True))
    return list(rows.order_by("pk"))


def list_waiting_calls() -> list[Lease]:
    """Return the reservations of direct calls that wait for a slot."""
    waiting = Lease.objects.filter(ended_at__isnull=True, granted_at__isnull=True)
    return list(waiting.filter(kind=LeaseKind.DIRECT, expires_at__gt=Now()).order_by("pk")[:100])


def list_running_workers() -> list[Worker]:
    """Return the workers that claim jobs: running, with recent heartbeats, not asked to stop."""
    last_lease = Now() - timedelta(seconds=conf.LEASE_SEC)
    rows = Worker.objects.filter(heartbeat_at__gt=last_lease, state=WorkerState.RUNNING, request="")
    return list(rows)


def _jobs() -> Any:
    return Job.objects.defer("params", "checkpoint")
