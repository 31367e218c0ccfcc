"""All that is looked up to explain one job: its row, its lane, its limits, the workers that could take it."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import OuterRef, Q, Subquery
from django.db.models.functions import Now

from jobs.conf import conf
from jobs.engine.remote import offers
from jobs.errors import NotFound
from jobs.models import ConcurrencyLimit, Gate, GroupMode, Job, JobEvent, Lease, LeaseKind, Target, Worker, WorkerState
from jobs.models.expressions import sql_literals
from jobs.policies.concurrency import Flow, InUse, Limit
from jobs.states import LIVE, EventKind, Status
from jobs.stats import queries

TOLD = (EventKind.SUBMITTED, EventKind.HELD, EventKind.PAUSED, EventKind.DENIED, EventKind.ADMITTED)


@dataclass
class Facts:
    job: Job
    now: datetime
    events: dict[str, JobEvent] = field(default_factory=dict)  # the last of each kind in TOLD
    predecessor: Job | None = None
    target: Target | None = None
    lane: list[Job] = field(default_factory=list)  # who holds the lane, then who stands first in it
    limits: list[ConcurrencyLimit] = field(default_factory=list)
    in_use: InUse = field(default_factory=InUse)
    reservations: list[Lease] = field(default_factory=list)
    workers: list[Worker] = field(default_factory=list)  # those that serve it
    is_asked_for: bool = True  # by a remote worker, if it is for one

    @property
    def flow(self) -> Flow:
        return Flow(self.job.tenant, self.job.job_type, self.job.resource, self.job.addon_id)

    @property
    def slots(self) -> int:
        return sum(max(worker.slots - worker.stuck, 0) for worker in self.workers)

    def shares_a_limit(self, lease: Lease) -> bool:
        theirs = Flow(lease.tenant, lease.job_type, lease.resource, lease.addon_id)
        return any(limit.key == theirs.key(limit.scope) for limit in self.limits)


def gather(job_id: UUID) -> Facts:
    told = {"asked_at": Now(), "holder_id": Subquery(_HOLDER), "head_id": Subquery(_HEAD)}
    job = _jobs().annotate(**told).select_related("group", "lane").filter(pk=job_id).first()
    if job is None:
        raise NotFound(f"There is no job {job_id}.")
    facts = Facts(job, job.asked_at)
    if job.status in LIVE and job.status != Status.RUNNING:
        rows = JobEvent.objects.filter(job_id=job.pk, kind__in=TOLD).order_by("-id")[:50]
        facts.events = {row.kind: row for row in reversed(rows)}
    if job.status == Status.PENDING:
        facts.predecessor = _predecessor(job)
    if job.status != Status.QUEUED:
        return facts
    if job.lane_id is not None:
        facts.target = job.lane  # None where it has not been used yet
        facts.lane = _lane(job)
    facts.limits = [each for each in in_force() if each.key == facts.flow.key(each.scope)]
    facts.in_use = queries.count_in_use()
    facts.reservations = [each for each in waiting_calls() if facts.shares_a_limit(each)]
    if job.remote:
        facts.is_asked_for = offers.has_recent_poller(job)
    else:
        facts.workers = [worker for worker in working() if serves(worker, job)]
    return facts


def serves(worker: Worker, job: Job) -> bool:
    told = worker.serves
    resources, tenant = told.get("resources"), told.get("tenant")
    return (
        job.job_type in told.get("types", ())
        and (resources is None or job.resource in resources)
        and (tenant is None or tenant == job.tenant)
    )


def as_limit(row: ConcurrencyLimit) -> Limit:
    return Limit(row.scope, row.key, row.max, row.paused)


def _predecessor(job: Job) -> Job | None:
    """The place that this one waits for: the first one before it that has not ended, or a later one at work."""
    if job.group is None or job.group.mode != GroupMode.SEQUENTIAL:
        return None
    others = _jobs().filter(group_id=job.group_id, status__in=sql_literals(sorted(LIVE))).exclude(pk=job.pk)
    waited_for = others.filter(Q(group_index__lt=job.group_index) | ~Q(status=Status.PENDING))
    return waited_for.order_by("group_index").first()


def _lane(job: Job) -> list[Job]:
    ids = [each for each in (job.holder_id, job.head_id) if each is not None]  # type: ignore[attr-defined]
    found = {each.pk: each for each in _jobs().filter(pk__in=ids)} if ids else {}
    return [found[each] for each in dict.fromkeys(ids) if each in found]


_OF_LANE = Job.objects.filter(lane_id=OuterRef("lane_id"))
_HOLDER = _OF_LANE.filter(holds_lane=True).order_by("-pk").values("pk")[:1]
_HEAD = _OF_LANE.filter(gate__in=sql_literals([Gate.LANE, Gate.READY])).in_dispatch_order().values("pk")[:1]


def in_force() -> list[ConcurrencyLimit]:
    rows = ConcurrencyLimit.objects.filter(Q(max__isnull=False) | Q(paused=True))
    return list(rows.order_by("pk"))


def waiting_calls() -> list[Lease]:
    waiting = Lease.objects.filter(ended_at__isnull=True, granted_at__isnull=True)
    return list(waiting.filter(kind=LeaseKind.DIRECT, expires_at__gt=Now()).order_by("pk")[:100])


def working() -> list[Worker]:
    heard = Now() - timedelta(seconds=conf.LEASE_SEC)
    rows = Worker.objects.filter(heartbeat_at__gt=heard, state=WorkerState.RUNNING, request="")
    return list(rows)


def _jobs() -> Any:
    return Job.objects.defer("params", "checkpoint")
