"""Endpoints of job templates: presets for submissions."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from django.http import HttpResponse
from ninja import Router
from pydantic import Field

from jobs import serializers
from jobs.api import field_schemas as f
from jobs.api.auth import ApiRequest, Principal
from jobs.api.idempotency import WITH_IDEMPOTENCY_KEY, submit_job
from jobs.api.job_schemas import NEW_OR_EXISTING, RunIn
from jobs.api.operations import action, lookup, operation
from jobs.api.pagination import Order, Paged, paginate
from jobs.api.request_params import JsonBody, OptionalJsonBody, RequestBody, StrictQuery, body_config, validated_by
from jobs.api.responses import empty_response, etag_response, json_response
from jobs.api.schemas import Id, JsonObject, Out, Page, Time, Truncated
from jobs.api.serializers import hide_payload
from jobs.models import JobTemplate
from jobs.models.payload import PARAMS
from jobs.services import templates
from jobs.validation import fields

router = Router(tags=["templates"])
VIEW_TEMPLATES = ["view_jobtemplate"]
NEWEST_FIRST = Order(JobTemplate, ("-id",))


class RetryPolicyOut(Out):
    """Null: the default of the handler or the settings."""

    max_attempts: int | None = Field(description="Number of automatic retries.")
    base_sec: float | None = Field(description="Delay of the first retry.")
    backoff: float | None = Field(description="Factor from one delay to the next.")
    max_sec: float | None
    jitter: float | None


class TemplateOut(Out):
    id: Id
    tenant: str
    name: str
    job_type: str
    params: JsonObject | None = Field(description="Secrets masked. Null without the permission to view payloads.")
    overridable: list[str] | None = Field(
        description="Params that a run may set. Null: all, or none if the template contains a secret."
    )
    retry_policy: RetryPolicyOut
    priority: int | None
    resource: str | None
    target: str | None
    max_runtime_sec: float | None
    token_limit: int | None
    cost_units: int | None
    tags: list[str]
    created_at: Time
    truncated: Truncated = False


class TemplateEdits(RequestBody):
    """Null clears. A secret that is sent back masked keeps its value while the other params are unchanged; with another
    job type, or more overridable params, it must be sent again."""

    model_config = body_config(priority="LOW", target=None)

    name: f.Name = Field(default=None)
    job_type: f.Name = Field(default=None)
    params: f.Params | None = None
    overridable: f.ParamNames | None = None
    retry_policy: f.RetryPolicy | None = None
    priority: f.Priority | None = None
    resource: f.Name | None = None
    target: f.Target | None = None
    max_runtime_sec: f.Duration | None = None
    token_limit: f.Tokens | None = None
    cost_units: f.CostUnits | None = None
    tags: f.Tags | None = None


class TemplateIn(TemplateEdits):
    """Params may be incomplete: a run can add more."""

    model_config = body_config(name="nightly report", job_type="report.make", params={"pages": 3})

    name: f.Name
    job_type: f.Name
    tenant: f.Tenant | None = None


class TemplateFilters(Paged):
    tenant: Annotated[str | None, *validated_by(fields.parse_tenant, f.TENANT)] = None
    name: Annotated[str | None, *validated_by(fields.parse_identifier, f.NAME)] = None
    job_type: Annotated[str | None, *validated_by(fields.parse_identifier, f.NAME)] = None


@router.get(
    "/job-templates", **operation("templates_list", Page[TemplateOut], "List templates", permissions=VIEW_TEMPLATES)
)
def templates_list(request: ApiRequest, query: Annotated[TemplateFilters, StrictQuery()]) -> HttpResponse:
    """Newest first."""
    filters = {name: value for name in ("tenant", "name", "job_type") if (value := getattr(query, name)) is not None}
    rows = templates.filter_by_tenant(request.auth.tenant).filter(**filters)
    serialize = partial(_serialize_template, principal=request.auth)
    return json_response(paginate(request.auth, "templates_list", query, rows, NEWEST_FIRST, serialize, payload=PARAMS))


@router.post(
    "/job-templates",
    **operation("templates_create", {201: TemplateOut}, "Create a template", scope="admin", body=True, problems=[409]),
)
def templates_create(request: ApiRequest, body: Annotated[TemplateIn, JsonBody()]) -> HttpResponse:
    """Names are unique within a tenant: a duplicate is 409 `name_taken`."""
    values = body.given_fields()
    tenant = request.auth.resolve_tenant(values.pop("tenant", None))
    template = templates.create(values, tenant=tenant, actor=request.auth.actor)
    return json_response(_serialize_template(template, request.auth), 201)


@router.get(
    "/job-templates/{template_id}",
    **lookup("templates_get", TemplateOut, "Get a template", permissions=VIEW_TEMPLATES),
)
def templates_get(request: ApiRequest, template_id: Id) -> HttpResponse:
    """Secrets in its params are masked."""
    template = templates.get(template_id, tenant=request.auth.tenant)
    return etag_response(request, _serialize_template(template, request.auth))


@router.patch(
    "/job-templates/{template_id}",
    **operation("templates_update", TemplateOut, "Change a template", scope="admin", body=True, problems=[404, 409]),
)
def templates_update(request: ApiRequest, template_id: Id, body: Annotated[TemplateEdits, JsonBody()]) -> HttpResponse:
    """Existing jobs of the template do not change."""
    principal = request.auth
    template = templates.update(template_id, body.given_fields(), tenant=principal.tenant, actor=principal.actor)
    return json_response(_serialize_template(template, principal))


@router.delete(
    "/job-templates/{template_id}",
    **operation("templates_delete", {204: None}, "Delete a template", scope="admin", problems=[404, 409]),
)
def templates_delete(request: ApiRequest, template_id: Id) -> HttpResponse:
    """409 `in_use` while a schedule or an unfinished job uses it."""
    templates.delete(template_id, tenant=request.auth.tenant, actor=request.auth.actor)
    return empty_response()


@router.post(
    "/job-templates/{template_id}/run",
    **action(
        "templates_run",
        NEW_OR_EXISTING,
        "run_jobtemplate",
        "Run a template",
        scope="submit",
        **WITH_IDEMPOTENCY_KEY,
    ),
)
def templates_run(request: ApiRequest, template_id: Id, body: Annotated[RunIn, OptionalJsonBody()]) -> HttpResponse:
    """Submits a job with the fields of the template, overridden by those given here. A param that
    `overridable` does not permit: 422 `not_overridable`. With an idempotency key, a repeated run returns the job that
    the first one created. 200 if its unique key is taken: with the job that has it."""
    template = templates.get(template_id, tenant=request.auth.tenant)
    return submit_job(request, {**body.given_fields(), "template": template.name, "tenant": template.tenant})


def _serialize_template(row: JobTemplate, principal: Principal) -> dict[str, Any]:
    document = serializers.serialize_template(row)
    return document if principal.can_view_payload else hide_payload(document, "params")
