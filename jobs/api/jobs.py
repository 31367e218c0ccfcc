"""Jobs: submit, list, look at, edit, operate; their events, their logs, and the one run that each started job has."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any
from uuid import UUID

from django.db.models import F, Q
from django.http import HttpResponse
from django.utils.translation import gettext as _
from ninja import Router

from jobs import serializers
from jobs.api import field_schemas as f
from jobs.api import serializers as shaping
from jobs.api.auth import ApiRequest, Caller
from jobs.api.idempotency import KEYED, submit
from jobs.api.index_scan import Walk, newest_page
from jobs.api.job_filters import JobFilters, NotDefault, queue_page, walks
from jobs.api.job_schemas import (
    BulkOut,
    EventPage,
    ExplanationOut,
    JobEdits,
    JobIn,
    JobOut,
    JobPage,
    JobRunOut,
    JobRunPage,
    JobsIn,
    LogPage,
    MoveIn,
    RetryIn,
    VerbIn,
)
from jobs.api.operations import action, operation, submission
from jobs.api.pagination import Order, Paged, Place, page, page_of_ids
from jobs.api.problems import Forbidden
from jobs.api.request_params import Asked, Bulk, Document, Optional, each, gated, one_of
from jobs.api.responses import answer, tagged
from jobs.api.schemas import Id, words
from jobs.conf import conf
from jobs.errors import InvalidInput, NotFound
from jobs.explain import explain
from jobs.models import Job, JobEvent, JobLog, JobRun
from jobs.redaction import restore
from jobs.services import jobs as job_services
from jobs.states import RUN_STATUSES
from jobs.validation import fields

router = Router(tags=["jobs"])
runs_router = Router(tags=["job runs"])

Why = Annotated[VerbIn, Optional()]


@router.get("/jobs", **operation("jobs_list", JobPage, summary="List jobs"))
def jobs_list(request: ApiRequest, asked: Annotated[JobFilters, Asked()]) -> HttpResponse:
    """Newest first, of the token's tenant; with `order=queue`, what is QUEUED in the order in which it will start:
    priority, position, creation (INV-004).

    `status` and `tag` may be repeated: any of the statuses, all of the tags. A page may be shorter than `limit`, even
    empty, while `next_cursor` is there: follow it until it is null.
    """
    return answer(page_of_jobs(request.auth, "jobs_list", asked, asked))


@router.post("/jobs", **submission("jobs_create", JobOut, "Submit a job", **KEYED))
def jobs_create(request: ApiRequest, body: Annotated[JobIn, Document()]) -> HttpResponse:
    """The params are checked against the handler's signature and kept as they are: neither a template's nor a
    schedule's later edits touch them (INV-005).

    With an idempotency key, a repeated submission answers with the job that the first one made, as it is now; the same
    key with another body is refused.
    """
    said = body.given_fields()
    said["tenant"] = request.auth.tenant_for(said.get("tenant"))
    return submit(request, said)


@router.post("/jobs/bulk", **submission("jobs_create_many", BulkOut, "Submit many jobs, all or none"))
def jobs_create_many(request: ApiRequest, body: Annotated[JobsIn, Bulk()]) -> HttpResponse:
    """Each entry is what `POST /jobs` takes, idempotency keys included. If one is wrong, none is submitted."""
    if not isinstance(body.jobs, list):
        raise InvalidInput("jobs", _("must be a list"), "list_type")
    items: list[Any] = list(body.jobs)
    for index, item in enumerate(items):
        try:
            if isinstance(item, dict):  # the service says what is wrong with any other item
                items[index] = {**item, "tenant": request.auth.tenant_for(item.get("tenant"))}
        except InvalidInput as error:
            raise error.under("jobs", index) from None
    ids = job_services.enqueue_many(items, actor=request.auth.actor, limit=conf.API_BULK_LIMIT)
    return answer({"count": len(ids), "ids": [str(job_id) for job_id in ids]}, 201)


@router.get("/jobs/{job_id}", **operation("jobs_get", JobOut, problems=[404], summary="Look at a job", cached=True))
def jobs_get(request: ApiRequest, job_id: Id) -> HttpResponse:
    return tagged(request, shaping.one(fields.parse_id(job_id), request.auth))


@router.patch(
    "/jobs/{job_id}",
    **operation(
        "jobs_update",
        JobOut,
        scope="operate",
        permission="change_job",
        body=True,
        problems=[404, 409],
        summary="Edit a job that waits",
    ),
)
def jobs_update(request: ApiRequest, job_id: Id, body: Annotated[JobEdits, Document()]) -> HttpResponse:
    """Only what is said changes; null clears. Once the job was dispatched, params and target are frozen for good
    (INV-001): 409 with `field`. The rest can be changed while the job waits, tags at any time.

    Params replace the old ones as a whole; a masked secret that comes back as it was shown keeps its value.
    """
    known, caller, edits = request.auth.job_id(job_id), request.auth, body.given_fields()
    if "params" in edits:
        if not caller.payload:
            raise Forbidden(_("Params that you may not see you may not overwrite either."))
        params = caller.jobs().filter(pk=known).values_list("params", flat=True).first()
        edits["params"] = restore(fields.parse_json_object(edits["params"], "params"), params, "params")
    job_services.update(known, edits, actor=caller.actor)
    return answer(shaping.one(known, caller))


def page_of_jobs(caller: Caller, operation: str, asked: Paged, filters: JobFilters) -> dict[str, Any]:
    """One page of jobs, and the cursor for the next. `asked` is what the caller said, `filters` what it means."""

    def read(place: Place | None) -> tuple[list[UUID], Place | None]:
        if filters.order == "queue":
            return queue_page(caller, filters, place)
        return newest_page(walks(caller, filters), place, filters.limit)

    return page_of_ids(caller, operation, asked, read, lambda ids: shaping.several(ids, caller))


def verb(name: str, summary: str, response: Any = JobOut, permission: str = "") -> dict[str, Any]:
    return action(f"jobs_{name}", response, permission or f"{name}_job", summary)


@router.post("/jobs/{job_id}/cancel", **verb("cancel", "End a job, or ask it to stop"))
def jobs_cancel(request: ApiRequest, job_id: Id, body: Why) -> HttpResponse:
    """What waits or is paused ends CANCELLED at once; a running job is asked, and is CANCELLED when its handler
    stops. Asking again changes nothing; an ended job is a 409."""
    return _apply_action(request, job_services.cancel, job_id, body)


@router.post("/jobs/{job_id}/pause", **verb("pause", "Stop a job so that it can go on later"))
def jobs_pause(request: ApiRequest, job_id: Id, body: Why) -> HttpResponse:
    """QUEUED becomes PAUSED at once; a running job is asked, keeps its run open, and shuts its target until it is
    resumed."""
    return _apply_action(request, job_services.pause, job_id, body)


@router.post("/jobs/{job_id}/resume", **verb("resume", "Go on with a paused or failed job", {200: JobOut, 201: JobOut}))
def jobs_resume(request: ApiRequest, job_id: Id, body: Why) -> HttpResponse:
    """A PAUSED job is QUEUED again, with the same run: 200. A FAILED one is followed by a new job at the head of its
    target: 201 and the new job."""
    return _apply_action(request, job_services.resume, job_id, body)


@router.post("/jobs/{job_id}/retry", **verb("retry", "Do it again, as a new job", {200: JobOut, 201: JobOut}))
def jobs_retry(request: ApiRequest, job_id: Id, body: Annotated[RetryIn, Optional()]) -> HttpResponse:
    """A new job follows the last one of the chain, whichever of its jobs is named (DEC-007): 201. A retry that waits
    out its backoff is sent off at once instead: 200. `fresh` drops the checkpoint."""
    return _answer_retry(request, request.auth.job_id(job_id), body)


@router.post("/jobs/{job_id}/resolve", **verb("resolve", "Accept a failure"))
def jobs_resolve(request: ApiRequest, job_id: Id, body: Why) -> HttpResponse:
    """The job stays FAILED and no longer blocks its target."""
    return _apply_action(request, job_services.resolve, job_id, body)


@router.post("/jobs/{job_id}/release", **verb("release", "Lift the hold of a PENDING job"))
def jobs_release(request: ApiRequest, job_id: Id, body: Why) -> HttpResponse:
    """409 while a predecessor in its group is not done (DEC-012)."""
    return _apply_action(request, job_services.release, job_id, body)


@router.post("/jobs/{job_id}/move", **verb("move", "Reorder the queue", permission="reorder_job"))
def jobs_move(request: ApiRequest, job_id: Id, body: Annotated[MoveIn, Optional()]) -> HttpResponse:
    """Before or after another job, or to the top or bottom, among the waiting jobs of one tenant and priority
    (INV-004, DEC-005)."""
    caller, said = request.auth, body.given_fields()
    known = caller.job_id(job_id)
    for name in ("before", "after"):
        if said.get(name) is not None:
            said[name] = caller.job_id(fields.parse_text(said[name], name))
    job_services.move(known, **said, actor=caller.actor)
    return answer(shaping.one(known, caller))


def _answer_retry(request: ApiRequest, job_id: UUID, body: RetryIn) -> HttpResponse:
    fresh, reason = (False if body.fresh is None else body.fresh), body.reason or ""
    job, is_new = job_services.retried(job_id, reason=reason, fresh=fresh, actor=request.auth.actor)
    return answer(shaping.one(job.pk, request.auth), 201 if is_new else 200)


def _apply_action(request: ApiRequest, service: Callable[..., Job], job_id: str, body: VerbIn) -> HttpResponse:
    """The job that the service left behind: 201 where that is a new one."""
    known = request.auth.job_id(job_id)
    job = service(known, reason=body.reason, actor=request.auth.actor)
    return answer(shaping.one(job.pk, request.auth), 200 if job.pk == known else 201)


@router.get(
    "/jobs/{job_id}/events",
    **operation("jobs_events", EventPage, problems=[404], by_alias=True, summary="What happened to a job"),
)
def jobs_events(request: ApiRequest, job_id: Id, asked: Annotated[Paged, Asked()]) -> HttpResponse:
    """Every move with who made it and why. Exactly one of COMPLETED, FAILED, SKIPPED and CANCELLED ends the trail of a
    job's life."""
    known = request.auth.job_id(job_id)
    rows = JobEvent.objects.filter(job_id=known)
    return answer(page(request.auth, "jobs_events", asked, rows, Order(JobEvent, ("id",)), serializers.event, of=known))


