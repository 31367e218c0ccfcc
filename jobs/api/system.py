"""Job types, workers, figures of the queue, and limits: how many jobs may run at once."""

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
from jobs.api.pagination import Order, Paged, page, page_in_memory
from jobs.api.request_params import Asked, Document, Question, Said, example, gated
from jobs.api.responses import answer
from jobs.api.schemas import Id, JsonObject, Out, Page, Time, words
from jobs.models import LimitScope, Worker, WorkerState
from jobs.registry import registry
from jobs.services import limits
from jobs.states import Status
from jobs.stats import live_counts, queries
from jobs.validation import fields

router = Router()
NEWEST_FIRST = Order(Worker, ("-id",))
SCOPES = list(LimitScope.values)
STATES = (WorkerState.RUNNING, WorkerState.QUIET, WorkerState.STOPPING, queries.SILENT)


class JobTypeOut(Out):
    name: str
    params_schema: JsonObject = Field(description="JSON Schema of the params.")
    resource: str
    remote: bool = Field(description="Run by workers that poll over HTTP, not by ours.")
    max_retries: int
    doc: str


@router.get("/job-types", **operation("job_types_list", Page[JobTypeOut], summary="List job types", tags=["job types"]))
def job_types_list(request: ApiRequest, asked: Annotated[Paged, Asked()]) -> HttpResponse:
    """By name. Known is what is registered in the process that answers."""
    handlers = [registry.get(name) for name in registry.names()]
    found = page_in_memory(
        request.auth, "job_types_list", asked, handlers, lambda handler: [handler.name], serializers.job_type
    )
    return answer(found)


class WorkerOut(Out):
    id: Id
    name: str
    host: str
    pid: int
    version: str
    state: Annotated[str, WithJsonSchema(words(WorkerState.values))] = Field(description="What it said last.")
    slots: int
    busy: int
    stuck: int = Field(description="Slots whose handler cannot be stopped.")
    serves: JsonObject
    started_at: Time
    heartbeat_at: Time


@router.get("/workers", **operation("workers_list", Page[WorkerOut], summary="List workers", tags=["workers"]))
def workers_list(request: ApiRequest, asked: Annotated[Paged, Asked()]) -> HttpResponse:
    """Workers that live, and those that fell silent within the hour. Needs a token of all tenants."""
    request.auth.require_all_tenants()
    rows = queries.online_workers()
    return answer(page(request.auth, "workers_list", asked, rows, NEWEST_FIRST, serializers.worker))


def counts(names: Any) -> dict[str, Any]:
    """An object that has each of these names, and no other, with a number."""
    listed = [str(name) for name in names]
    number = {"type": "integer", "minimum": 0}
    return {
        "type": "object",
        "properties": dict.fromkeys(listed, number),
        "required": listed,
        "additionalProperties": False,
    }


class WorkOut(Out):
    queued: int
    running: int


class SlotsOut(Out):
    total: int
    busy: int
    stuck: int


class StatsOut(Out):
    jobs: Annotated[Any, WithJsonSchema(counts(Status))] = Field(
        description="Live states are exact; ended ones are totals of all time, which pruning keeps."
    )
    by_type: dict[str, WorkOut]
    by_addon: dict[str, WorkOut]
    oldest_queued_age_sec: float | None = Field(description="Of those that wait for a slot or their target.")
    expired_leases: int
    recovered_24h: int
    workers: Annotated[Any, WithJsonSchema(counts(STATES))]
    slots: SlotsOut
    as_of: Time = Field(description="With more than 10,000 live jobs, they may have been counted a moment ago.")


class StatsFilters(Question):
    tenant: Annotated[str | None, *gated(fields.parse_tenant, f.TENANT)] = None


@router.get("/stats", **operation("stats_get", StatsOut, summary="Figures", tags=["stats"]))
def stats_get(request: ApiRequest, asked: Annotated[StatsFilters, Asked()]) -> HttpResponse:
    """Of the token's tenant; a token of all tenants gets them all together, or the one it asks for."""
    if asked.tenant is not None and not request.auth.sees(asked.tenant):
        request.auth.require_all_tenants()
    tenant = asked.tenant or request.auth.tenant
    counted, force = live_counts.count_jobs(tenant), queries.count_workers()
    document = {
        "jobs": counted.by_status(),
        "by_type": counted.by_column("job_type"),
        "by_addon": counted.by_column("addon_id"),
        "oldest_queued_age_sec": counted.oldest_queued_age_sec(),
        "expired_leases": queries.count_expired_leases(tenant),
        "recovered_24h": queries.count_recovered(timedelta(days=1), tenant),
        "workers": force.states,
        "slots": {"total": force.slots, "busy": force.busy, "stuck": force.stuck},
        "as_of": serializers.moment(counted.at),
    }
    return answer(document)


class LimitOut(Out):
    scope: Annotated[str, WithJsonSchema(words(SCOPES))]
    key: str = Field(description="The name within the scope; empty for the global limit.")
    max: int | None = Field(description="Null: unlimited.")
    in_use: int
    paused: bool
    paused_by: str
    paused_at: Time | None
    reason: str
    source: Annotated[str, WithJsonSchema(words(["settings", "override"]))]


class LimitIn(Said):
    """`max` and `paused` change what they name and nothing else; `reset` drops the override and stands alone."""

    model_config = example(scope="job_type", key="mail.send", max=3)

    scope: Annotated[Any, WithJsonSchema(words(SCOPES))]
    key: Annotated[Any, WithJsonSchema({"type": "string", "maxLength": 200})] | None = None
    max: Annotated[Any, WithJsonSchema({"type": "integer", "minimum": 1, "maximum": limits.LARGEST})] | None = Field(
        default=None, description="Null: unlimited."
    )
    paused: f.Flag | None = None
    reason: f.Reason = None
    reset: f.Flag | None = None


@router.get("/limits", **operation("limits_list", Page[LimitOut], summary="List limits", tags=["limits"]))
def limits_list(request: ApiRequest, asked: Annotated[Paged, Asked()]) -> HttpResponse:
    """Every limit that the settings or an operator set, by scope and key. Of tenants, only those the caller may see."""
    caller = request.auth
    rows = [state for state in limits.listing() if state.scope != LimitScope.TENANT or caller.sees(state.key)]
    found = page_in_memory(
        caller, "limits_list", asked, rows, lambda state: [SCOPES.index(state.scope), state.key], serializers.limit
    )
    return answer(found)


@router.put(
    "/limits",
    **operation(
        "limits_put",
        LimitOut,
        scope="admin",
        permission="change_limits",
        body=True,
        summary="Set a limit",
        tags=["limits"],
    ),
)
def limits_put(request: ApiRequest, body: Annotated[LimitIn, Document()]) -> HttpResponse:
    """Sets or pauses one limit, or puts it back to what the settings say. Needs a token of all tenants."""
    request.auth.require_all_tenants()
    return answer(serializers.limit(limits.put(body.given_fields(), actor=request.auth.actor)))
