"""What a remote worker said when it started a job, read back from the event of that start.

The event keeps the lease id, so it also answers which job a lease was for, and whose it was, long after its end.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from jobs import clock, db
from jobs.engine.process_identity import beat_clock, seconds_since
from jobs.models import Job, JobEvent
from jobs.models.expressions import SqlLiteral
from jobs.states import EventKind


@dataclass(frozen=True)
class Holder:
    """One slot of one remote worker, known by the API token that it came with."""

    api_token: UUID
    worker: str
    slot: int

    @property
    def owner(self) -> str:
        return f"r:{self.api_token}:{self.worker}#{self.slot}"


@dataclass(frozen=True)
class Start:
    """`clock` is the host's steady clock at that moment, where the database's clock may jump."""

    job_id: UUID
    lease_id: UUID
    holder: Holder
    at: datetime
    pid: int | None = None
    host: str | None = None
    clock: str | None = None

    def seconds_ago(self, now: datetime) -> float:
        steady = seconds_since(self.clock)
        return (now - self.at).total_seconds() if steady is None else steady


def event_data(holder: Holder, pid: int | None, host: str | None) -> dict[str, Any]:
    """Return what the event of a start keeps."""
    steady = {"clock": beat_clock()} if db.clock_may_jump() else {}
    facts = {"worker": holder.worker, "slot": holder.slot, "pid": pid, "host": host}
    return {**facts, "api_token_id": str(holder.api_token), **steady}


def find(lease_id: UUID) -> Start | None:
    """The start that this lease was given with, whether or not it still holds."""
    event = _events().filter(token=lease_id).first()
    return None if event is None else _start(event)


def of(jobs: Iterable[Job]) -> dict[UUID, Start]:
    """For each of these jobs that a remote worker has, how it was started."""
    leases = [job.lease_token for job in jobs if job.remote and job.lease_token is not None]
    return {event.job_id: _start(event) for event in _events().filter(token__in=leases)} if leases else {}


def overdue() -> list[Job]:
    """What remote workers have had for longer than it may run. A local worker sees to its own jobs."""
    held = list(Job.objects.active().running().filter(remote=True, max_runtime_sec__isnull=False))
    if not held:
        return []
    started, now = of(held), clock.now()
    return [job for job in held if job.pk in started and is_overdue(job, started[job.pk], now)]


def is_overdue(job: Job, start: Start, now: datetime) -> bool:
    return job.max_runtime_sec is not None and start.seconds_ago(now) > job.max_runtime_sec


def _events() -> QuerySet[JobEvent]:
    # A parameter in place of the word would not find the partial index.
    return JobEvent.objects.filter(kind=SqlLiteral(str(EventKind.RUNNING))).order_by()


def _start(event: JobEvent) -> Start:
    data: dict[str, Any] = event.data or {}
    holder = Holder(UUID(data["api_token_id"]), data["worker"], data["slot"])
    assert event.token is not None
    return Start(event.job_id, event.token, holder, event.at, data.get("pid"), data.get("host"), data.get("clock"))
