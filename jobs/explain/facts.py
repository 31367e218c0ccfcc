"""The facts that explain a job: its row, its target, its limits, the workers that can run it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from typing import Any
from uuid import UUID

from django.db.models import OuterRef, Q, Subquery
from django.db.models.functions import Now

from jobs.errors import NotFound
from jobs.models import (
    ConcurrencyLimit,
    Gate,
    GroupMode,
    Job,
    JobEvent,
    Lease,
    LeaseKind,
    LimitScope,
    Target,
    Worker,
    WorkerState,
)
from jobs.models.expressions import sql_literals
from jobs.models.worker import heartbeat_timeout
from jobs.policies.concurrency import Flow, InUse, Limit
from jobs.rates import make_buckets
from jobs.services import admission, remote
from jobs.states import LIVE, EventKind, Status
from jobs.stats import queries
from jobs.stats.queries import ActiveJobs

EVENT_KINDS = (EventKind.HELD, EventKind.PAUSED, EventKind.DENIED)


@dataclass
class QueueFacts:
    """The limits in force, what is active, direct calls that wait for a slot, and the workers.

    `workers` claim jobs; `draining` ones finish what they run, and claim no more.
    """

    limits: list[ConcurrencyLimit] = field(default_factory=list)
    active: list[ActiveJobs] = field(default_factory=list)
    calls: list[Lease] = field(default_factory=list)
    workers: list[Worker] = field(default_factory=list)
    draining: list[Worker] = field(default_factory=list)

    @cached_property
    def in_use(self) -> InUse:
        return InUse((active.flow, active.jobs) for active in self.active)

    @cached_property
    def _busy(self) -> Counter[str]:
        busy: Counter[str] = Counter()
        for active in self.active:
            busy[active.process] += active.jobs
        return busy

    def count_busy(self, worker: Worker) -> int:
        """Count the jobs that a worker runs. Its row has the number of its last heartbeat."""
        return self._busy[worker.identity.process_key]


@dataclass
class Facts:
    job: Job
    now: datetime
    viewer_tenant: str | None = None  # None: the viewer sees every tenant
    events: dict[str, JobEvent] = field(default_factory=dict)  # the last of each kind in EVENT_KINDS
    predecessor: Job | None = None
    target: Target | None = None
    lane: list[Job] = field(default_factory=list)  # the job that holds the lane, then the first one that waits in it
    queue: QueueFacts = field(default_factory=QueueFacts)
    limits: list[ConcurrencyLimit] = field(default_factory=list)  # those that it is under
    reservations: list[Lease] = field(default_factory=list)
    workers: list[Worker] = field(default_factory=list)  # those that can run it
    has_recent_poller: bool = True  # whether a remote worker polls for it, if it is a remote job

    @property
    def flow(self) -> Flow:
        return Flow.of(self.job)

    @property
    def slots(self) -> int:
        """Return the slots of the workers that can run the job, without stuck ones."""
        return sum(max(worker.slots - worker.stuck, 0) for worker in self.workers)

    @property
    def free_slots(self) -> int:
        return sum(max(worker.slots - worker.stuck - self.queue.count_busy(worker), 0) for worker in self.workers)

    @property
    def is_denied(self) -> bool:
        """Return whether admission denied the job when it was last asked, and has not admitted it since."""
        is_rechecked = self.job.recheck_at is not None and self.job.gate != Gate.TIME  # else an offer has expired
        return is_rechecked and not admission.has_open_policy()

    def load_queue(self, queue: QueueFacts) -> None:
        """Choose what applies to the job."""
        self.queue = queue
        self.limits = [limit for limit in queue.limits if limit.key == self.flow.key(limit.scope)]
        self.reservations = [lease for lease in queue.calls if self.has_common_limit(lease)]
        if not self.job.remote:
            self.workers = [worker for worker in queue.workers if can_run(worker, self.flow)]

    def is_visible(self, tenant: str) -> bool:
        """Return whether the viewer sees what belongs to this tenant."""
        return self.viewer_tenant in (None, tenant)

    def has_common_limit(self, lease: Lease) -> bool:
        """Return whether a limit applies to both the job and the lease."""
        flow = Flow.of(lease)
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
    facts.load_queue(load_queue())
    if job.remote:
        facts.has_recent_poller = remote.has_recent_poller(job)
    return facts


def load_queue() -> QueueFacts:
    """Read what all waiting jobs share."""
    claiming, draining = list_workers()
    limits = list(ConcurrencyLimit.objects.in_force().order_by("pk"))
    return QueueFacts(limits, queries.list_active_jobs(), _list_waiting_calls(), claiming, draining)


def list_workers() -> tuple[list[Worker], list[Worker]]:
    """Return the workers that claim jobs, and those that only finish what they run; both with recent heartbeats."""
    recent = Worker.objects.filter(heartbeat_at__gt=Now() - heartbeat_timeout())
    workers = list(recent.exclude(state=WorkerState.STOPPED))
    claiming = [worker for worker in workers if worker.is_claiming]
    return claiming, [worker for worker in workers if not worker.is_claiming]


def can_run(worker: Worker, flow: Flow) -> bool:
    """Return whether a worker serves the type, the resource and the tenant of a flow."""
    serves = worker.serves
    resources, tenant = serves.get("resources"), serves.get("tenant")
    return (
        flow.job_type in serves.get("types", ())
        and (resources is None or flow.resource in resources)
        and flow.resource not in serves.get("excluded_resources", ())
        and (tenant is None or tenant == flow.tenant)
    )


def can_serve(worker: Worker, limit: ConcurrencyLimit) -> bool:
    """Return whether a worker may run jobs under a limit."""
    serves = worker.serves
    if limit.scope == LimitScope.RESOURCE and limit.key in serves.get("excluded_resources", ()):
        return False
    allowed = {
        LimitScope.JOB_TYPE: serves.get("types", ()),
        LimitScope.RESOURCE: serves.get("resources"),
        LimitScope.TENANT: [tenant] if (tenant := serves.get("tenant")) else None,
    }.get(LimitScope(limit.scope))
    return allowed is None or limit.key in allowed


def to_limit(row: ConcurrencyLimit, now: datetime) -> Limit:
    """Return the limit of a row, with the buckets of its rates as they are now, by the clock of the database."""
    return Limit(row.scope, row.key, row.max, row.paused, buckets=make_buckets(row, now))


def _find_predecessor(job: Job) -> Job | None:
    """Return the job of its group that it waits for: the first unfinished one before it, or a later active one."""
    if job.group is None:
        return None
    if job.group.mode != GroupMode.SEQUENTIAL and job.group_index != job.group.then_index:
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
_HEAD = _OF_LANE.in_lanes().in_dispatch_order().values("pk")[:1]


def _list_waiting_calls() -> list[Lease]:
    """Return the reservations of direct calls that wait for a slot."""
    waiting = Lease.objects.filter(ended_at__isnull=True, granted_at__isnull=True)
    return list(waiting.filter(kind=LeaseKind.DIRECT, expires_at__gt=Now()).order_by("pk")[:100])


def _jobs() -> Any:
    return Job.objects.defer("params", "checkpoint")
