"""Starts by remote workers, read back from the RUNNING event of each.

The event keeps the lease id, so it also tells which job a lease was for, and which worker had it, long after its end.
Not in `leases`, because recovery reads starts and `leases` calls recovery.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from jobs import clock, db
from jobs.models import Job, JobEvent
from jobs.models.expressions import SqlLiteral
from jobs.process_identity import read_beat_clock, seconds_since_beat
from jobs.states import EventKind


@dataclass(frozen=True)
class RemoteSlot:
    """One slot of one remote worker, identified by the worker's API token."""

    api_token: UUID
    worker: str
    slot: int
    token_name: str = ""

    @property
    def owner(self) -> str:
        """Return the lease owner that jobs in this slot have."""
        return f"r:{self.api_token}:{self.worker}#{self.slot}"


@dataclass(frozen=True)
class RemoteStart:
    """`clock` is the host's steady clock at the start, where the database's clock may jump."""

    job_id: UUID
    lease_id: UUID
    holder: RemoteSlot
    at: datetime
    pid: int | None = None
    host: str | None = None
    clock: str | None = None

    def seconds_ago(self, now: datetime) -> float:
        """Return how long ago the job was started, by the steady clock where it is known."""
        steady = seconds_since_beat(self.clock)
        return (now - self.at).total_seconds() if steady is None else steady


def build_event_data(holder: RemoteSlot, pid: int | None, host: str | None) -> dict[str, Any]:
    """Build the data of the event of a start."""
    steady = {"clock": read_beat_clock()} if db.clock_may_jump() else {}
    facts = {"worker": holder.worker, "slot": holder.slot, "pid": pid, "host": host}
    return {**facts, "api_token_id": str(holder.api_token), "api_token": holder.token_name, **steady}


def find_start(lease_id: UUID) -> RemoteStart | None:
    """Return the start that created this lease, whether or not the lease is still held."""
    event = _start_events().filter(token=lease_id).first()
    return None if event is None else _parse_event(event)


def find_starts(jobs: Iterable[Job]) -> dict[UUID, RemoteStart]:
    """Return the start of each of these jobs that a remote worker runs, by job id."""
    tokens = [job.lease_token for job in jobs if job.remote and job.lease_token is not None]
    return {event.job_id: _parse_event(event) for event in _start_events().filter(token__in=tokens)} if tokens else {}


def find_overdue_jobs() -> list[Job]:
    """Return remote jobs that have run longer than their max_runtime_sec. A local worker stops its own jobs."""
    running = list(Job.objects.active().running().filter(remote=True, max_runtime_sec__isnull=False))
    if not running:
        return []
    starts, now = find_starts(running), clock.now()
    return [job for job in running if job.pk in starts and is_overdue(job, starts[job.pk], now)]


def is_overdue(job: Job, start: RemoteStart, now: datetime) -> bool:
    """Return whether the job has run longer than its max_runtime_sec."""
    return job.max_runtime_sec is not None and start.seconds_ago(now) > job.max_runtime_sec


def _start_events() -> QuerySet[JobEvent]:
    # As a literal: with a parameter, the planner would not use the partial index.
    return JobEvent.objects.filter(kind=SqlLiteral(str(EventKind.RUNNING))).order_by()


def _parse_event(event: JobEvent) -> RemoteStart:
    data: dict[str, Any] = event.data or {}
    holder = RemoteSlot(UUID(data["api_token_id"]), data["worker"], data["slot"], data.get("api_token", ""))
    assert event.token is not None
    host, pid, steady = data.get("host"), data.get("pid"), data.get("clock")
    return RemoteStart(event.job_id, event.token, holder, event.at, pid, host, steady)
