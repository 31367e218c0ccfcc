"""The deprecated paths outside of /api/, with the former names of a job's status (CON-004), until LEGACY_SUNSET."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, time
from functools import wraps
from typing import Annotated, Any
from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.encoding import escape_uri_path
from django.utils.http import http_date
from ninja import Router
from pydantic import WithJsonSchema

from jobs.api.auth import ApiRequest, LegacyToken
from jobs.api.idempotency import WITH_IDEMPOTENCY_KEY, submit_job
from jobs.api.job_lists import JobFilters, read_job_page
from jobs.api.job_schemas import JobIn, JobOut, ReasonBody, VerbIn
from jobs.api.operations import action, lookup, operation, submission
from jobs.api.pagination import Paged
from jobs.api.request_params import JsonBody, StrictQuery, each_validated_by, one_of
from jobs.api.responses import etag_response, json_response
from jobs.api.schemas import Id, Page, enum_schema
from jobs.api.serializers import read_job
from jobs.api.targets import Key, TenantQuery, require_job_of_target
from jobs.conf import conf
from jobs.services import jobs as job_services
from jobs.states import Status
from jobs.validation import fields

router = Router(tags=["legacy"])

DEPRECATED_SINCE = datetime(2026, 1, 18, tzinfo=UTC)
LEGACY_STATUSES = {
    Status.PENDING: "queued",
    Status.QUEUED: "queued",
    Status.DISPATCHING: "queued",
    Status.PAUSED: "queued",
    Status.RUNNING: "running",
    Status.COMPLETED: "succeeded",
    Status.SKIPPED: "succeeded",
    Status.FAILED: "error",
    Status.CANCELLED: "cancelled",
}
LEGACY_STATUS_NAMES = list(dict.fromkeys(LEGACY_STATUSES.values()))
View = Callable[..., HttpResponseBase]


class LegacyJobOut(JobOut):
    """A job with the former name of its status; `succeeded` is now `COMPLETED`, `error` is `FAILED` (DEC-006)."""

    status: Annotated[str, WithJsonSchema(enum_schema(LEGACY_STATUS_NAMES))]


class LegacyJobPage(Page[LegacyJobOut]):
    pass


NEW_OR_EXISTING = {200: LegacyJobOut, 201: LegacyJobOut}


class LegacyFilters(Paged):
    status: Annotated[
        list[str] | None, *each_validated_by(one_of(*LEGACY_STATUS_NAMES), enum_schema(LEGACY_STATUS_NAMES))
    ] = None


def legacy(options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a deprecated route: clients without credentials act as LEGACY_TOKEN."""
    authenticators = [*options["auth"], LegacyToken(options["auth"][0].requirement)]
    return {**options, "auth": authenticators, "deprecated": True}


@router.get("/jobs", **legacy(operation("legacy_jobs_list", LegacyJobPage, "List jobs")))
def legacy_jobs_list(request: ApiRequest, query: Annotated[LegacyFilters, StrictQuery()]) -> HttpResponse:
    """Use `GET /api/jobs`."""
    statuses = [str(status) for status, name in LEGACY_STATUSES.items() if name in (query.status or ())]
    shown = [status for status in statuses if status != Status.DISPATCHING]
    filters = JobFilters.model_construct(status=shown or None, limit=query.limit)
    document = read_job_page(request.auth, "legacy_jobs_list", query, filters)
    return json_response({**document, "items": [use_legacy_status(item) for item in document["items"]]})


@router.post(
    "/jobs", **legacy(submission("legacy_jobs_create", NEW_OR_EXISTING, "Submit a job", **WITH_IDEMPOTENCY_KEY))
)
def legacy_jobs_create(request: ApiRequest, body: Annotated[JobIn, JsonBody()]) -> HttpResponse:
    """Use `POST /api/jobs`."""
    return submit_job(request, body.given_fields(), lambda job: use_legacy_status(read_job(job.pk, request.auth)))


@router.get("/jobs/{job_id}", **legacy(lookup("legacy_jobs_get", LegacyJobOut, "Get a job")))
def legacy_jobs_get(request: ApiRequest, job_id: Id) -> HttpResponse:
    """Use `GET /api/jobs/{job_id}`."""
    return etag_response(request, use_legacy_status(read_job(fields.parse_id(job_id), request.auth)))


@router.post(
    "/jobs/{job_id}/cancel", **legacy(action("legacy_jobs_cancel", LegacyJobOut, "cancel_job", "Cancel a job"))
)
def legacy_jobs_cancel(request: ApiRequest, job_id: Id, body: ReasonBody) -> HttpResponse:
    """Use `POST /api/jobs/{job_id}/cancel`."""
    pk = request.auth.require_job_id(job_id)
    job_services.cancel(pk, reason=body.reason or "", actor=request.auth.actor)
    return json_response(use_legacy_status(read_job(pk, request.auth)))


@router.post(
    "/jobs/{job_id}/resume", **legacy(action("legacy_jobs_resume", NEW_OR_EXISTING, "resume_job", "Resume a job"))
)
def legacy_jobs_resume(request: ApiRequest, job_id: Id, body: ReasonBody) -> HttpResponse:
    """Use `POST /api/jobs/{job_id}/resume`."""
    return _resume(request, request.auth.require_job_id(job_id), body)


@router.post(
    "/targets/{key}/jobs/{job_id}/resume",
    **legacy(action("legacy_targets_resume", NEW_OR_EXISTING, "resume_job", "Resume a job of a target")),
)
def legacy_targets_resume(
    request: ApiRequest, key: Key, job_id: Id, query: TenantQuery, body: ReasonBody
) -> HttpResponse:
    """Use `POST /api/targets/{key}/jobs/{job_id}/resume/`."""
    return _resume(request, require_job_of_target(request.auth, key, job_id, query), body)


def _resume(request: ApiRequest, job_id: UUID, body: VerbIn) -> HttpResponse:
    job = job_services.resume(job_id, reason=body.reason or "", actor=request.auth.actor)
    return json_response(use_legacy_status(read_job(job.pk, request.auth)), 200 if job.pk == job_id else 201)


def use_legacy_status(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document of a job with the former name of its status."""
    return {**document, "status": LEGACY_STATUSES[document["status"]]}


def add_deprecation_headers(view: View) -> View:
    """Return the view with the headers Deprecation, Sunset and a Link to the successor in every response."""

    @wraps(view)
    def wrapped(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        response = view(request, *args, **kwargs)
        collection = "targets" if "key" in kwargs else "jobs"
        name = kwargs.get("key", kwargs.get("job_id"))
        suffix = f"/{collection}" if name is None else f"/{collection}/{name}"
        prefix = escape_uri_path(request.path.rpartition(suffix)[0])  # where this request found the scheduler's URLs
        sunset = datetime.combine(conf.LEGACY_SUNSET, time.max, UTC)
        response["Deprecation"] = f"@{int(min(DEPRECATED_SINCE, sunset).timestamp())}"
        response["Sunset"] = http_date(sunset.timestamp())
        response["Link"] = (
            f'<{prefix}/api/docs>; rel="deprecation"; type="text/html", '
            f'<{prefix}/api/{collection}>; rel="successor-version"'
        )
        return response

    return wrapped
