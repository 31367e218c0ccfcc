"""Everybody retries one failed job at once."""

from __future__ import annotations

from typing import Any

from jobs import actors
from jobs.engine import promoter
from jobs.engine.finish import JobResult, finish
from jobs.errors import LiveTail, Superseded
from jobs.outcomes import Failed
from jobs.services import jobs as job_services
from tests.races import NOOP, job_types
from tests.races.claim import JobClaimer
from tests.races.parallel import SyncPoints


def stage(plan: dict[str, Any]) -> dict[str, Any]:
    job = job_types.noop.using(target=plan["target"]).enqueue()
    job_services.enqueue(NOOP, target=plan["target"])
    fail_the_first()
    return {"job": str(job.pk)}


def fail_the_first() -> None:
    promoter.promote()
    worker = actors.make_worker_actor("stage")
    (taken,) = JobClaimer(worker.name).take([1])
    finish([JobResult(taken.id, taken.lease_token, Failed("Traceback…", "broken"), taken.group_id)], actor=worker)


def act(index: int, plan: dict[str, Any], meeting: SyncPoints) -> dict[str, Any]:
    verb = job_services.resume if index % 2 else job_services.retry
    meeting.start.wait()
    try:
        return {"made": str(verb(plan["job"]).pk)}
    except (LiveTail, Superseded) as refusal:
        return {"tail": str(refusal.tail_id)}
