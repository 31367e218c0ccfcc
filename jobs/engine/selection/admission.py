"""Ask the admission policy about jobs that could start, one round at a time.

A round holds the lock of the system snapshot, so that no cost unit is given away twice. Decisions are recorded when
they change.
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
from jobs.engine.transitions import from_now
from jobs.models import Gate, Job, JobEvent
from jobs.policies.admission import Approved, Candidate, Denied, Open, Snapshot, is_near_deadline
from jobs.states import EventKind

RECORD_BATCH_SIZE = 50
URGENT_FIRST = "a job near its deadline goes first"
JOB_COLUMNS = (
    *("tenant", "job_type", "resource", "addon_id", "cost_units", "priority", "constraints"),
    *("expected_duration_sec", "deadline_at", "time_sensitive", "recheck_at", "status_reason"),
)


def has_open_policy() -> bool:
    """Whether nobody needs to be asked."""
    return type(conf.policy("ADMISSION_POLICY")) is Open


class AdmissionRound:
    """One round of decisions, in the transaction that starts what was admitted."""

    def __init__(self) -> None:
        row = system_load.refresh_if_stale(system_load.lock_row())
        self.now = system_load.get_now(row)
        self.denied: dict[UUID, Denied] = {}
        self._policy = conf.policy("ADMISSION_POLICY")
        self._by_addon = count_costs()
        self._machine = _build_snapshot(row)
        self._now: Snapshot | None = None  # the machine with what is used right now
        self._known: dict[UUID, Any] = {}
        self._urgent: int | None = None  # the priority of a job near its deadline that capacity is kept for

    @property
    def cost_in_use(self) -> int:
        return self._by_addon.total()

    def decide(self, candidate: Candidate) -> Approved | Denied:
        """By the figures as they are, with what was admitted in this round."""
        if self._now is None:
            self._now = replace(self._machine, used=self.cost_in_use, used_by_addon=self._by_addon)
        verdict: Approved | Denied = self._policy.decide(candidate, self._now)
        return verdict

    def add_cost(self, candidate: Candidate) -> None:
        """It starts: its cost counts from now on."""
        self._by_addon[candidate.addon_id] += candidate.cost_units
        self._now = None

    def release_cost(self, addon_id: str, cost_units: int) -> None:
        """What was counted as reserved is the caller's own."""
        self._by_addon[addon_id] -= cost_units
        self._now = None

    def load_jobs(self, job_ids: Sequence[UUID]) -> None:
        """Read what the policy needs to know. Not as models: a thousand take longer to build than all decisions."""
        rows = Job.objects.filter(pk__in=job_ids).order_by().values("pk", "status", *JOB_COLUMNS)
        self._known |= {row["pk"]: SimpleNamespace(**row) for row in rows}

    def admits(self, job_id: UUID) -> bool:
        job = self._known.get(job_id)
        if job is None:  # gone since it was found
            return False
        candidate = _to_candidate(job, self.now)
        verdict = self._after_the_urgent(candidate) or self.decide(candidate)
        if isinstance(verdict, Approved):
            self.add_cost(candidate)
            return True
        self.denied[job_id] = verdict
        if self._urgent is None and self._is_urgent(candidate):
            self._urgent = candidate.priority
        return False

    def record_decisions(self, admitted: Mapping[UUID, str]) -> None:
        """Write the decisions that are new: a denied job says why and when it is asked about again."""
        self._record_denied()
        events = [self._event(self._known[job_id], EventKind.ADMITTED, why) for job_id, why in admitted.items()]
        JobEvent.objects.bulk_create(events)

    def _is_urgent(self, candidate: Candidate) -> bool:
        fits = candidate.cost_units <= self._machine.capacity_max
        return fits and is_near_deadline(candidate, self._machine)

    def _after_the_urgent(self, candidate: Candidate) -> Denied | None:
        """Capacity that comes free is not given away to lower priorities while somebody needs it in time."""
        if self._urgent is None or candidate.priority >= self._urgent:
            return None
        return Denied(URGENT_FIRST, system_load.INTERVAL_SEC)

    def _record_denied(self) -> None:
        news = [pk for pk, verdict in self.denied.items() if self._is_news(self._known[pk], verdict)]
        free = Job.objects.filter(pk__in=news[:RECORD_BATCH_SIZE], gate=Gate.READY)
        held = free.select_for_update(no_key=True, skip_locked=True).values_list("pk", flat=True) if news else ()
        alike: dict[Denied, list[UUID]] = {}
        for pk in held:
            alike.setdefault(self.denied[pk], []).append(pk)
        for verdict, same in alike.items():
            later = {"recheck_at": from_now(verdict.retry_after_sec), "status_reason": verdict.reason}
            Job.objects.filter(pk__in=same).update(**later)
            changed = [self._known[pk] for pk in same if self._is_new(self._known[pk], verdict)]
            events = [self._event(job, EventKind.DENIED, verdict.reason) for job in changed]
            JobEvent.objects.bulk_create(events)

    def _is_new(self, job: Any, verdict: Denied) -> bool:
        return job.recheck_at is None or job.status_reason != verdict.reason

    def _is_news(self, job: Any, verdict: Denied) -> bool:
        """A new decision, or an old one whose time to ask again has passed."""
        return self._is_new(job, verdict) or (job.recheck_at is not None and job.recheck_at <= self.now)

    def _event(self, job: Any, kind: EventKind, reason: str = "") -> JobEvent:
        facts = {"cost_units": job.cost_units, "used": self.cost_in_use, "state": self._machine.state}
        return JobEvent(
            job_id=job.pk,
            kind=kind,
            from_status=job.status,
            to_status=job.status,
            reason=reason,
            actor_kind=SCHEDULER.kind,
            actor_name=SCHEDULER.name,
            data=facts,
        )


def count_costs() -> Counter[str]:
    """Return the cost units in use or reserved, by addon: of jobs, leases and direct calls, even waiting ones."""
    connection = db.connection()
    rows = read_costs(connection)
    if any(row.expired for row in rows) and leases.end_dead_leases():
        rows = read_costs(connection)
    found: Counter[str] = Counter()
    for row in rows:
        found[row.addon_id] += int(row.cost_units)
    return found


def _build_snapshot(row: Any) -> Snapshot:
    state, held_sec = system_load.get_state(row)
    said = conf.ADMISSION
    return Snapshot(
        state=state,
        held_sec=held_sec,
        load=row.load,
        cpu=row.cpu,
        memory=row.memory,
        capacity_max=said.capacity_max,
        quiet_load=said.quiet_load,
        busy_load=said.busy_load,
        streak_sec=said.streak_sec,
        max_cost_per_addon=said.max_cost_per_addon,
        deadline_near_sec=said.deadline_near_sec,
    )


def _to_candidate(job: Any, now: datetime) -> Candidate:
    urgent = job.time_sensitive and job.deadline_at is not None
    return Candidate(
        tenant=job.tenant,
        job_type=job.job_type,
        resource=job.resource,
        addon_id=job.addon_id,
        cost_units=job.cost_units,
        priority=job.priority,
        constraints=frozenset(name for name, said in job.constraints.items() if said),
        expected_duration_sec=job.expected_duration_sec,
        deadline_in_sec=(job.deadline_at - now).total_seconds() if urgent and job.deadline_at else None,
    )