@router.get("/jobs/{job_id}/logs", **operation("jobs_logs", LogPage, problems=[404], summary="What the handler logged"))
def jobs_logs(request: ApiRequest, job_id: Id, asked: Annotated[Paged, Asked()]) -> HttpResponse:
    """A session needs the permission to see payloads for this."""
    if not request.auth.payload:
        raise Forbidden(_("You lack the permission for this."))
    known = request.auth.job_id(job_id)
    rows = JobLog.objects.filter(job_id=known)
    return answer(page(request.auth, "jobs_logs", asked, rows, Order(JobLog, ("id",)), serializers.log, of=known))


@router.get(
    "/jobs/{job_id}/explain",
    **operation("jobs_explain", ExplanationOut, problems=[404], summary="Why a job is not running"),
)
def jobs_explain(request: ApiRequest, job_id: Id) -> HttpResponse:
    """Every reason that keeps it waiting, its place in the queue, and, from measured durations, when it may start.

    A running or ended job has no reasons.
    """
    return answer(explain(request.auth.job_id(job_id)).document())


class RunFilters(Paged):
    status: Annotated[list[str] | None, *each(one_of(*map(str, RUN_STATUSES)), words(RUN_STATUSES))] = None
    job_type: Annotated[str | None, *gated(fields.parse_identifier, f.NAME)] = None
    tenant: Annotated[str | None, *gated(fields.parse_tenant, f.TENANT)] = None


