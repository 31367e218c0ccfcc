"""The paths of before, outside of /api/, with the old words for a job's status (CON-004). Kept until LEGACY_SUNSET."""

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

from jobs.api import serializers
from jobs.api.auth import ApiRequest
from jobs.api.idempotency import KEYED, submit
from jobs.api.job_filters import JobFilters
from jobs.api.job_schemas import JobIn, JobOut, VerbIn
from jobs.api.jobs import page_of_jobs
from jobs.api.operations import action, operation, submission
from jobs.api.pagination import Paged
from jobs.api.request_params import Asked, Document, Optional, each, one_of
from jobs.api.responses import answer, tagged
from jobs.api.schemas import Id, Page, words
from jobs.conf import conf
from jobs.services import jobs as job_services
from jobs.states import Status
from jobs.validation import fields

router = Router(tags=["legacy"])

SINCE = datetime(2026, 1, 18, tzinfo=UTC)
OLD_WORDS = {
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
WORDS = list(dict.fromkeys(OLD_WORDS.values()))
View = Callable[..., HttpResponseBase]


class LegacyJobOut(JobOut):
    """A job with an old word for its status; use `COMPLETED` for `succeeded` and `FAILED` for `error` (DEC-006)."""

    status: Annotated[str, WithJsonSchema(words(WORDS))]


class LegacyJobPage(Page[LegacyJobOut]):
    pass


class LegacyFilters(Paged):
    status: Annotated[list[str] | None, *each(one_of(*WORDS), words(WORDS))] = None


@router.get("/jobs", **operation("legacy_jobs_list", LegacyJobPage, summary="List jobs", deprecated=True))
def legacy_jobs_list(request: ApiRequest, asked: Annotated[LegacyFilters, Asked()]) -> HttpResponse:
    """Use `GET /api/jobs`."""
    wanted = [status for status, word in OLD_WORDS.items() if word in (asked.status or ())]
    shown = [str(status) for status in wanted if status != Status.DISPATCHING]
    filters = JobFilters.model_construct(status=shown or None, limit=asked.limit)
    document = page_of_jobs(request.auth, "legacy_jobs_list", asked, filters)
    return answer({**document, "items": [use_old_words(item) for item in document["items"]]})


@router.post("/jobs", **submission("legacy_jobs_create", LegacyJobOut, "Submit a job", deprecated=True, **KEYED))
def legacy_jobs_create(request: ApiRequest, body: Annotated[JobIn, Document()]) -> HttpResponse:
    """Use `POST /api/jobs`."""
    said = body.given_fields()
    said["tenant"] = request.auth.tenant_for(said.get("tenant"))
    return submit(request, said, use_old_words)


@router.get(
    "/jobs/{job_id}",
    **operation("legacy_jobs_get", LegacyJobOut, problems=[404], summary="Look at a job", cached=True, deprecated=True),
)
def legacy_jobs_get(request: ApiRequest, job_id: Id) -> HttpResponse:
    """Use `GET /api/jobs/{job_id}`."""
    return tagged(request, use_old_words(serializers.one(fields.parse_id(job_id), request.auth)))


@router.post(
    "/jobs/{job_id}/cancel",
    **action("legacy_jobs_cancel", LegacyJobOut, "cancel_job", "End a job, or ask it to stop", deprecated=True),
)
def legacy_jobs_cancel(request: ApiRequest, job_id: Id, body: Annotated[VerbIn, Optional()]) -> HttpResponse:
    """Use `POST /api/jobs/{job_id}/cancel`."""
    known = request.auth.job_id(job_id)
    job_services.cancel(known, reason=body.reason or "", actor=request.auth.actor)
    return answer(use_old_words(serializers.one(known, request.auth)))


def use_old_words(document: dict[str, Any]) -> dict[str, Any]:
    return {**document, "status": OLD_WORDS[document["status"]]}


def with_notice(view: View) -> View:
    """Every answer says since when it is old, until when it is there, and what is there instead."""

    @wraps(view)
    def noticing(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        response = view(request, *args, **kwargs)
        tail = f"/jobs/{kwargs['job_id']}" if "job_id" in kwargs else "/jobs"
        prefix = escape_uri_path(request.path.rpartition(tail)[0])  # where all of us is included, as it was reached
        sunset = datetime.combine(conf.LEGACY_SUNSET, time.max, UTC)
        response["Deprecation"] = f"@{int(min(SINCE, sunset).timestamp())}"
        response["Sunset"] = http_date(sunset.timestamp())
        response["Link"] = (
            f'<{prefix}/api/docs>; rel="deprecation"; type="text/html", <{prefix}/api/jobs>; rel="successor-version"'
        )
        return response

    return noticing
