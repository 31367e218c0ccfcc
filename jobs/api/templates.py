"""Templates: presets that can be started."""

from __future__ import annotations

from typing import Annotated, Any

from django.http import HttpResponse
from ninja import Router
from pydantic import Field, WithJsonSchema

from jobs import serializers
from jobs.api import field_schemas as f
from jobs.api.auth import ApiRequest, Caller
from jobs.api.idempotency import KEYED, submit
from jobs.api.job_schemas import JobOut, RunIn
from jobs.api.operations import operation
from jobs.api.pagination import Order, Paged, page
from jobs.api.request_params import Asked, Document, Optional, Said, example, gated
from jobs.api.responses import answer, nothing, tagged
from jobs.api.schemas import Id, JsonObject, Out, Page, Time
from jobs.conf.rules import YEAR_SEC
from jobs.models import JobTemplate
from jobs.services import templates
from jobs.validation import fields

router = Router(tags=["templates"])
NEWEST_FIRST = Order(JobTemplate, ("-id",))
_LIMITS = {
    "max_attempts": {"type": ["integer", "null"], "minimum": 0, "maximum": 1000},
    "base_sec": {"type": ["number", "null"], "minimum": 0, "maximum": YEAR_SEC},
    "max_sec": {"type": ["number", "null"], "minimum": 0, "maximum": YEAR_SEC},
    "jitter": {"type": ["number", "null"], "minimum": 0, "maximum": 1},
}
RetryPolicy = Annotated[Any, WithJsonSchema({"type": "object", "properties": _LIMITS, "additionalProperties": False})]


class RetryPolicyOut(Out):
    """Null: as the handler or the settings say."""

    max_attempts: int | None = Field(description="How many automatic retries.")
    base_sec: float | None
    max_sec: float | None
    jitter: float | None


class TemplateOut(Out):
    id: Id
    tenant: str
    name: str
    job_type: str
    params: JsonObject | None = Field(description="Secrets masked. Null where the caller may not see payloads.")
    retry_policy: RetryPolicyOut
    priority: int | None
    resource: str | None
    target: str | None
    max_runtime_sec: float | None
    token_limit: int | None
    cost_units: int | None
    tags: list[str]
    created_at: Time


class TemplateEdits(Said):
    """Null clears. A secret that was shown masked may come back masked: it stays what it is."""

    model_config = example(priority="LOW", target=None)

    name: f.Name = Field(default=None)
    job_type: f.Name = Field(default=None)
    params: f.Params | None = None
    retry_policy: RetryPolicy | None = None
    priority: f.Priority | None = None
    resource: f.Name | None = None
    target: f.Target | None = None
    max_runtime_sec: f.Duration | None = None
    token_limit: f.Tokens | None = None
    cost_units: f.CostUnits | None = None
    tags: f.Tags | None = None


class TemplateIn(TemplateEdits):
    """Params may be incomplete: more of them can come with a run."""

    model_config = example(name="nightly report", job_type="report.make", params={"pages": 3})

    name: f.Name
    job_type: f.Name
    tenant: f.Tenant | None = None


class TemplateFilters(Paged):
    tenant: Annotated[str | None, *gated(fields.parse_tenant, f.TENANT)] = None
    name: Annotated[str | None, *gated(fields.parse_identifier, f.NAME)] = None
    job_type: Annotated[str | None, *gated(fields.parse_identifier, f.NAME)] = None


@router.get("/job-templates", **operation("templates_list", Page[TemplateOut], summary="List templates"))
def templates_list(request: ApiRequest, asked: Annotated[TemplateFilters, Asked()]) -> HttpResponse:
    """Newest first."""
    filters = {name: value for name in ("tenant", "name", "job_type") if (value := getattr(asked, name)) is not None}
    caller = request.auth
    rows = templates.of(caller.tenant).filter(**filters)
    return answer(page(caller, "templates_list", asked, rows, NEWEST_FIRST, lambda row: _document(row, caller)))


@router.post(
    "/job-templates",
    **operation(
        "templates_create", {201: TemplateOut}, scope="admin", body=True, problems=[409], summary="Make a template"
    ),
)
def templates_create(request: ApiRequest, body: Annotated[TemplateIn, Document()]) -> HttpResponse:
    """Names are unique within a tenant: a second one is 409 `name_taken`."""
    said = body.given_fields()
    tenant = request.auth.tenant_for(said.pop("tenant", None))
    template = templates.create(said, tenant=tenant, actor=request.auth.actor)
    return answer(_document(template, request.auth), 201)


@router.get(
    "/job-templates/{template_id}",
    **operation("templates_get", TemplateOut, problems=[404], cached=True, summary="Get a template"),
)
def templates_get(request: ApiRequest, template_id: Id) -> HttpResponse:
    template = templates.get(template_id, tenant=request.auth.tenant)
    return tagged(request, _document(template, request.auth))


@router.patch(
    "/job-templates/{template_id}",
    **operation(
        "templates_update", TemplateOut, scope="admin", body=True, problems=[404, 409], summary="Change a template"
    ),
)
def templates_update(request: ApiRequest, template_id: Id, body: Annotated[TemplateEdits, Document()]) -> HttpResponse:
    """Jobs that were made from it before keep what they were given."""
    caller = request.auth
    template = templates.update(template_id, body.given_fields(), tenant=caller.tenant, actor=caller.actor)
    return answer(_document(template, caller))


@router.delete(
    "/job-templates/{template_id}",
    **operation("templates_delete", {204: None}, scope="admin", problems=[404, 409], summary="Delete a template"),
)
def templates_delete(request: ApiRequest, template_id: Id) -> HttpResponse:
    """Refused with 409 `in_use` while a schedule, or a job that has not ended, was made with it."""
    templates.delete(template_id, tenant=request.auth.tenant, actor=request.auth.actor)
    return nothing()


@router.post(
    "/job-templates/{template_id}/run",
    **operation(
        "templates_run",
        {201: JobOut},
        scope="submit",
        permission="run_jobtemplate",
        body="optional",
        problems=[404, 409],
        summary="Run a template",
        **KEYED,
    ),
)
def templates_run(request: ApiRequest, template_id: Id, body: Annotated[RunIn, Optional()]) -> HttpResponse:
    """Submits a job as the template says, but for what is said here. With an idempotency key, a repeated run answers
    with the job that the first one made."""
    template = templates.get(template_id, tenant=request.auth.tenant)
    return submit(request, {**body.given_fields(), "template": template.name, "tenant": template.tenant})


def _document(row: JobTemplate, caller: Caller) -> dict[str, Any]:
    document = serializers.template(row)
    return document if caller.payload else {**document, "params": None}
