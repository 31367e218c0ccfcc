"""Insert new jobs: rows, events and dirty targets in one statement, signals after the commit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from uuid import UUID

from jobs import db, notifications, signals, tracing
from jobs.actors import Actor
from jobs.engine.job_spec import JobSpec
from jobs.engine.sql import insert as sql
from jobs.engine.sql.insert import EventData, EventFields, InsertedJob
from jobs.models import JobGroup


def insert_job(
    spec: JobSpec, *, actor: Actor, reason: str = "", event_data: EventData | None = None
) -> InsertedJob | None:
    """Insert one job in the caller's transaction; return None if its idempotency key or its unique key is taken.

    If another transaction has inserted the same key and not committed yet, the insert waits for it. `event_data` is
    that of the SUBMITTED event, by job id.
    """
    with _trace_insert([spec]):
        inserted = sql.insert_job(db.connection(), spec, EventFields(actor, reason, event_data))
    if inserted is not None:
        _notify_deadlines([spec])
        _signal_after_commit([spec], [inserted.id])
    return inserted


def insert_jobs(
    specs: Sequence[JobSpec],
    *,
    actor: Actor,
    reason: str = "",
    event_data: EventData | None = None,
    group: JobGroup | None = None,
) -> list[UUID]:
    """Insert jobs in the caller's transaction; return the ids of those of which no key was taken.

    With their new group all are inserted, or none, and KeyTaken is raised.
    """
    with _trace_insert(specs):
        ids = sql.insert_jobs(db.connection(), specs, EventFields(actor, reason, event_data), group=group)
    if ids:
        _notify_deadlines(specs)
        _signal_after_commit(specs, ids)
    return ids


@contextmanager
def _trace_insert(specs: Sequence[JobSpec]) -> Iterator[None]:
    """Open a span for the insert, and write its trace context to the specs."""
    if not tracing.is_enabled():
        yield
        return
    with tracing.submission_span(specs[0].resource, [spec.id for spec in specs]) as traceparent:
        if traceparent:
            for spec in specs:
                spec.traceparent = traceparent
        yield


def _notify_deadlines(specs: Sequence[JobSpec]) -> None:
    if any(spec.deadline_at is not None for spec in specs):
        notifications.notify(notifications.DEADLINE)


def _signal_after_commit(specs: Sequence[JobSpec], ids: Iterable[UUID]) -> None:
    """Send the signals of the inserted jobs: those of `specs` with one of these ids."""
    inserted = set(ids)
    signals.send_after_commit(
        enqueued=(
            signals.EnqueuedJob(spec.id, spec.job_type, spec.tenant, spec.status)
            for spec in specs
            if spec.id in inserted
        )
    )
