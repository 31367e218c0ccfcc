"""Job runs: the one execution that each started job has."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from django.db.models import F, Q, QuerySet
from django.http import HttpResponse
from ninja import Router

from jobs import parsing
from jobs.api import cursors, shaping, walks
from jobs.api import fields as f
from jobs.api.answers import answer, tagged
from jobs.api.bodies import Optional
from jobs.api.callers import ApiRequest, Caller
from jobs.api.job_bodies import RetryIn
from jobs.api.job_filters import NotDefault
from jobs.api.jobs import JobId
from jobs.api.operations import operation
from jobs.api.pages import Paged
from jobs.api.queries import Asked, each, gated, one_of
from jobs.api.schemas import JobOut, JobRunOut, JobRunPage, words
from jobs.api.verbs import retried
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
    bond = cursors.bound_to("job_runs_list", caller.tenant, asked.asked())
    place = None if asked.cursor is None else UUID(cursors.place_of(asked.cursor, bond)[0])
    ids, further = walks.newest(_walks(caller, asked), place, asked.limit)
    found = {row.pk: row for row in _runs().filter(pk__in=ids)}
    items = [shaping.run(found[run_id], caller) for run_id in ids if run_id in found]
    return answer({"items": items, "next_cursor": None if further is None else cursors.seal(bond, [str(further)])})


@router.get(
    "/job-runs/{run_id}", **operation("job_runs_get", JobRunOut, problems=[404], summary="Look at a run", cached=True)
)
def job_runs_get(request: ApiRequest, run_id: JobId) -> HttpResponse:
    """A run has the id of its job."""
    row = _runs().filter(pk=request.auth.job_id(run_id)).first()
    if row is None:
        raise NotFound(run_id)
    return tagged(request, shaping.run(row, request.auth))


@router.post(
    "/job-runs/{run_id}/retry",
    **operation(
        "job_runs_retry",
        {200: JobOut, 201: JobOut},
        scope="operate",
        permission="retry_job",
        body="optional",
        problems=[404, 409],
        summary="Do it again, as a new job",
    ),
)
def job_runs_retry(request: ApiRequest, run_id: JobId, body: Annotated[RetryIn, Optional()]) -> HttpResponse:
    """As `POST /jobs/{id}/retry` for the job of this run (DEC-007)."""
    known = request.auth.job_id(run_id)
    if not _runs().filter(pk=known).exists():
        raise NotFound(run_id)
    return retried(request, known, body)


def _walks(caller: Caller, asked: RunFilters) -> list[walks.Walk]:
    if asked.tenant is not None and not caller.sees(asked.tenant):
        return []
    tenant = caller.tenant if asked.tenant is None else asked.tenant
    if tenant in (None, "default"):
        also = Q() if tenant is None else Q(job__tenant=tenant)
        return [walks.Walk(_runs(), also & _judged(asked, "", "job__"))]
    jobs = Job.objects.filter(NotDefault(F("tenant")), tenant=tenant)
    return [walks.Walk(jobs, Q(run__isnull=False) & _judged(asked, "run__", ""), joined="run__pk")]


def _judged(asked: RunFilters, of_run: str, of_job: str) -> Q:
    found = Q(**{f"{of_run}status__in": asked.status}) if asked.status else Q()
    return found & Q(**{f"{of_job}job_type": asked.job_type}) if asked.job_type is not None else found


def _runs() -> QuerySet[JobRun]:
    return JobRun.objects.all()
