"""The deprecated paths outside of /api/, with the former names of a job's status (CON-004), until LEGACY_SUNSET."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, time
from functools import wraps
from typing import Annotated, Any

from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.utils.encoding import escape_uri_path
from django.utils.http import http_date
from ninja import Router
from pydantic import WithJsonSchema

from jobs.api.auth import ApiRequest
from jobs.api.idempotency import WITH_IDEMPOTENCY_KEY, submit_job
from jobs.api.job_lists import JobFilters, read_job_page
from jobs.api.job_schemas import JobIn, JobOut, ReasonBody
from jobs.api.operations import action, lookup, operation, submission
from jobs.api.pagination import Paged
from jobs.api.request_params import JsonBody, StrictQuery, each_validated_by, one_of
from jobs.api.responses import etag_response, json_response
from jobs.api.schemas import Id, Page, enum_schema
from jobs.api.serializers import read_job
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


class LegacyFilters(Paged):
    status: Annotated[
        list[str] | None, *each_validated_by(one_of(*LEGACY_STATUS_NAMES), enum_schema(LEGACY_STATUS_NAMES))
    ] = None


@router.get("/jobs", **operation("legacy_jobs_list", LegacyJobPage, "List jobs", deprecated=True))
def legacy_jobs_list(request: ApiRequest, query: Annotated[LegacyFilters, StrictQuery()]) -> HttpResponse:
    """Use `GET /api/jobs`."""
    statuses = [str(status) for status, name in LEGACY_STATUSES.items() if name in (query.status or ())]
    shown = [status for status in statuses if status != Status.DISPATCHING]
    filters = JobFilters.model_construct(status=shown or None, limit=query.limit)
    document = read_job_page(request.auth, "legacy_jobs_list", query, filters)
    return json_response({**document, "items": [use_legacy_status(item) for item in document["items"]]})


@router.post(
    "/jobs", **submission("legacy_jobs_create", LegacyJobOut, "Submit a job", deprecated=True, **WITH_IDEMPOTENCY_KEY)
)
def legacy_jobs_create(request: ApiRequest, body: Annotated[JobIn, JsonBody()]) -> HttpResponse:
    """Use `POST /api/jobs`."""
    return submit_job(request, body.given_fields(), lambda job: use_legacy_status(read_job(job.pk, request.auth)))


@router.get("/jobs/{job_id}", **lookup("legacy_jobs_get", LegacyJobOut, "Get a job", deprecated=True))
def legacy_jobs_get(request: ApiRequest, job_id: Id) -> HttpResponse:
    """Use `GET /api/jobs/{job_id}`."""
    return etag_response(request, use_legacy_status(read_job(fields.parse_id(job_id), request.auth)))


@router.post(
    "/jobs/{job_id}/cancel", **action("legacy_jobs_cancel", LegacyJobOut, "cancel_job", "Cancel a job", deprecated=True)
)
def legacy_jobs_cancel(request: ApiRequest, job_id: Id, body: ReasonBody) -> HttpResponse:
    """Use `POST /api/jobs/{job_id}/cancel`."""
    pk = request.auth.require_job_id(job_id)
    job_services.cancel(pk, reason=body.reason or "", actor=request.auth.actor)
    return json_response(use_legacy_status(read_job(pk, request.auth)))


def use_legacy_status(document: dict[str, Any]) -> dict[str, Any]:
    """Return the document of a job with the former name of its status."""
    return {**document, "status": LEGACY_STATUSES[document["status"]]}


def add_deprecation_headers(view: View) -> View:
    """Return the view with the headers Deprecation, Sunset and a Link to the successor in every response."""

    @wraps(view)
    def wrapped(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        response = view(request, *args, **kwargs)
        suffix = f"/jobs/{kwargs['job_id']}" if "job_id" in kwargs else "/jobs"
        prefix = escape_uri_path(request.path.rpartition(suffix)[0])  # where this request found the scheduler's URLs
        sunset = datetime.combine(conf.LEGACY_SUNSET, time.max, UTC)
        response["Deprecation"] = f"@{int(min(DEPRECATED_SINCE, sunset).timestamp())}"
        response["Sunset"] = http_date(sunset.timestamp())
        response["Link"] = (
            f'<{prefix}/api/docs>; rel="deprecation"; type="text/html", <{prefix}/api/jobs>; rel="successor-version"'
        )
        return response

    return wrapped
