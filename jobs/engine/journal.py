"""What a transition leaves behind besides the new state: its event, a mark on its target, its minute, its signal."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from jobs import db, signals
from jobs.actors import Actor
from jobs.engine import wakeup
from jobs.engine.sql.finish import count_finished
from jobs.models import Job, JobEvent, LaneMark
from jobs.states import TERMINAL, EventKind, Status


def record(
    job: Job,
    kind: EventKind,
    *,
    actor: Actor,
    source: Status | str = "",
    target: Status | str = "",
    reason: str = "",
    data: dict[str, Any] | None = None,
    token: UUID | None = None,
) -> None:
    JobEvent.objects.create(
        job_id=job.pk,
        kind=kind,
        from_status=source,
        to_status=target,
        reason=reason,
        actor_kind=actor.kind,
        actor_name=actor.name,
        data=data,
        token=token,
    )
    signals.report()


def note(job: Job, kind: EventKind, *, actor: Actor, reason: str = "", data: dict[str, Any] | None = None) -> None:
    """Record something that did not change the job's state."""
    record(job, kind, actor=actor, source=job.status, target=job.status, reason=reason, data=data)


def mark(*lanes: UUID | None) -> None:
    """Ask the promoter to look at these lanes again, and soon."""
    marks = [LaneMark(lane_id=lane) for lane in sorted({lane for lane in lanes if lane is not None})]
    if marks:
        LaneMark.objects.bulk_create(marks)
        wakeup.notify(wakeup.LANE)


def count_ends(jobs: Iterable[UUID]) -> None:
    ids = list(jobs)
    if ids:
        count_finished(db.connection(), ids, writer())


def tell(job: Job, kind: EventKind, source: Status | str | None, target: Status | str, reason: str = "") -> None:
    """Send the signal of this transition after the commit."""
    if kind == EventKind.RUNNING:
        signals.report(started=[signals.StartedJob(job.pk, job.job_type, job.tenant)])
    elif target in TERMINAL and source != target:
        signals.report(finished=[signals.FinishedJob(job.pk, job.job_type, job.tenant, str(target), reason)])


def writer() -> str:
    """No two transactions that are open at once may share a minute's row, so each thread writes its own."""
    return f"{socket.gethostname()}:{os.getpid()}:{threading.get_ident()}"[:300]
