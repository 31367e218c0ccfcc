"""Let the admission policy decide about jobs that could start, one round at a time.

A round holds the lock of the system snapshot, so that no cost unit is granted twice. Decisions are recorded when they
change.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID

from jobs import db
from jobs.actors import SCHEDULER
from jobs.conf import conf
from jobs.engine.maintenance import system_load
from jobs.engine.slots import leases
from jobs.engine.sql.limits import read_costs
from jobs.models import Gate, Job, JobEvent, SystemSnapshot
from jobs.models.expressions import from_now
from jobs.policies.admission import Approved, Candidate, Denied, Open, Snapshot, State, is_near_deadline
from jobs.states import EventKind

RECORD_BATCH_SIZE = 50
URGENT_FIRST = "a job near its deadline goes first"
JOB_COLUMNS = (
    *("tenant", "job_type", "resource", "addon_id", "cost_units", "priority", "constraints"),
    *("expected_duration_sec", "deadline_at", "time_sensitive", "recheck_at", "status_reason"),
)


def has_open_policy() -> bool:
    """Return whether the policy admits every job, so that no round is needed."""
    return type(conf.policy("ADMISSION_POLICY")) is Open


class AdmissionRound:
    """One round of decisions, in the transaction that starts the admitted jobs."""

    def __init__(self) -> None:
        row = system_load.refresh_if_stale(system_load.lock_row())
        self.now = system_load.get_now(row)
        self.denied: dict[UUID, Denied] = {}
        self._policy = conf.policy("ADMISSION_POLICY")
        self._cost_by_addon = count_costs()
        self._load = build_snapshot(row, *system_load.get_state(row))
        self._snapshot: Snapshot | None = None  # the load, with the cost in use right now
        self._jobs: dict[UUID, Any] = {}
        self._cost_at_decision: dict[UUID, int] = {}  # what was in use when a job was decided about
        self._urgent_priority: int | None = None  # of a job near its deadline, for which capacity is reserved

    @property
    def cost_in_use(self) -> int:
        """Return the cost units in use or reserved, with those of jobs admitted in this round."""
        return self._cost_by_addon.total()

    def decide(self, candidate: Candidate) -> Approved | Denied:
        """Return the policy's decision, by the cost that is in use now."""
        if self._snapshot is None:
            self._snapshot = replace(self._load, used=self.cost_in_use, used_by_addon=self._cost_by_addon)
        decision: Approved | Denied = self._policy.decide(candidate, self._snapshot)
        return decision

    def add_cost(self, candidate: Candidate) -> None:
        """Add the cost of a job that starts."""
        self._cost_by_addon[candidate.addon_id] += candidate.cost_units
        self._snapshot = None

    def release_cost(self, addon_id: str, cost_units: int) -> None:
        """Subtract a reserved cost: the caller itself reserved it."""
        self._cost_by_addon[addon_id] -= cost_units
        self._snapshot = None

    def load_jobs(self, job_ids: Sequence[UUID]) -> None:
        """Read the columns that the policy needs. Building a thousand models takes longer than all decisions."""
        rows = Job.objects.filter(pk__in=job_ids).order_by().values("pk", "status", *JOB_COLUMNS)
        self._jobs |= {row["pk"]: SimpleNamespace(**row) for row in rows}

    def admits(self, job_id: UUID) -> bool:
        """Decide about a job that was loaded; add its cost if it is admitted."""
        job = self._jobs.get(job_id)
        if job is None:  # deleted since it was found
            return False
        candidate = _to_candidate(job, self.now)
        self._cost_at_decision[job_id] = self.cost_in_use
        decision = self._deny_after_urgent(candidate) or self.decide(candidate)
        if isinstance(decision, Approved):
            self.add_cost(candidate)
            return True
        self.denied[job_id] = decision
        if self._urgent_priority is None and self._is_urgent(candidate):
            self._urgent_priority = candidate.priority
        return False

    def record_decisions(self, admitted: Mapping[UUID, str]) -> None:
        """Record new decisions: reason and next check of each denied job, and `admitted` with their reasons."""
        self._record_denied()
        events = [
            self._build_event(self._jobs[job_id], EventKind.ADMITTED, reason) for job_id, reason in admitted.items()
        ]
        JobEvent.objects.bulk_create(events)

    def _is_urgent(self, candidate: Candidate) -> bool:
        fits = candidate.cost_units <= self._load.capacity_max
        return fits and is_near_deadline(candidate, self._load)

    def _deny_after_urgent(self, candidate: Candidate) -> Denied | None:
        """Deny lower priorities while a job near its deadline waits for the capacity that becomes free."""
        if self._urgent_priority is None or candidate.priority >= self._urgent_priority:
            return None
        return Denied(URGENT_FIRST, system_load.INTERVAL_SEC)

    def _record_denied(self) -> None:
        unrecorded = [pk for pk, denial in self.denied.items() if self._must_record(self._jobs[pk], denial)]
        ready = Job.objects.filter(pk__in=unrecorded[:RECORD_BATCH_SIZE], gate=Gate.READY)
        locked = ready.select_for_update(no_key=True, skip_locked=True).values_list("pk", flat=True)
        job_ids_by_denial: dict[Denied, list[UUID]] = {}
        for pk in locked if unrecorded else ():
            job_ids_by_denial.setdefault(self.denied[pk], []).append(pk)
        for denial, job_ids in job_ids_by_denial.items():
            fields = {"recheck_at": from_now(denial.retry_after_sec), "status_reason": denial.reason}
            Job.objects.filter(pk__in=job_ids).update(**fields)
            changed = [self._jobs[pk] for pk in job_ids if self._is_new(self._jobs[pk], denial)]
            events = [self._build_event(job, EventKind.DENIED, denial.reason) for job in changed]
            JobEvent.objects.bulk_create(events)

    def _is_new(self, job: Any, denial: Denied) -> bool:
        return job.recheck_at is None or job.status_reason != denial.reason

    def _must_record(self, job: Any, denial: Denied) -> bool:
        """Return whether the denial is new, or the time of the next check after the last one has passed."""
        return self._is_new(job, denial) or (job.recheck_at is not None and job.recheck_at <= self.now)

    def _build_event(self, job: Any, kind: EventKind, reason: str = "") -> JobEvent:
        data = {"cost_units": job.cost_units, "used": self._cost_at_decision[job.pk], "state": self._load.state}
        return JobEvent(
            job_id=job.pk,
            kind=kind,
            from_status=job.status,
            to_status=job.status,
            reason=reason,
            actor_kind=SCHEDULER.kind,
            actor_name=SCHEDULER.name,
            data=data,
        )


