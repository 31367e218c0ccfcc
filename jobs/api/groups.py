"""Groups: jobs that belong together, in sequence or side by side."""

from __future__ import annotations

from typing import Annotated, Any

from django.http import HttpResponse
from ninja import Router
from pydantic import Field, SkipValidation, WithJsonSchema

from jobs import serializers
from jobs.api import field_schemas as f
from jobs.api import serializers as shaping
from jobs.api.auth import ApiRequest, Caller
from jobs.api.job_schemas import EXAMPLE, JobIn, JobOut, VerbIn
from jobs.api.operations import action, operation, submission
from jobs.api.pagination import Order, Paged, page
from jobs.api.request_params import Asked, Bulk, Optional, Said, example, gated, one_of
from jobs.api.responses import answer, tagged
from jobs.api.schemas import Id, Out, Page, Time, words
from jobs.conf import conf
from jobs.models import GroupMode, GroupStatus, JobGroup, OnFailure
from jobs.services import groups
from jobs.states import Status
from jobs.validation import fields

router = Router(tags=["job groups"])

NEWEST_FIRST = Order(JobGroup, ("-pk",))
SHOWN = 200


class ProgressOut(Out):
    total: int = Field(description="How many places the group has.")
    by_status: dict[str, int] = Field(
        description="How many of them are in which state; of a retry chain its last job counts."
    )


class ListedGroupOut(Out):
    """A group is terminal only when all its members are (INV-006)."""

    id: Id
    tenant: str
    name: str
    mode: Annotated[str, WithJsonSchema(words(GroupMode.values))]
    on_failure: Annotated[str, WithJsonSchema(words(OnFailure.values))]
    status: Annotated[str, WithJsonSchema(words(GroupStatus.values))]
    cancel_requested: bool
    round: int = Field(description="How often it was opened; a retry opens a group that had ended.")
    created_at: Time
    finished_at: Time | None
    progress: ProgressOut


class GroupOut(ListedGroupOut):
    jobs: list[JobOut] = Field(
        description=f"The last job of each place, in order; the first {SHOWN}, the rest by `/jobs?group=`."
    )


class GroupIn(Said):
    """`sequential`: the next place starts when the one before, and its retries, have ended well; if it ends badly,
    `on_failure` says what becomes of the rest (DEC-012). `parallel`: all at once. Members are what `POST /jobs`
    takes, without `tenant`."""

    model_config = example(name="book", mode="sequential", jobs=[EXAMPLE])

    jobs: Annotated[list[JobIn], SkipValidation]
    name: Annotated[Any, WithJsonSchema({"type": "string", "maxLength": 200})] | None = None
    mode: Annotated[Any, WithJsonSchema(words(GroupMode.values))] | None = None
    on_failure: Annotated[Any, WithJsonSchema(words(OnFailure.values))] | None = None
    tenant: f.Tenant | None = None


class GroupFilters(Paged):
    tenant: Annotated[str | None, *gated(fields.parse_tenant, f.TENANT)] = None
    status: Annotated[str | None, *gated(one_of(*GroupStatus.values), words(GroupStatus.values))] = None


@router.post("/job-groups", **submission("groups_create", GroupOut, "Submit a group, all or nothing"))
def groups_create(request: ApiRequest, body: Annotated[GroupIn, Bulk()]) -> HttpResponse:
    """With idempotency keys on its members, a group that is submitted again answers with the first one."""
    said = {name: value for name, value in body.given_fields().items() if value is not None}
    tenant = request.auth.tenant_for(said.pop("tenant", None))
    members = said.pop("jobs", None)
    made = groups.create(members, tenant=tenant, actor=request.auth.actor, most=conf.API_BULK_LIMIT, **said)
    return answer(_group_document(made, request.auth), 201)


@router.get("/job-groups", **operation("groups_list", Page[ListedGroupOut], summary="List groups"))
def groups_list(request: ApiRequest, asked: Annotated[GroupFilters, Asked()]) -> HttpResponse:
    """Newest first, without their jobs."""
    filters = {name: value for name in ("tenant", "status") if (value := getattr(asked, name)) is not None}
    rows = groups.of(request.auth.tenant).filter(**filters)
    found = page(request.auth, "groups_list", asked, rows, NEWEST_FIRST, lambda row: row)
    counted = groups.progress([row.pk for row in found["items"]])
    found["items"] = [serializers.group(row, _merge_dispatching(counted[row.pk])) for row in found["items"]]
    return answer(found)


@router.get(
    "/job-groups/{group_id}",
    **operation("groups_get", GroupOut, problems=[404], cached=True, summary="Look at a group"),
)
def groups_get(request: ApiRequest, group_id: Id) -> HttpResponse:
    return tagged(request, _group_document(groups.get(group_id, tenant=request.auth.tenant), request.auth))


def verb(name: str, summary: str) -> dict[str, Any]:
    return action(f"groups_{name}", GroupOut, f"{name}_jobgroup", summary)


@router.post("/job-groups/{group_id}/cancel", **verb("cancel", "Cancel a group"))
def groups_cancel(request: ApiRequest, group_id: Id, body: Annotated[VerbIn, Optional()]) -> HttpResponse:
    """What waits or is paused ends CANCELLED at once; what runs is asked to stop. An ended group: 409."""
    return _apply_action(groups.cancel, request, group_id, body)


@router.post("/job-groups/{group_id}/retry", **verb("retry", "Run again what did not end well"))
def groups_retry(request: ApiRequest, group_id: Id, body: Annotated[VerbIn, Optional()]) -> HttpResponse:
    """Every place that did not end well gets a new job, in order, and an ended group is open again. Nothing to run
    again: 409."""
    return _apply_action(groups.retry, request, group_id, body)


def _apply_action(call: Any, request: ApiRequest, group_id: str, body: VerbIn) -> HttpResponse:
    caller = request.auth
    changed = call(group_id, reason=body.reason or "", actor=caller.actor, tenant=caller.tenant)
    return answer(_group_document(changed, caller))


def _group_document(row: JobGroup, caller: Caller) -> dict[str, Any]:
    tails = shaping.with_relations(groups.tails(row.pk))[:SHOWN]
    document = serializers.group(row, _merge_dispatching(groups.progress([row.pk])[row.pk]))
    return {**document, "jobs": shaping.jobs(tails, caller)}


def _merge_dispatching(progress: dict[str, Any]) -> dict[str, Any]:
    """DISPATCHING shows as QUEUED, as everywhere."""
    counts = dict(progress["by_status"])
    if offered := counts.pop(Status.DISPATCHING, 0):
        counts[str(Status.QUEUED)] = counts.get(Status.QUEUED, 0) + offered
    return {"total": progress["total"], "by_status": counts}
