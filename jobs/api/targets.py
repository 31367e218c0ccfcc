"""Endpoints of targets: list, pause, unpause, and resume of a blocking job."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from django.http import HttpResponse
from ninja import Router
from pydantic import Field, WithJsonSchema

from jobs import serializers
from jobs.api.auth import ApiRequest, Principal
from jobs.api.field_schemas import TARGET, TENANT
from jobs.api.job_schemas import JobOut, ReasonBody
from jobs.api.operations import action, lookup, operation
from jobs.api.pagination import Order, Paged, paginate
from jobs.api.request_params import QueryParams, StrictQuery, validated_by
from jobs.api.responses import etag_response, json_response
from jobs.api.schemas import Id, Out, Page, Time
from jobs.api.serializers import read_job
from jobs.errors import NotFound
from jobs.models import Target
from jobs.services import jobs as job_services
from jobs.services import targets
from jobs.validation import fields

router = Router(tags=["targets"])
VIEW_TARGETS = ["view_target"]
BY_NAME = Order(Target, ("tenant", "key"))
Key = Annotated[str, WithJsonSchema(TARGET)]
Tenant = Annotated[str | None, *validated_by(fields.parse_tenant, TENANT)]


class TargetOut(Out):
    key: str
    tenant: str
    paused: bool
    paused_by: str
    paused_at: Time | None
    reason: str
    holder: Id | None = Field(description="The job that occupies the target.")
    blocked_by: Id | None = Field(description="The holder, if it is paused or failed and needs an operator's action.")
    queued: int
    oldest_queued_at: Time | None


class TargetFilters(Paged):
    tenant: Tenant = None


class WhichTenant(QueryParams):
    """For tokens of all tenants; other tokens have their own tenant."""

    tenant: Tenant = None


TenantQuery = Annotated[WhichTenant, StrictQuery()]


@router.get("/targets", **operation("targets_list", Page[TargetOut], "List targets", permissions=VIEW_TARGETS))
def targets_list(request: ApiRequest, query: Annotated[TargetFilters, StrictQuery()]) -> HttpResponse:
    """By tenant and key."""
    targets.create_missing_targets()
    rows = targets.filter_by_tenant(request.auth.tenant)
    if query.tenant is not None:
        rows = rows.filter(tenant=query.tenant)
    page = paginate(request.auth, "targets_list", query, rows, BY_NAME, lambda row: row)
    page["items"] = [serializers.serialize_target(state) for state in targets.get_states(page["items"])]
    return json_response(page)


@router.get("/targets/{key}", **lookup("targets_get", TargetOut, "Get a target", permissions=VIEW_TARGETS))
def targets_get(request: ApiRequest, key: Key, query: TenantQuery) -> HttpResponse:
    """With the job that occupies or blocks it, and the number of its waiting jobs."""
    target = targets.find(key, tenant=_get_tenant(request.auth, query))
    return etag_response(request, _serialize_target(target))


@router.post(
    "/targets/{key}/pause", **action("targets_pause", TargetOut, "pause_target", "Pause a target", problems=[404])
)
def targets_pause(request: ApiRequest, key: Key, query: TenantQuery, body: ReasonBody) -> HttpResponse:
    """None of its jobs starts until it is unpaused; running jobs continue. The target need not exist yet."""
    tenant, reason = _get_tenant(request.auth, query), body.reason or ""
    return json_response(_serialize_target(targets.pause(key, tenant=tenant, reason=reason, actor=request.auth.actor)))


@router.post(
    "/targets/{key}/unpause", **action("targets_unpause", TargetOut, "pause_target", "Unpause a target", problems=[404])
)
def targets_unpause(request: ApiRequest, key: Key, query: TenantQuery, body: ReasonBody) -> HttpResponse:
    """Repeating it changes nothing."""
    target = targets.unpause(key, tenant=_get_tenant(request.auth, query), actor=request.auth.actor)
    return json_response(_serialize_target(target))


def targets_resume(request: ApiRequest, key: Key, job_id: Id, query: TenantQuery, body: ReasonBody) -> HttpResponse:
    """Continues a paused job of this target (200), or creates a retry of a failed one at its head (201)."""
    pk, principal = require_job_of_target(request.auth, key, job_id, query), request.auth
    job = job_services.resume(pk, reason=body.reason or "", actor=principal.actor)
    return json_response(read_job(job.pk, principal), 200 if job.pk == pk else 201)


def require_job_of_target(principal: Principal, key: str, job_id: str, query: WhichTenant) -> UUID:
    """Return the id of a visible job of this target, or raise NotFound."""
    pk, tenant = fields.parse_id(job_id), _get_tenant(principal, query)
    # Compared here: PostgreSQL accepts no NUL in a parameter, and a path may contain one.
    if (tenant, key) not in principal.visible_jobs().filter(pk=pk).values_list("tenant", "target"):
        raise NotFound("")
    return pk


_RESUME = action("targets_resume", {200: JobOut, 201: JobOut}, "resume_job", "Resume a job of a target")
router.post("/targets/{key}/jobs/{job_id}/resume", **_RESUME)(targets_resume)


def _get_tenant(principal: Principal, query: WhichTenant) -> str:
    tenant = query.tenant or principal.tenant or "default"
    if not principal.can_see_tenant(tenant):
        raise NotFound("")
    return tenant


def _serialize_target(target: Target) -> dict[str, Any]:
    (state,) = targets.get_states([target])
    return serializers.serialize_target(state)
