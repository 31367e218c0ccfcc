"""Workers as an operator handles them: a request is written into a worker's row, which it reads with its next beat."""

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
    """It finishes what it has, and takes no more until it is woken."""
    return _request_state(worker_id, WorkerState.QUIET, reason, actor)


def wake(worker_id: UUID, *, reason: str = "", actor: Actor = PYTHON) -> Worker:
    """It takes jobs again."""
    return _request_state(worker_id, "", reason, actor)


def stop(worker_id: UUID, *, reason: str = "", actor: Actor = PYTHON) -> Worker:
    """It ends in an orderly way, as after a signal: what it cannot finish in time is handed back."""
    return _request_state(worker_id, WorkerState.STOPPING, reason, actor)


def is_alive(worker: Worker) -> bool:
    """Whether somebody is there to read a request."""
    if worker.state == WorkerState.STOPPED:
        return False
    return worker.heartbeat_at > clock.now() - timedelta(seconds=max(conf.LEASE_SEC, 3 * IDLE_BEAT_SEC))


def _request_state(worker_id: UUID, wish: str, reason: str, actor: Actor) -> Worker:
    why = fields.parse_reason(reason)
    with db.atomic():
        worker = Worker.objects.select_for_update(no_key=True).filter(pk=worker_id).first()
        if worker is None:
            raise NotFound(_("There is no such worker."))
        if not is_alive(worker):
            raise Conflict(_("it is not there any more to hear of it"))
        if WorkerState.STOPPING in (worker.request, worker.state) and wish != WorkerState.STOPPING:
            raise Conflict(_("it is stopping already"))
        if worker.request != wish:
            asked_at = Now() if wish else None
            Worker.objects.filter(pk=worker.pk).update(request=wish, requested_at=asked_at)
    said = f"worker {worker.name} asked to become {wish or WorkerState.RUNNING} by {actor.name or actor.kind}"
    logger.info("%s%s", said, f": {why}" if why else "")
    worker.refresh_from_db(using=db.alias())
    return worker