def count_costs() -> Counter[str]:
    """Return the cost units in use or reserved, by addon: of jobs, leases and direct calls, also waiting ones."""
    connection = db.connection()
    rows = read_costs(connection)
    if any(row.expired for row in rows) and leases.end_dead_leases():
        rows = read_costs(connection)
    costs: Counter[str] = Counter()
    for row in rows:
        costs[row.addon_id] += int(row.cost_units)
    return costs


def build_snapshot(row: SystemSnapshot, state: str, held_sec: float) -> Snapshot:
    """Return the measured load as policies take it, without the cost in use."""
    settings = conf.ADMISSION
    return Snapshot(
        state=State(state),
        held_sec=held_sec,
        load=row.load,
        cpu=row.cpu,
        memory=row.memory,
        capacity_max=settings.capacity_max,
        quiet_load=settings.quiet_load,
        busy_load=settings.busy_load,
        streak_sec=settings.streak_sec,
        max_cost_per_addon=settings.max_cost_per_addon,
        deadline_near_sec=settings.deadline_near_sec,
    )


def _to_candidate(job: Any, now: datetime) -> Candidate:
    is_urgent = job.time_sensitive and job.deadline_at is not None
    return Candidate(
        tenant=job.tenant,
        job_type=job.job_type,
        resource=job.resource,
        addon_id=job.addon_id,
        cost_units=job.cost_units,
        priority=job.priority,
        constraints=frozenset(name for name, is_set in job.constraints.items() if is_set),
        expected_duration_sec=job.expected_duration_sec,
        deadline_in_sec=(job.deadline_at - now).total_seconds() if is_urgent and job.deadline_at else None,
    )
