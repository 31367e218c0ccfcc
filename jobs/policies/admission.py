"""Decide whether a job may start now, given the system load and the cost of the running jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

BUSY_SHARE = 0.25  # the part of the capacity that is available while the machine is busy
FULL_MEMORY = 0.95  # from this memory use on the machine counts as busy, whatever its load
SOON_SEC, LATER_SEC = 2.0, 10.0


class State(StrEnum):
    QUIET = "QUIET"
    NORMAL = "NORMAL"
    BUSY = "BUSY"


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A job, or a requested slot lease.

    `constraints`: the names of those that are true. `deadline_in_sec`: None unless the job is time-sensitive.
    """

    tenant: str = "default"
    job_type: str
    resource: str = "default"
    addon_id: str = ""
    cost_units: int = 1
    priority: int = 50
    constraints: frozenset[str] = frozenset()
    expected_duration_sec: float | None = None
    deadline_in_sec: float | None = None


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The last measured system load, and the cost units of all active jobs and reservations.

    `load` is per core, `cpu` and `memory` are fractions. The parameters are those of the setting ADMISSION.
    """

    state: State = State.QUIET
    held_sec: float = 0.0  # how long it has been in this state
    load: float = 0.0
    cpu: float = 0.0
    memory: float = 0.0
    used: int = 0
    used_by_addon: Mapping[str, int] = field(default_factory=dict)
    capacity_max: int = 100
    quiet_load: float = 0.3
    busy_load: float = 0.8
    streak_sec: float = 30.0
    max_cost_per_addon: int | None = None
    deadline_near_sec: float = 300.0


@dataclass(frozen=True)
class Approved:
    pass


@dataclass(frozen=True)
class Denied:
    """A denial. Each change of the reason is recorded, so it must not contain figures that always change."""

    reason: str
    retry_after_sec: float


class AdmissionPolicy(Protocol):
    def decide(self, job: Candidate, snapshot: Snapshot) -> Approved | Denied: ...


class Open:
    """Admit every job."""

    def decide(self, job: Candidate, snapshot: Snapshot) -> Approved | Denied:
        return Approved()


class Capacity:
    """Admit cost units up to a capacity that shrinks with the load; jobs with constraints wait for a quiet machine."""

    def decide(self, job: Candidate, snapshot: Snapshot) -> Approved | Denied:
        if job.cost_units > snapshot.capacity_max:
            return Denied("its cost exceeds the total capacity", LATER_SEC)
        if snapshot.used + job.cost_units > available_capacity(snapshot):
            return Denied("not enough free capacity", SOON_SEC)
        used, limit = snapshot.used_by_addon.get(job.addon_id, 0), snapshot.max_cost_per_addon
        if job.addon_id and limit is not None and used + job.cost_units > limit:
            return Denied("the cost limit of its addon is reached", SOON_SEC)
        if job.constraints and not _may_run_heavy(job, snapshot):
            return Denied("heavy jobs wait until the machine is quiet", LATER_SEC)
        return Approved()


def available_capacity(snapshot: Snapshot) -> int:
    """Return the cost units that may run: all of them up to the quiet load, a quarter from the busy load on."""
    span = snapshot.busy_load - snapshot.quiet_load
    load_fraction = (effective_load(snapshot.load, snapshot.cpu) - snapshot.quiet_load) / span if span > 0 else 0.0
    load_fraction = 1.0 if snapshot.memory >= FULL_MEMORY else min(max(load_fraction, 0.0), 1.0)
    return int(snapshot.capacity_max * (1 - load_fraction * (1 - BUSY_SHARE)))


def classify_load(load: float, cpu: float, memory: float, *, quiet_load: float, busy_load: float) -> State:
    current = effective_load(load, cpu)
    if current >= busy_load or memory >= FULL_MEMORY:
        return State.BUSY
    return State.QUIET if current <= quiet_load else State.NORMAL


def effective_load(load: float, cpu: float) -> float:
    """Return the higher of both: the load is an average over a minute, the use of the cores is current."""
    return max(load, cpu)


def is_near_deadline(job: Candidate, snapshot: Snapshot) -> bool:
    return job.deadline_in_sec is not None and job.deadline_in_sec <= snapshot.deadline_near_sec


def _may_run_heavy(job: Candidate, snapshot: Snapshot) -> bool:
    if snapshot.state == State.QUIET and snapshot.held_sec >= snapshot.streak_sec:
        return True
    return snapshot.state != State.BUSY and is_near_deadline(job, snapshot)