@runs_router.get("/job-runs", **operation("job_runs_list", JobRunPage, summary="List runs"))
def job_runs_list(request: ApiRequest, asked: Annotated[RunFilters, Asked()]) -> HttpResponse:
    """Newest job first. A page may be shorter than `limit` while `next_cursor` is there."""
    caller = request.auth

    def read(place: Place | None) -> tuple[list[UUID], Place | None]:
        return newest_page(_run_walks(caller, asked), place, asked.limit)

    def show(ids: list[UUID]) -> list[dict[str, Any]]:
        found = JobRun.objects.in_bulk(ids)
        return [shaping.run(found[run_id], caller) for run_id in ids if run_id in found]

    return answer(page_of_ids(caller, "job_runs_list", asked, read, show))


@runs_router.get(
    "/job-runs/{run_id}", **operation("job_runs_get", JobRunOut, problems=[404], summary="Look at a run", cached=True)
)
def job_runs_get(request: ApiRequest, run_id: Id) -> HttpResponse:
    """A run has the id of its job."""
    row = JobRun.objects.filter(pk=request.auth.job_id(run_id)).first()
    if row is None:
        raise NotFound(run_id)
    return tagged(request, shaping.run(row, request.auth))


@runs_router.post(
    "/job-runs/{run_id}/retry",
    **action("job_runs_retry", {200: JobOut, 201: JobOut}, "retry_job", "Do it again, as a new job"),
)
def job_runs_retry(request: ApiRequest, run_id: Id, body: Annotated[RetryIn, Optional()]) -> HttpResponse:
    """As `POST /jobs/{id}/retry` for the job of this run (DEC-007)."""
    known = request.auth.job_id(run_id)
    if not JobRun.objects.filter(pk=known).exists():
        raise NotFound(run_id)
    return _answer_retry(request, known, body)


def _run_walks(caller: Caller, asked: RunFilters) -> list[Walk]:
    if asked.tenant is not None and not caller.sees(asked.tenant):
        return []
    tenant = caller.tenant if asked.tenant is None else asked.tenant
    along_runs = tenant in (None, "default")
    of_run, of_job = ("", "job__") if along_runs else ("run__", "")
    also = Q(**{f"{of_run}status__in": asked.status}) if asked.status else Q()
    if asked.job_type is not None:
        also &= Q(**{f"{of_job}job_type": asked.job_type})
    if along_runs:
        return [Walk(JobRun.objects.all(), also if tenant is None else also & Q(job__tenant=tenant))]
    jobs = Job.objects.filter(NotDefault(F("tenant")), tenant=tenant)
    return [Walk(jobs, Q(run__isnull=False) & also, joined="run__pk")]
