"""Signals that report what happened to jobs and groups, after the commit.

They are sent by the process whose transaction made the transition, with `send_robust`: a receiver that raises is
logged and changes nothing. They carry ids and facts, no model. At most once: a crash between the commit and the
signal loses it, and changes made by raw SQL send none. A receiver that must not miss an event should be a webhook or
read the event table. In a worker, receivers run in the thread that claims and records: a slow one is logged.

`sender` is the model, Job or JobGroup. Keyword arguments:

- `job_enqueued`, after a job was inserted, retries included: job_id, job_type, tenant, status
- `job_started`, after a worker or a remote executor started it: job_id, job_type, tenant
- `job_finished`, after it ended COMPLETED, FAILED, SKIPPED or CANCELLED: job_id, job_type, tenant, status, reason,
  retried_by (the id of the automatic retry, or None)
- `job_failed`, after the `job_finished` of a FAILED job: the same
- `group_finished`, after a group ended: group_id, tenant, status, round
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from django.apps import apps
from django.dispatch import Signal

from jobs import db

logger = logging.getLogger("jobs.signals")
SLOW_SEC = 0.1

job_enqueued = Signal()
job_started = Signal()
job_finished = Signal()
job_failed = Signal()
group_finished = Signal()

# Sent after commits that wrote job events, without arguments, so that pollers of this process can look at once.
events_committed = Signal()


class EnqueuedJob(NamedTuple):
    job_id: UUID
    job_type: str
    tenant: str
    status: str


class StartedJob(NamedTuple):
    job_id: UUID
    job_type: str
    tenant: str


class FinishedJob(NamedTuple):
    job_id: UUID
    job_type: str
    tenant: str
    status: str
    reason: str
    retried_by: UUID | None = None


class FinishedGroup(NamedTuple):
    group_id: UUID
    tenant: str
    status: str
    round: int


def send_after_commit(
    *,
    enqueued: Iterable[EnqueuedJob] = (),
    started: Iterable[StartedJob] = (),
    finished: Iterable[FinishedJob] = (),
    groups: Iterable[FinishedGroup] = (),
) -> None:
    """Send the signals of these transitions after the commit. Pass generators: signals without receivers read none."""
    pending: list[tuple[Signal, Any]] = []
    if job_enqueued.receivers:
        pending += [(job_enqueued, job) for job in enqueued]
    if job_started.receivers:
        pending += [(job_started, job) for job in started]
    if job_finished.receivers or job_failed.receivers:
        for job in finished:
            pending += [(job_finished, job), *([(job_failed, job)] if job.status == "FAILED" else [])]
    if group_finished.receivers:
        pending += [(group_finished, group) for group in groups]
    if events_committed.receivers:
        pending.append((events_committed, None))
    if pending:
        db.after_commit(partial(_send, pending))


def _send(pending: Sequence[tuple[Signal, Any]]) -> None:
    job, group = (apps.get_model("jobscheduler_jobs", name) for name in ("Job", "JobGroup"))
    for signal, facts in pending:
        started_at = time.monotonic()
        sender = group if signal is group_finished else job
        signal.send_robust(sender=sender, **({} if facts is None else facts._asdict()))
        if (seconds := time.monotonic() - started_at) > SLOW_SEC:
            logger.warning("receivers of %s took %.1f s; a worker claims nothing meanwhile", _NAMES[signal], seconds)


_NAMES = {signal: name for name, signal in globals().items() if isinstance(signal, Signal)}
