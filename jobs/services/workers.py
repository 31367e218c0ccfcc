"""Run a worker in this process, and send requests to other workers.

A request is written into the worker's row, which the worker reads with its next heartbeat.
"""

from __future__ import annotations

import logging
from uuid import UUID

from django.db.models.functions import Now
from django.utils.translation import gettext as _

from jobs import clock, db
from jobs.actors import PYTHON, Actor
from jobs.engine.claim import ServedJobs
from jobs.engine.worker import WorkerLoop, WorkerOptions, registration
from jobs.errors import Conflict, NotFound
from jobs.models import Action, Worker, WorkerState
from jobs.models.worker import heartbeat_timeout
from jobs.process_identity import Liveness
from jobs.services import activity
from jobs.validation import fields

__all__ = ["ServedJobs", "WorkerOptions", "has_running_worker", "is_alive", "quiet", "run_worker", "stop", "wake"]

logger = logging.getLogger("jobs.services.workers")


def run_worker(options: WorkerOptions, *, handle_signals: bool = True) -> int:
    """Run a worker until it is stopped or, with `burst`, until no job is left. Return the exit code for the process.

    Raise Conflict if a live worker has the name that the options give.
    """
    if options.log is not None:
        options.log.install()
    worker = WorkerLoop(registration.register_worker(options))
    if handle_signals:
        worker.install_signal_handlers()
    return worker.run()


def quiet(worker_id: UUID, *, reason: str = "", actor: Actor = PYTHON) -> Worker:
    """Let a worker finish its running jobs and claim no more until `wake`."""
    return _request_state(worker_id, WorkerState.QUIET, Action.WORKER_QUIET, reason, actor)


def wake(worker_id: UUID, *, reason: str = "", actor: Actor = PYTHON) -> Worker:
    """Let a worker claim jobs again."""
    return _request_state(worker_id, "", Action.WORKER_WAKE, reason, actor)


def stop(worker_id: UUID, *, reason: str = "", actor: Actor = PYTHON) -> Worker:
    """Stop a worker as SIGTERM does: jobs that do not finish in time return to the queue."""
    return _request_state(worker_id, WorkerState.STOPPING, Action.WORKER_STOP, reason, actor)


def is_alive(worker: Worker) -> bool:
    """Return whether the worker has sent a heartbeat recently."""
    return worker.state != WorkerState.STOPPED and worker.heartbeat_at > clock.now() - heartbeat_timeout()


def has_running_worker() -> bool:
    """Return whether a worker that claims jobs sent a heartbeat recently and is not proven gone."""
    rows = Worker.objects.filter(state=WorkerState.RUNNING, heartbeat_at__gt=Now() - heartbeat_timeout())
    return any(row.identity.liveness() != Liveness.GONE for row in rows)


def _request_state(worker_id: UUID, state: str, action: Action, reason: str, actor: Actor) -> Worker:
    reason = fields.parse_reason(reason)
    with db.atomic():
        worker = Worker.objects.select_for_update(no_key=True).filter(pk=worker_id).first()
        if worker is None:
            raise NotFound(_("There is no such worker."))
        if not is_alive(worker):
            raise Conflict(_("it has stopped sending heartbeats"))
        if WorkerState.STOPPING in (worker.request, worker.state) and state != WorkerState.STOPPING:
            raise Conflict(_("it is stopping already"))
        if worker.request != state:
            requested_at = Now() if state else None
            Worker.objects.filter(pk=worker.pk).update(request=state, requested_at=requested_at)
            changed, before, after = activity.ChangedObject(worker.pk, worker.name, None), worker.request, state
            activity.record_changes(
                action, changed, {"request": before}, {"request": after}, actor=actor, reason=reason
            )
    suffix = f": {reason}" if reason else ""
    logger.info("worker %s: %s requested by %s%s", worker.name, state or WorkerState.RUNNING, actor, suffix)
    worker.refresh_from_db(using=db.alias())
    return worker
