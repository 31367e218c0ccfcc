"""What a person does with a job: one endpoint per verb, each one call of a service."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any
from uuid import UUID

from django.http import HttpResponse
from ninja import Router

from jobs import services
from jobs.api import shaping
from jobs.api.answers import answer
from jobs.api.bodies import Optional
from jobs.api.callers import ApiRequest
from jobs.api.job_bodies import MoveIn, RetryIn, VerbIn
from jobs.api.jobs import JobId
from jobs.api.operations import operation
from jobs.api.schemas import JobOut
from jobs.models import Job

router = Router(tags=["jobs"])

Why = Annotated[VerbIn, Optional()]


def verb(name: str, summary: str, response: Any = JobOut, permission: str = "") -> dict[str, Any]:
    return operation(
        f"jobs_{name}",
        response,
        scope="operate",
        permission=permission or f"{name}_job",
        body="optional",
        problems=[404, 409],
        summary=summary,
    )


@router.post("/jobs/{job_id}/cancel", **verb("cancel", "End a job, or ask it to stop"))
def jobs_cancel(request: ApiRequest, job_id: JobId, body: Why) -> HttpResponse:
    """What waits or is paused ends CANCELLED at once; a running job is asked, and is CANCELLED when its handler
    stops. Asking again changes nothing; an ended job is a 409."""
    return _done(request, services.cancel, job_id, body)


@router.post("/jobs/{job_id}/pause", **verb("pause", "Stop a job so that it can go on later"))
def jobs_pause(request: ApiRequest, job_id: JobId, body: Why) -> HttpResponse:
    """QUEUED becomes PAUSED at once; a running job is asked, keeps its run open, and shuts its target until it is
    resumed."""
    return _done(request, services.pause, job_id, body)


@router.post("/jobs/{job_id}/resume", **verb("resume", "Go on with a paused or failed job", {200: JobOut, 201: JobOut}))
def jobs_resume(request: ApiRequest, job_id: JobId, body: Why) -> HttpResponse:
    """A PAUSED job is QUEUED again, with the same run: 200. A FAILED one is followed by a new job at the head of its
    target: 201 and the new job."""
    return _done(request, services.resume, job_id, body)


@router.post("/jobs/{job_id}/retry", **verb("retry", "Do it again, as a new job", {200: JobOut, 201: JobOut}))
def jobs_retry(request: ApiRequest, job_id: JobId, body: Annotated[RetryIn, Optional()]) -> HttpResponse:
    """A new job follows the last one of the chain, whichever of its jobs is named (DEC-007): 201. A retry that waits
    out its backoff is sent off at once instead: 200. `fresh` drops the checkpoint."""
    return retried(request, request.auth.job_id(job_id), body)


@router.post("/jobs/{job_id}/resolve", **verb("resolve", "Accept a failure"))
def jobs_resolve(request: ApiRequest, job_id: JobId, body: Why) -> HttpResponse:
    """The job stays FAILED and no longer blocks its target."""
    return _done(request, services.resolve, job_id, body)


@router.post("/jobs/{job_id}/release", **verb("release", "Lift the hold of a PENDING job"))
def jobs_release(request: ApiRequest, job_id: JobId, body: Why) -> HttpResponse:
    """409 while a predecessor in its group is not done (DEC-012)."""
    return _done(request, services.release, job_id, body)


@router.post("/jobs/{job_id}/move", **verb("move", "Reorder the queue", permission="reorder_job"))
def jobs_move(request: ApiRequest, job_id: JobId, body: Annotated[MoveIn, Optional()]) -> HttpResponse:
    """Before or after another job, or to the top or bottom, among the waiting jobs of one tenant and priority
    (INV-004, DEC-005)."""
    caller, said = request.auth, body.said()
    known = caller.job_id(job_id)
    for name in ("before", "after"):
        if said.get(name) is not None:
            said[name] = caller.job_named(said[name], name)
    services.move(known, **said, actor=caller.actor)
    return answer(shaping.one(known, caller))


def retried(request: ApiRequest, job_id: UUID, body: RetryIn) -> HttpResponse:
    fresh, reason = (False if body.fresh is None else body.fresh), body.reason or ""
    job, is_new = services.retried(job_id, reason=reason, fresh=fresh, actor=request.auth.actor)
    return answer(shaping.one(job.pk, request.auth), 201 if is_new else 200)


def _done(request: ApiRequest, service: Callable[..., Job], job_id: str, body: VerbIn) -> HttpResponse:
    """The job that the service left behind: 201 where that is a new one."""
    known = request.auth.job_id(job_id)
    job = service(known, reason=body.reason, actor=request.auth.actor)
    return answer(shaping.one(job.pk, request.auth), 200 if job.pk == known else 201)
