"""Insert new jobs: rows, events and marks in one statement, signals after the commit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from jobs import db, signals, tracing
from jobs.actors import Actor
from jobs.engine.job_spec import JobSpec
from jobs.engine.sql import insert as sql
from jobs.engine.sql.insert import InsertedJob


def insert_jobs(specs: Sequence[JobSpec], *, actor: Actor, reason: str = "") -> list[InsertedJob]:
    """Insert jobs in the caller's transaction and return those that were inserted, in their order.

    A job whose idempotency key is taken is left out; another session that has not yet committed the same key is
    waited for.
    """
    if not tracing.is_on():
        return _insert(specs, actor, reason)
    with tracing.sending(specs[0].resource, [spec.id for spec in specs]) as traceparent:
        if traceparent:
            for spec in specs:
                spec.traceparent = traceparent
        return _insert(specs, actor, reason)


def _insert(specs: Sequence[JobSpec], actor: Actor, reason: str) -> list[InsertedJob]:
    inserted = sql.insert_jobs(db.connection(), specs, actor, reason)
    if inserted and (signals.job_enqueued.has_listeners() or signals.events_committed.has_listeners()):
        ids = {job.id for job in inserted}
        db.after_commit(partial(_send_signals, [spec for spec in specs if spec.id in ids]))
    return inserted


def _send_signals(specs: Sequence[JobSpec]) -> None:
    for spec in specs if signals.job_enqueued.has_listeners() else ():
        signals.job_enqueued.send_robust(
            sender=spec.job_type, job_id=spec.id, job_type=spec.job_type, tenant=spec.tenant, status=spec.status
        )
    signals.events_committed.send_robust(sender=None)
