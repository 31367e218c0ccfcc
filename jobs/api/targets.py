"""Serial lanes: what goes on in them, and opening and shutting them."""

from __future__ import annotations

from typing import Annotated, Any

from django.http import HttpResponse
from ninja import Router
from pydantic import Field, WithJsonSchema

from jobs import serializers
from jobs.api import serializers as shaping
from jobs.api.auth import ApiRequest, Caller
from jobs.api.field_schemas import TARGET, TENANT
from jobs.api.job_schemas import JobOut, VerbIn
from jobs.api.operations import action, operation
from jobs.api.pagination import Order, Paged, page
from jobs.api.request_params import Asked, Optional, Question, gated
from jobs.api.responses import answer, tagged
from jobs.api.schemas import Id, Out, Page, Time
from jobs.errors import NotFound
from jobs.models import Target
from jobs.services import jobs as job_services
from jobs.services import targets
from jobs.validation import fields

router = Router(tags=["targets"])
BY_NAME = Order(Target, ("tenant", "key"))
Key = Annotated[str, WithJsonSchema(TARGET)]
Tenant = Annotated[str | None, *gated(fields.parse_tenant, TENANT)]


class TargetOut(Out):
    key: str
    tenant: str
    paused: bool
    paused_by: str
    paused_at: Time | None
    reason: str
    holder: Id | None = Field(description="The job that has the lane to itself.")
    blocked_by: Id | None = Field(description="The holder, if it is paused or failed and waits for a person.")
    queued: int
    oldest_queued_at: Time | None


class TargetFilters(Paged):
    tenant: Tenant = None


class WhichTenant(Question):
    """For tokens of all tenants; others have their own."""

    tenant: Tenant = None


Which = Annotated[WhichTenant, Asked()]
Why = Annotated[VerbIn, Optional()]


@router.get("/targets", **operation("targets_list", Page[TargetOut], summary="List targets"))
def targets_list(request: ApiRequest, asked: Annotated[TargetFilters, Asked()]) -> HttpResponse:
    """By tenant and key."""
    targets.bring_in()
    rows = targets.of(request.auth.tenant)
    if asked.tenant is not None:
        rows = rows.filter(tenant=asked.tenant)
    found = page(request.auth, "targets_list", asked, rows, BY_NAME, lambda row: row)
    return answer({**found, "items": [serializers.target(state) for state in targets.states(found["items"])]})


@router.get(
    "/targets/{key}", **operation("targets_get", TargetOut, problems=[404], cached=True, summary="Get a target")
)
def targets_get(request: ApiRequest, key: Key, asked: Which) -> HttpResponse:
    target = targets.find(key, tenant=_tenant(request.auth, asked))
    return tagged(request, _target_document(target))


@router.post(
    "/targets/{key}/pause",
    **action("targets_pause", TargetOut, "pause_target", "Pause a target", problems=[404]),
)
def targets_pause(request: ApiRequest, key: Key, asked: Which, body: Why) -> HttpResponse:
    """Nothing of it starts until it is unpaused; what runs goes on. It need not have been used before."""
    tenant, why = _tenant(request.auth, asked), body.reason or ""
    return answer(_target_document(targets.pause(key, tenant=tenant, reason=why, actor=request.auth.actor)))


@router.post(
    "/targets/{key}/unpause",
    **action("targets_unpause", TargetOut, "pause_target", "Unpause a target", problems=[404]),
)
def targets_unpause(request: ApiRequest, key: Key, asked: Which, body: Why) -> HttpResponse:
    """Repeating it changes nothing."""
    return answer(_target_document(targets.unpause(key, tenant=_tenant(request.auth, asked), actor=request.auth.actor)))


def targets_resume(request: ApiRequest, key: Key, job_id: Id, asked: Which, body: Why) -> HttpResponse:
    """Continues a paused job of this target (200), or follows a failed one with a new job at its head (201)."""
    caller, known = request.auth, fields.parse_id(job_id)
    if not caller.jobs().filter(pk=known, target=key, tenant=_tenant(caller, asked)).exists():
        raise NotFound("")
    job = job_services.resume(known, reason=body.reason or "", actor=caller.actor)
    return answer(shaping.one(job.pk, caller), 200 if job.pk == known else 201)


_RESUME = action("targets_resume", {200: JobOut, 201: JobOut}, "resume_job", "Resume a job of a target")
# The one path that is written with a slash at its end; like all others it answers without, too.
router.post("/targets/{key}/jobs/{job_id}/resume/", **_RESUME)(targets_resume)
router.post("/targets/{key}/jobs/{job_id}/resume", **{**_RESUME, "include_in_schema": False})(targets_resume)


def _tenant(caller: Caller, asked: WhichTenant) -> str:
    tenant = asked.tenant or caller.tenant or "default"
    if not caller.sees(tenant):
        raise NotFound("")
    return tenant


def _target_document(target: Target) -> dict[str, Any]:
    (state,) = targets.states([target])
    return serializers.target(state)
