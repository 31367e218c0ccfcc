"""Endpoints of job groups: jobs that run in sequence or in parallel."""

from __future__ import annotations

from typing import Annotated, Any

from django.http import HttpResponse
from ninja import Router
from pydantic import Field, SkipValidation, WithJsonSchema

from jobs import serializers
from jobs.api import field_schemas as f
from jobs.api.auth import ApiRequest, Principal
from jobs.api.job_schemas import EXAMPLE, JobIn, JobOut, ReasonBody, VerbIn
from jobs.api.large_requests import BulkJsonBody, large_request
from jobs.api.operations import action, lookup, operation, submission
from jobs.api.pagination import Order, Paged, paginate
from jobs.api.request_params import RequestBody, StrictQuery, body_config, one_of, validated_by
from jobs.api.responses import etag_response, json_response
from jobs.api.schemas import Id, Out, Page, Time, enum_schema
from jobs.api.serializers import select_job_relations, serialize_jobs
from jobs.conf import conf
from jobs.models import FailureMode, GroupMode, GroupStatus, JobGroup
from jobs.models.payload import JOB_PAYLOAD, read_by_id
from jobs.services import groups
from jobs.states import Status
from jobs.validation import fields

router = Router(tags=["job groups"])

NEWEST_FIRST = Order(JobGroup, ("-pk",))
MAX_SHOWN_JOBS = 200


class ProgressOut(Out):
    total: int = Field(description="Number of members.")
    by_status: dict[str, int] = Field(description="Members by status; the latest attempt of a retry chain counts.")


class ListedGroupOut(Out):
    """A group is terminal only when all its members are (INV-006)."""

    id: Id
    tenant: str
    name: str
    mode: Annotated[str, WithJsonSchema(enum_schema(GroupMode.values))]
    on_failure: Annotated[str, WithJsonSchema(enum_schema(FailureMode.values))]
    then_index: int | None = Field(description="The `group_index` of the final job, if the group has one.")
    status: Annotated[str, WithJsonSchema(enum_schema(GroupStatus.values))]
    cancel_requested: bool
    round: int = Field(description="The number of its runs; a retry reopens a finished group.")
    created_at: Time
    finished_at: Time | None
    progress: ProgressOut


class GroupOut(ListedGroupOut):
    jobs: list[JobOut] = Field(
        description=f"The latest attempt of each member; the first {MAX_SHOWN_JOBS}, the rest by `/jobs?group=`."
    )


class GroupIn(RequestBody):
    """`sequential`: the next member starts when the one before, or a retry of it, has succeeded; if it fails,
    `on_failure` (default `stop`) decides about the rest (DEC-012). `parallel`: all start at once and go on whatever
    happens to the others. `then` is a final job, which starts after all members have ended; if one of them failed or
    was cancelled, `on_failure` decides about it. In a parallel group without `then`, `on_failure` can only be
    `continue`. Members and the final job have the fields of `POST /jobs`, without `tenant`."""

    model_config = body_config(name="book", mode="sequential", jobs=[EXAMPLE])

    jobs: Annotated[list[JobIn], SkipValidation]
    name: Annotated[Any, WithJsonSchema({"type": "string", "maxLength": 200})] | None = None
    mode: Annotated[Any, WithJsonSchema(enum_schema(GroupMode.values))] | None = None
    on_failure: Annotated[Any, WithJsonSchema(enum_schema(FailureMode.values))] | None = None
    then: Annotated[JobIn | None, SkipValidation] = None
    tenant: f.Tenant | None = None


class GroupFilters(Paged):
    tenant: Annotated[str | None, *validated_by(fields.parse_tenant, f.TENANT)] = None
    status: Annotated[str | None, *validated_by(one_of(*GroupStatus.values), enum_schema(GroupStatus.values))] = None


