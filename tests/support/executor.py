"""Claim jobs and report their results by hand, without a worker process."""

from __future__ import annotations

from typing import Any
from uuid import UUID, uuid4

from jobs import db
from jobs.actors import Actor, make_worker_actor
from jobs.engine import finish as ending
from jobs.engine import lifecycle, promoter
from jobs.engine.claim import Claimer, ServedJobs
from jobs.engine.finish import FinishStatus, JobResult
from jobs.engine.transitions import lock_job
from jobs.models import Job, Worker
from jobs.outcomes import Completed, Failed, Skipped
from jobs.registry import registry

NAME = "worker-1"
WORKER = make_worker_actor(NAME)


def claim_next() -> Job | None:
    """Promote what can be promoted, then claim the next job in order, as a worker does."""
    while promoter.promote():
        pass
    claimer = Claimer(NAME, ServedJobs(types=tuple(registry.local_names())), process_key=f"{NAME}@{uuid4()}")
    taken = claimer.claim([0], lease_sec=30)
    return Job.objects.get(pk=taken[0].id) if taken else None


def claim_in_slots(worker: Worker, count: int) -> None:
    """Claim so many jobs in free slots of this worker, as its process does."""
    running = Job.objects.running().count()
    claimer = Claimer(worker.name, ServedJobs(tuple(registry.local_names())), process_key=worker.identity.process_key)
    assert len(claimer.claim(range(running, running + count), lease_sec=30)) == count


def claim(job: Job) -> Job:
    """Claim this job, which must be the next in order."""
    taken = claim_next()
    assert taken is not None
    assert taken.pk == job.pk, f"the next job is {taken}"
    return taken


def offer(job_id: UUID, *, actor: Actor = WORKER, reserve_sec: float = 30) -> Job:
    """Reserve this job for a remote executor."""
    with db.atomic():
        return lifecycle.offer(lock_job(job_id), actor=actor, reserve_sec=reserve_sec)


def finish(job: Job, outcome: Completed | Skipped | Failed, **fields: Any) -> FinishStatus:
    """Report the result of `job` under the lease that it had when it was read."""
    assert job.lease_token is not None
    end = JobResult(job.pk, job.lease_token, outcome, job.group_id)
    return ending.finish([end], actor=fields.get("actor", WORKER))[job.pk]


def fail(job: Job, *, retry_in: float | None = None) -> Job:
    """Report a failure, with or without an automatic retry; return the job as it is now."""
    assert finish(job, Failed(error="boom", reason="boom", retry_in=retry_in)) == FinishStatus.DONE
    job.refresh_from_db()
    return job


def complete(job: Job) -> Job:
    assert finish(job, Completed()) == FinishStatus.DONE
    job.refresh_from_db()
    return job
