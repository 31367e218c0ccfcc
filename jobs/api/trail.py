"""What happened to a job and what its handler logged, oldest first."""

from __future__ import annotations

from typing import Annotated

from django.http import HttpResponse
from django.utils.translation import gettext as _
from ninja import Router

from jobs import shapes
from jobs.api.answers import answer
from jobs.api.callers import ApiRequest
from jobs.api.jobs import JobId
from jobs.api.operations import operation
from jobs.api.pages import Order, Paged, page
from jobs.api.problems import Forbidden
from jobs.api.queries import Asked
from jobs.api.schemas import EventPage, ExplanationOut, LogPage
from jobs.explain import explain
from jobs.models import JobEvent, JobLog

router = Router(tags=["jobs"])


@router.get(
    "/jobs/{job_id}/events",
    **operation("jobs_events", EventPage, problems=[404], by_alias=True, summary="What happened to a job"),
)
def jobs_events(request: ApiRequest, job_id: JobId, asked: Annotated[Paged, Asked()]) -> HttpResponse:
    """Every move with who made it and why. Exactly one of COMPLETED, FAILED, SKIPPED and CANCELLED ends the trail of a
    job's life."""
    known = request.auth.job_id(job_id)
    rows = JobEvent.objects.filter(job_id=known)
    return answer(page(request.auth, "jobs_events", asked, rows, Order(JobEvent, ("id",)), shapes.event, of=known))


@router.get("/jobs/{job_id}/logs", **operation("jobs_logs", LogPage, problems=[404], summary="What the handler logged"))
def jobs_logs(request: ApiRequest, job_id: JobId, asked: Annotated[Paged, Asked()]) -> HttpResponse:
    """A session needs the permission to see payloads for this."""
    if not request.auth.payload:
        raise Forbidden(_("You lack the permission for this."))
    known = request.auth.job_id(job_id)
    rows = JobLog.objects.filter(job_id=known)
    return answer(page(request.auth, "jobs_logs", asked, rows, Order(JobLog, ("id",)), shapes.log, of=known))


@router.get(
    "/jobs/{job_id}/explain",
    **operation("jobs_explain", ExplanationOut, problems=[404], summary="Why a job is not running"),
)
def jobs_explain(request: ApiRequest, job_id: JobId) -> HttpResponse:
    """Every reason that keeps it waiting, its place in the queue, and, from measured durations, when it may start.

    A running or ended job has no reasons.
    """
    return answer(explain(request.auth.job_id(job_id)).document())