@router.post("/job-groups", **submission("groups_create", GroupOut, "Submit a group, all or nothing"))
def groups_create(request: ApiRequest, body: Annotated[GroupIn, BulkJsonBody()]) -> HttpResponse:
    """With idempotency keys on its members, submitting a group again returns the existing group."""
    values = {name: value for name, value in body.given_fields().items() if value is not None}
    tenant = request.auth.resolve_tenant(values.pop("tenant", None))
    members = values.pop("jobs", None)
    request.auth.require_template_permission([*(members if isinstance(members, list) else ()), values.get("then")])
    with large_request(request.auth):
        group = groups.create(members, tenant=tenant, actor=request.auth.actor, limit=conf.API_BULK_LIMIT, **values)
    return json_response(_serialize_group(group, request.auth), 201)


@router.get(
    "/job-groups", **operation("groups_list", Page[ListedGroupOut], "List groups", permissions=["view_jobgroup"])
)
def groups_list(request: ApiRequest, query: Annotated[GroupFilters, StrictQuery()]) -> HttpResponse:
    """Newest first, without their jobs."""
    filters = {name: value for name in ("tenant", "status") if (value := getattr(query, name)) is not None}
    rows = groups.filter_by_tenant(request.auth.tenant).filter(**filters)
    page = paginate(request.auth, "groups_list", query, rows, NEWEST_FIRST, lambda row: row)
    progress = groups.count_progress([row.pk for row in page["items"]])
    page["items"] = [serializers.serialize_group(row, _merge_dispatching(progress[row.pk])) for row in page["items"]]
    return json_response(page)


@router.get(
    "/job-groups/{group_id}", **lookup("groups_get", GroupOut, "Get a group", permissions=["view_jobgroup", "view_job"])
)
def groups_get(request: ApiRequest, group_id: Id) -> HttpResponse:
    """With its progress and the latest attempt of each member."""
    return etag_response(request, _serialize_group(groups.get(group_id, tenant=request.auth.tenant), request.auth))


def group_action(name: str, summary: str) -> dict[str, Any]:
    """Return the options of a route that applies an action to a group."""
    return action(f"groups_{name}", GroupOut, f"{name}_jobgroup", summary)


@router.post("/job-groups/{group_id}/cancel", **group_action("cancel", "Cancel a group"))
def groups_cancel(request: ApiRequest, group_id: Id, body: ReasonBody) -> HttpResponse:
    """Waiting and paused jobs are CANCELLED at once; running jobs get a stop request. A finished group: 409."""
    return _apply_action(groups.cancel, request, group_id, body)


@router.post("/job-groups/{group_id}/retry", **group_action("retry", "Retry failed jobs of a group"))
def groups_retry(request: ApiRequest, group_id: Id, body: ReasonBody) -> HttpResponse:
    """Every failed or cancelled member gets a new job, in order, and a finished group is open again. Nothing to retry:
    409."""
    return _apply_action(groups.retry, request, group_id, body)


def _apply_action(service: Any, request: ApiRequest, group_id: str, body: VerbIn) -> HttpResponse:
    principal = request.auth
    with large_request(principal):
        group = service(group_id, reason=body.reason or "", actor=principal.actor, tenant=principal.tenant)
    return json_response(_serialize_group(group, principal))


def _serialize_group(row: JobGroup, principal: Principal) -> dict[str, Any]:
    members = groups.get_latest_attempts(row.pk)
    ids = list(members.values_list("pk", flat=True)[:MAX_SHOWN_JOBS])
    latest_attempts = read_by_id(select_job_relations(members), ids, JOB_PAYLOAD)
    document = serializers.serialize_group(row, _merge_dispatching(groups.count_progress([row.pk])[row.pk]))
    return {**document, "jobs": serialize_jobs(latest_attempts, principal)}


def _merge_dispatching(progress: dict[str, Any]) -> dict[str, Any]:
    """Count DISPATCHING as QUEUED, as all of the API does."""
    counts = dict(progress["by_status"])
    if dispatching := counts.pop(Status.DISPATCHING, 0):
        counts[str(Status.QUEUED)] = counts.get(Status.QUEUED, 0) + dispatching
    return {"total": progress["total"], "by_status": counts}
