"""Endpoints of job types, workers, stats, and limits (how many jobs may run at once, and start in a time)."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

from django.http import HttpResponse
from ninja import Router
from pydantic import Field, WithJsonSchema

from jobs import serializers
from jobs.api import field_schemas as f
from jobs.api.auth import ApiRequest
from jobs.api.operations import operation
from jobs.api.pagination import Order, Paged, paginate, paginate_list
from jobs.api.request_params import JsonBody, QueryParams, RequestBody, StrictQuery, body_config, validated_by
from jobs.api.responses import json_response
from jobs.api.schemas import Id, JsonObject, Out, Page, Time, enum_schema
from jobs.models import LimitScope, Worker, WorkerState
from jobs.rates import MAX_BURST
from jobs.registry import registry
from jobs.services import limits
from jobs.states import Status
from jobs.stats import live_counts, queries
from jobs.time_text import format_time
from jobs.validation import fields

router = Router()
NEWEST_FIRST = Order(Worker, ("-id",))
SCOPES = list(LimitScope.values)
STATES = (WorkerState.RUNNING, WorkerState.QUIET, WorkerState.STOPPING, queries.SILENT)


class JobTypeOut(Out):
    name: str
    params_schema: JsonObject = Field(description="JSON Schema of the params.")
    resource: str
    remote: bool = Field(description="Run by remote workers that poll over HTTP.")
    direct: bool = Field(description="Callable by `POST /direct/{job_type}`.")
    max_retries: int
    doc: str


@router.get("/job-types", **operation("job_types_list", Page[JobTypeOut], "List job types", tags=["job types"]))
def job_types_list(request: ApiRequest, query: Annotated[Paged, StrictQuery()]) -> HttpResponse:
    """By name: the types that are registered in the process that serves the request."""
    handlers = [registry.get(name) for name in registry.names()]
    page = paginate_list(
        request.auth, "job_types_list", query, handlers, lambda handler: [handler.name], serializers.serialize_job_type
    )
    return json_response(page)


class WorkerOut(Out):
    """A process that runs jobs. Asked to stop, it claims no more and completes its jobs; those that have not ended
    after SHUTDOWN_GRACE_SEC stop and return to the queue (CON-003)."""

    id: Id
    name: str
    host: str
    pid: int
    version: str
    state: Annotated[str, WithJsonSchema(enum_schema(WorkerState.values))] = Field(
        description="The state that it reported last."
    )
    slots: int
    busy: int
    stuck: int = Field(description="Slots whose handler cannot be stopped.")
    serves: JsonObject
    started_at: Time
    heartbeat_at: Time


@router.get(
    "/workers",
    **operation("workers_list", Page[WorkerOut], "List workers", permissions=["view_worker"], tags=["workers"]),
)
def workers_list(request: ApiRequest, query: Annotated[Paged, StrictQuery()]) -> HttpResponse:
    """Live workers, and those whose heartbeat stopped within the hour. Needs a token of all tenants. One machine is
    enough, and with SQLite all workers are on it (CON-001); with PostgreSQL they may be on any number."""
    request.auth.require_all_tenants()
    rows, serialize = queries.online_workers(), serializers.serialize_worker
    return json_response(paginate(request.auth, "workers_list", query, rows, NEWEST_FIRST, serialize))


def counts_schema(names: Any) -> dict[str, Any]:
    """Return the JSON Schema of an object with a count for each of these names, and no other."""
    counts = {str(name): {"type": "integer", "minimum": 0} for name in names}
    return {"type": "object", "properties": counts, "required": list(counts), "additionalProperties": False}


class WorkOut(Out):
    queued: int
    running: int


class SlotsOut(Out):
    total: int
    busy: int
    stuck: int


class StatsOut(Out):
    jobs: Annotated[Any, WithJsonSchema(counts_schema(Status))] = Field(
        description="Live states are exact; finished ones are totals of all time, including pruned jobs."
    )
    by_type: dict[str, WorkOut]
    by_addon: dict[str, WorkOut]
    oldest_queued_age_sec: float | None = Field(description="Of the jobs that wait for a slot or their target.")
    expired_leases: int
    recovered_24h: int
    workers: Annotated[Any, WithJsonSchema(counts_schema(STATES))]
    slots: SlotsOut
    as_of: Time = Field(description="With more than 10,000 live jobs, the counts may be a moment old.")


class StatsFilters(QueryParams):
    tenant: Annotated[str | None, *validated_by(fields.parse_tenant, f.TENANT)] = None


@router.get("/stats", **operation("stats_get", StatsOut, "Get stats", tags=["stats"]))
def stats_get(request: ApiRequest, query: Annotated[StatsFilters, StrictQuery()]) -> HttpResponse:
    """Of the token's tenant; for a token of all tenants, of all tenants together or of the given one. Workers and slots
    are those that serve the tenant."""
    if query.tenant is not None and not request.auth.can_see_tenant(query.tenant):
        request.auth.require_all_tenants()
    tenant = query.tenant or request.auth.tenant
    counts, workers = live_counts.count_jobs(tenant), queries.count_workers(tenant)
    document = {
        "jobs": counts.by_status(),
        "by_type": counts.by_column("job_type"),
        "by_addon": counts.by_column("addon_id"),
        "oldest_queued_age_sec": counts.oldest_queued_age_sec(),
        "expired_leases": queries.count_expired_leases(tenant),
        "recovered_24h": queries.count_recovered(timedelta(days=1), tenant),
        "workers": workers.states,
        "slots": {"total": workers.slots, "busy": workers.busy, "stuck": workers.stuck},
        "as_of": format_time(counts.at),
    }
    return json_response(document)


RateIn = Annotated[Any, WithJsonSchema({"type": "string", "examples": ["60/min"]})]


class LimitOut(Out):
    """How many jobs may run at once. Unless it is set otherwise, one of all (DEC-011); a resource that serves one job
    at a time has a limit of its own (CON-002)."""

    scope: Annotated[str, WithJsonSchema(enum_schema(SCOPES))]
    key: str = Field(description="The name within the scope; empty for the global limit.")
    max: int | None = Field(description="Null: unlimited.")
    in_use: int | None = Field(description="Null for the global limit, to a token of one tenant.")
    paused: bool
    paused_by: str = Field(description="Empty for a limit that tenants share, to a token of one tenant.")
    paused_at: Time | None
    reason: str = Field(description="Empty for a limit that tenants share, to a token of one tenant.")
    source: Annotated[str, WithJsonSchema(enum_schema(["settings", "override"]))]
    rate: str | None = Field(description="How many jobs may start in a time, e.g. `60/min`. Null: any number.")
    token_rate: str | None = Field(description="How many tokens jobs may use in a time. Null: any number.")
    burst: int | None = Field(description="How many jobs may start at once after a pause. Null: one.")
    next_start_at: Time | None = Field(description="When the rates let the next job start. Null: now, or not shown.")
    tokens_left: int | None = Field(
        description="What the token rate allows now; below zero if more was used. Null without a token rate, and for a "
        "limit that tenants share, to a token of one tenant."
    )


class LimitIn(RequestBody):
    """Only the given fields change; `reset` drops the override and excludes all others but `reason`; a pause stays.

    A rate is a whole number per s, min, h or day: `60/min`. Null removes it. `burst` needs a `rate`.
    """

    model_config = body_config(scope="job_type", key="mail.send", max=3)

    scope: Annotated[Any, WithJsonSchema(enum_schema(SCOPES))]
    key: Annotated[Any, WithJsonSchema({"type": "string", "maxLength": 200})] | None = None
    max: Annotated[Any, WithJsonSchema({"type": "integer", "minimum": 1, "maximum": limits.MAXIMUM_LIMIT})] | None = (
        Field(default=None, description="Null: unlimited.")
    )
    rate: RateIn | None = None
    token_rate: RateIn | None = None
    burst: Annotated[Any, WithJsonSchema({"type": "integer", "minimum": 1, "maximum": MAX_BURST})] | None = None
    paused: f.Flag | None = None
    reason: f.Reason = None
    reset: f.Flag | None = None


@router.get(
    "/limits",
    **operation("limits_list", Page[LimitOut], "List limits", permissions=["view_concurrencylimit"], tags=["limits"]),
)
def limits_list(request: ApiRequest, query: Annotated[Paged, StrictQuery()]) -> HttpResponse:
    """Every limit of the settings or an operator, by scope and key. A token of one tenant gets the global limit, that
    of its tenant, and those that its unfinished jobs are under."""
    tenant = request.auth.tenant
    rows = limits.list_limits() if tenant is None else limits.list_limits_of_tenant(tenant)
    page = paginate_list(
        request.auth,
        "limits_list",
        query,
        rows,
        lambda row: [SCOPES.index(row.scope), row.key],
        serializers.serialize_limit,
    )
    return json_response(page)


@router.put(
    "/limits",
    **operation(
        "limits_put", LimitOut, "Set a limit", scope="admin", permissions=["change_limits"], body=True, tags=["limits"]
    ),
)
def limits_put(request: ApiRequest, body: Annotated[LimitIn, JsonBody()]) -> HttpResponse:
    """Sets or pauses one limit, or resets it to the value of the settings. Needs a token of all tenants."""
    request.auth.require_all_tenants()
    return json_response(serializers.serialize_limit(limits.put(body.given_fields(), actor=request.auth.actor)))
