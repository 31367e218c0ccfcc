"""Requests to workers: written into the worker's row, which the worker reads with its next heartbeat."""

from __future__ import annotations

import logging
from datetime import timedelta
from uuid import UUID

from django.db.models.functions import Now
from django.utils.translation import gettext as _

from jobs import clock, db
from jobs.actors import PYTHON, Actor
from jobs.conf import conf
from jobs.engine.worker.registration import IDLE_BEAT_SEC
from jobs.errors import Conflict, NotFound
from jobs.models import Worker, WorkerState
from jobs.validation import fields

logger = logging.getLogger("jobs.services.workers")


def quiet(worker_id: UUID, *, reason: str = "", actor: Actor = PYTHON) -> Worker:
    """Let a worker finish its running jobs and claim no more until `wake`."""
    return _request_state(worker_id, WorkerState.QUIET, reason, actor)


def wake(worker_id: UUID, *, reason: str = "", actor: Actor = PYTHON) -> Worker:
    """Let a worker claim jobs again."""
    return _request_state(worker_id, "", reason, actor)


def stop(worker_id: UUID, *, reason: str = "", actor: Actor = PYTHON) -> Worker:
    """Stop a worker as SIGTERM does: jobs that do not finish in time return to the queue."""
    return _request_state(worker_id, WorkerState.STOPPING, reason, actor)


def is_alive(worker: Worker) -> bool:
    """Return whether the worker has sent a heartbeat recently."""
    if worker.state == WorkerState.STOPPED:
        return False
    return worker.heartbeat_at > clock.now() - timedelta(seconds=max(conf.LEASE_SEC, 3 * IDLE_BEAT_SEC))


def _request_state(worker_id: UUID, state: str, reason: str, actor: Actor) -> Worker:
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
    requested_by = actor.name or actor.kind
    suffix = f": {reason}" if reason else ""
    logger.info("worker %s: %s requested by %s%s", worker.name, state or WorkerState.RUNNING, requested_by, suffix)
    worker.refresh_from_db(using=db.alias())
    return worker
