"""Endpoints of jobs: submit, list, get, edit, actions, events, logs, explain; and of their runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any
from uuid import UUID

from django.http import HttpResponse
from django.utils.translation import gettext as _
from ninja import Router

from jobs import serializers
from jobs.api import job_schemas as schemas
from jobs.api.auth import ApiRequest
from jobs.api.idempotency import WITH_IDEMPOTENCY_KEY, submit_job
from jobs.api.job_lists import JobFilters, RunFilters, build_run_scans, read_job_page, read_newest
from jobs.api.large_requests import BulkJsonBody, large_request
from jobs.api.operations import action, lookup, operation, submission
from jobs.api.pagination import Order, Paged, paginate, paginate_ids
from jobs.api.problems import Forbidden
from jobs.api.request_params import JsonBody, OptionalJsonBody, StrictQuery
from jobs.api.responses import etag_response, json_response
from jobs.api.schemas import Id
from jobs.api.serializers import read_job, serialize_event, serialize_run
from jobs.conf import conf
from jobs.errors import InvalidInput, NotFound
from jobs.explain import explain
from jobs.models import Job, JobEvent, JobLog, JobRun
from jobs.models.payload import EVENT_PAYLOAD, RUN_PAYLOAD
from jobs.redaction import restore
from jobs.services import jobs as job_services
from jobs.services.permissions import VIEW_PAYLOAD
from jobs.validation import fields

router = Router(tags=["jobs"])
runs_router = Router(tags=["job runs"])
VIEW_RUNS = ["view_jobrun"]


@router.get("/jobs", **operation("jobs_list", schemas.JobPage, "List jobs"))
def jobs_list(request: ApiRequest, query: Annotated[JobFilters, StrictQuery()]) -> HttpResponse:
    """Newest first, of the token's tenant; with `order=queue`, QUEUED jobs in the order in which they will start:
    priority, position, creation (INV-004).

    `status` and `tag` may be repeated: any of the statuses, all of the tags. A page may be shorter than `limit`, even
    empty, while `next_cursor` is there: follow it until it is null.
    """
    return json_response(read_job_page(request.auth, "jobs_list", query, query))


@router.post("/jobs", **submission("jobs_create", schemas.NEW_OR_EXISTING, "Submit a job", **WITH_IDEMPOTENCY_KEY))
def jobs_create(request: ApiRequest, body: Annotated[schemas.JobIn, JsonBody()]) -> HttpResponse:
    """The params are checked against the handler's signature and stored as they are: later edits of a template or a
    schedule do not change them (INV-005). The response means that the job is stored: it and its place in the queue
    survive a restart of any process (DEC-008).

    With an idempotency key, a repeated submission returns the job that the first one created, in its current state; the
    same key with another body is rejected. 200 if its unique key is taken: with the job that has it.
    """
    return submit_job(request, body.given_fields())


@router.post("/jobs/bulk", **submission("jobs_create_many", schemas.BulkOut, "Submit many jobs, all or none"))
def jobs_create_many(request: ApiRequest, body: Annotated[schemas.JobsIn, BulkJsonBody()]) -> HttpResponse:
    """Each entry has the fields of `POST /jobs`, idempotency keys included. If one is invalid, none is submitted."""
    if not isinstance(body.jobs, list):
        raise InvalidInput("jobs", _("must be a list"), "list_type")
    items: list[Any] = body.jobs
    if len(items) > conf.API_BULK_LIMIT:  # before anything is copied
        raise InvalidInput("jobs", _("has more than %d entries") % conf.API_BULK_LIMIT, "too_long")
    request.auth.require_template_permission(items)
    for index, item in enumerate(items):
        try:
            if isinstance(item, dict):  # the service rejects any other item
                items[index] = {**item, "tenant": request.auth.resolve_tenant(item.get("tenant"))}
        except InvalidInput as error:
            raise error.with_prefix("jobs", index) from None
    with large_request(request.auth):
        ids = job_services.enqueue_many(items, actor=request.auth.actor)
    return json_response({"count": len(ids), "ids": [str(job_id) for job_id in ids]}, 201)


@router.get("/jobs/{job_id}", **lookup("jobs_get", schemas.JobOut, "Get a job"))
def jobs_get(request: ApiRequest, job_id: Id, query: Annotated[schemas.Follow, StrictQuery()]) -> HttpResponse:
    """With its run, its lease while it is running, and the number of its deliveries. With `follow=latest`, the latest
    attempt of its retry chain (DEC-007)."""
    pk = fields.parse_id(job_id)
    return etag_response(request, read_job(job_services.find_latest_attempt(pk) if query.follow else pk, request.auth))


@router.patch("/jobs/{job_id}", **action("jobs_update", schemas.JobOut, "change_job", "Edit a waiting job", body=True))
def jobs_update(request: ApiRequest, job_id: Id, body: Annotated[schemas.JobEdits, JsonBody()]) -> HttpResponse:
    """Only the given fields change; null clears. Once the job was dispatched, params and target are frozen (INV-001):
    409 with `field`. The other fields can be changed while the job waits, tags at any time.

    Params replace the old ones as a whole. A secret that is sent back masked keeps its value while the other params are
    unchanged; else it must be sent again.
    """
    pk, principal, edits = request.auth.require_job_id(job_id), request.auth, body.given_fields()
    if "params" in edits:
        if not principal.has_permission(VIEW_PAYLOAD):
            raise Forbidden(_("Editing params requires the permission to view them."))
        params = principal.visible_jobs().filter(pk=pk).values_list("params", flat=True).first()
        edits["params"] = restore(fields.parse_json_object(edits["params"], "params"), params, "params")
    job_services.update(pk, edits, actor=principal.actor)
    return json_response(read_job(pk, principal))


def job_action(name: str, summary: str, response: Any = schemas.JobOut, permission: str = "") -> dict[str, Any]:
    """Return the options of a route that applies an action to a job."""
    return action(f"jobs_{name}", response, permission or f"{name}_job", summary)


@router.post("/jobs/{job_id}/cancel", **job_action("cancel", "Cancel a job"))
def jobs_cancel(request: ApiRequest, job_id: Id, body: schemas.ReasonBody) -> HttpResponse:
    """A waiting or paused job is CANCELLED at once; a running job gets a stop request and is CANCELLED when its handler
    stops. Repeating the request changes nothing; a finished job is a 409."""
    return _apply_action(request, job_services.cancel, job_id, body)


@router.post("/jobs/{job_id}/pause", **job_action("pause", "Pause a job"))
def jobs_pause(request: ApiRequest, job_id: Id, body: schemas.ReasonBody) -> HttpResponse:
    """A QUEUED job is PAUSED at once; a running job gets a stop request, keeps its run open, and blocks its target
    until it is resumed."""
    return _apply_action(request, job_services.pause, job_id, body)


@router.post("/jobs/{job_id}/resume", **job_action("resume", "Resume a paused or failed job", schemas.NEW_OR_EXISTING))
def jobs_resume(request: ApiRequest, job_id: Id, body: schemas.ReasonBody) -> HttpResponse:
    """A PAUSED job is QUEUED again, with the same run: 200. For a FAILED job a new one is created at the head of its
    target: 201 and the new job."""
    return _apply_action(request, job_services.resume, job_id, body)


@router.post("/jobs/{job_id}/retry", **job_action("retry", "Retry as a new job", schemas.NEW_OR_EXISTING))
def jobs_retry(request: ApiRequest, job_id: Id, body: schemas.RetryBody) -> HttpResponse:
    """Creates the next attempt of the retry chain, whichever of its jobs is named (DEC-007): 201. A retry that waits
    for its backoff is made ready at once instead: 200. `fresh` drops the checkpoint."""
    return _retry_job(request, request.auth.require_job_id(job_id), body)


@router.post("/jobs/{job_id}/resolve", **job_action("resolve", "Resolve a failure"))
def jobs_resolve(request: ApiRequest, job_id: Id, body: schemas.ReasonBody) -> HttpResponse:
    """The job stays FAILED and no longer blocks its target."""
    return _apply_action(request, job_services.resolve, job_id, body)


@router.post("/jobs/{job_id}/release", **job_action("release", "Release a job that is on hold"))
def jobs_release(request: ApiRequest, job_id: Id, body: schemas.ReasonBody) -> HttpResponse:
    """409 while a predecessor in its group is not finished (DEC-012)."""
    return _apply_action(request, job_services.release, job_id, body)


@router.post("/jobs/{job_id}/move", **job_action("move", "Reorder the queue", permission="reorder_job"))
def jobs_move(request: ApiRequest, job_id: Id, body: Annotated[schemas.MoveIn, OptionalJsonBody()]) -> HttpResponse:
    """Before or after another job, or to the top or bottom, among the waiting jobs of one tenant and priority
    (INV-004, DEC-005)."""
    principal, values = request.auth, body.given_fields()
    pk = principal.require_job_id(job_id)
    for name in ("before", "after"):
        if values.get(name) is not None:
            values[name] = principal.require_job_id(fields.parse_text(values[name], name))
    job_services.move(pk, **values, actor=principal.actor)
    return json_response(read_job(pk, principal))


def _retry_job(request: ApiRequest, job_id: UUID, body: schemas.RetryIn) -> HttpResponse:
    fresh, reason = (False if body.fresh is None else body.fresh), body.reason or ""
    job, is_new = job_services.submit_retry(job_id, reason=reason, fresh=fresh, actor=request.auth.actor)
    return json_response(read_job(job.pk, request.auth), 201 if is_new else 200)


def _apply_action(request: ApiRequest, service: Callable[..., Job], job_id: str, body: schemas.VerbIn) -> HttpResponse:
    """Return the job that the service returned: 201 if it is a new one."""
    pk = request.auth.require_job_id(job_id)
    job = service(pk, reason=body.reason, actor=request.auth.actor)
    return json_response(read_job(job.pk, request.auth), 200 if job.pk == pk else 201)


@router.get(
    "/jobs/{job_id}/events",
    **operation("jobs_events", schemas.EventPage, "List the events of a job", problems=[404], by_alias=True),
)
def jobs_events(request: ApiRequest, job_id: Id, query: Annotated[Paged, StrictQuery()]) -> HttpResponse:
    """Every transition with its actor and reason; UPDATED has old and new values, with masked secrets. Exactly one of
    COMPLETED, FAILED, SKIPPED and CANCELLED finishes a job."""
    pk = request.auth.require_job_id(job_id)
    rows, order = JobEvent.objects.filter(job_id=pk), Order(JobEvent, ("id",))
    serialize = partial(serialize_event, principal=request.auth)
    options: Any = {"parent": pk, "payload": EVENT_PAYLOAD}
    return json_response(paginate(request.auth, "jobs_events", query, rows, order, serialize, **options))


@router.get(
    "/jobs/{job_id}/logs",
    **operation(
        "jobs_logs",
        schemas.LogPage,
        "List the log lines of a job",
        permissions=["view_job", "view_payload"],
        problems=[404],
    ),
)
def jobs_logs(request: ApiRequest, job_id: Id, query: Annotated[Paged, StrictQuery()]) -> HttpResponse:
    """A session needs the permission to view payloads."""
    pk = request.auth.require_job_id(job_id)
    rows, order = JobLog.objects.filter(job_id=pk), Order(JobLog, ("id",))
    page = paginate(request.auth, "jobs_logs", query, rows, order, serializers.serialize_log, parent=pk)
    return json_response(page)


@router.get(
    "/jobs/{job_id}/explain",
    **operation("jobs_explain", schemas.ExplanationOut, "Why a job is not running", problems=[404]),
)
def jobs_explain(request: ApiRequest, job_id: Id) -> HttpResponse:
    """Every reason why it waits, its position in the queue, and its expected start, estimated from measured durations.

    A running or finished job has no reasons.
    """
    return json_response(explain(request.auth.require_job_id(job_id), viewer_tenant=request.auth.tenant).document())


@runs_router.get("/job-runs", **operation("job_runs_list", schemas.JobRunPage, "List runs", permissions=VIEW_RUNS))
def job_runs_list(request: ApiRequest, query: Annotated[RunFilters, StrictQuery()]) -> HttpResponse:
    """Newest job first. A page may be shorter than `limit` while `next_cursor` is there."""
    principal = request.auth
    read_ids = partial(read_newest, build_run_scans(principal, query))

    def serialize(runs: list[JobRun]) -> list[dict[str, Any]]:
        return [serialize_run(run, principal) for run in runs]

    page = paginate_ids(principal, "job_runs_list", query, read_ids, JobRun.objects.all(), RUN_PAYLOAD, serialize)
    return json_response(page)


@runs_router.get("/job-runs/{run_id}", **lookup("job_runs_get", schemas.JobRunOut, "Get a run", permissions=VIEW_RUNS))
def job_runs_get(request: ApiRequest, run_id: Id) -> HttpResponse:
    """A run has the id of its job."""
    row = JobRun.objects.filter(pk=request.auth.require_job_id(run_id)).first()
    if row is None:
        raise NotFound(run_id)
    return etag_response(request, serialize_run(row, request.auth))


@runs_router.post(
    "/job-runs/{run_id}/retry",
    **action("job_runs_retry", schemas.NEW_OR_EXISTING, "retry_job", "Retry as a new job"),
)
def job_runs_retry(request: ApiRequest, run_id: Id, body: schemas.RetryBody) -> HttpResponse:
    """Same as `POST /jobs/{id}/retry` for the job of this run (DEC-007)."""
    pk = request.auth.require_job_id(run_id)
    if not JobRun.objects.filter(pk=pk).exists():
        raise NotFound(run_id)
    return _retry_job(request, pk, body)
