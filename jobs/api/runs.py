"""Job runs: the one execution that each started job has."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from django.db.models import F, Q
from django.http import HttpResponse
from ninja import Router

from jobs import parsing
from jobs.api import fields as f
from jobs.api import shaping
from jobs.api.auth import ApiRequest, Caller
from jobs.api.job_lists import NotDefault, Walk, newest_page
from jobs.api.jobs import retried
from jobs.api.operations import action, operation
from jobs.api.pagination import Paged, Place, page_of_ids
from jobs.api.request_params import Asked, Optional, each, gated, one_of
from jobs.api.responses import answer, tagged
from jobs.api.schemas import Id, JobOut, JobRunOut, JobRunPage, RetryIn, words
from jobs.errors import NotFound
from jobs.models import Job, JobRun
from jobs.states import RUN_STATUSES

router = Router(tags=["job runs"])


class RunFilters(Paged):
    status: Annotated[list[str] | None, *each(one_of(*map(str, RUN_STATUSES)), words(RUN_STATUSES))] = None
    job_type: Annotated[str | None, *gated(parsing.identifier, f.NAME)] = None
    tenant: Annotated[str | None, *gated(parsing.tenant, f.TENANT)] = None


@router.get("/job-runs", **operation("job_runs_list", JobRunPage, summary="List runs"))
def job_runs_list(request: ApiRequest, asked: Annotated[RunFilters, Asked()]) -> HttpResponse:
    """Newest job first. A page may be shorter than `limit` while `next_cursor` is there."""
    caller = request.auth

    def read(place: Place | None) -> tuple[list[UUID], Place | None]:
        return newest_page(_walks(caller, asked), place, asked.limit)

    def show(ids: list[UUID]) -> list[dict[str, Any]]:
        found = JobRun.objects.in_bulk(ids)
        return [shaping.run(found[run_id], caller) for run_id in ids if run_id in found]

    return answer(page_of_ids(caller, "job_runs_list", asked, read, show))


@router.get(
    "/job-runs/{run_id}", **operation("job_runs_get", JobRunOut, problems=[404], summary="Look at a run", cached=True)
)
def job_runs_get(request: ApiRequest, run_id: Id) -> HttpResponse:
    """A run has the id of its job."""
    row = JobRun.objects.filter(pk=request.auth.job_id(run_id)).first()
    if row is None:
        raise NotFound(run_id)
    return tagged(request, shaping.run(row, request.auth))


@router.post(
    "/job-runs/{run_id}/retry",
    **action("job_runs_retry", {200: JobOut, 201: JobOut}, "retry_job", "Do it again, as a new job"),
)
def job_runs_retry(request: ApiRequest, run_id: Id, body: Annotated[RetryIn, Optional()]) -> HttpResponse:
    """As `POST /jobs/{id}/retry` for the job of this run (DEC-007)."""
    known = request.auth.job_id(run_id)
    if not JobRun.objects.filter(pk=known).exists():
        raise NotFound(run_id)
    return retried(request, known, body)


def _walks(caller: Caller, asked: RunFilters) -> list[Walk]:
    if asked.tenant is not None and not caller.sees(asked.tenant):
        return []
    tenant = caller.tenant if asked.tenant is None else asked.tenant
    if tenant in (None, "default"):
        also = Q() if tenant is None else Q(job__tenant=tenant)
        return [Walk(JobRun.objects.all(), also & _judged(asked, "", "job__"))]
    jobs = Job.objects.filter(NotDefault(F("tenant")), tenant=tenant)
    return [Walk(jobs, Q(run__isnull=False) & _judged(asked, "run__", ""), joined="run__pk")]


def _judged(asked: RunFilters, of_run: str, of_job: str) -> Q:
    found = Q(**{f"{of_run}status__in": asked.status}) if asked.status else Q()
    return found & Q(**{f"{of_job}job_type": asked.job_type}) if asked.job_type is not None else found
