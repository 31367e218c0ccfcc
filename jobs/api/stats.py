"""The queue in figures."""

from __future__ import annotations

from datetime import timedelta
from typing import Annotated, Any

from django.http import HttpResponse
from ninja import Router
from pydantic import Field, WithJsonSchema

from jobs import census, figures, parsing, shapes
from jobs.api.answers import answer
from jobs.api.callers import ApiRequest, Caller
from jobs.api.fields import TENANT
from jobs.api.operations import operation
from jobs.api.queries import Asked, Question, gated
from jobs.api.schemas import Out, Time
from jobs.models import WorkerState
from jobs.states import Status

router = Router(tags=["stats"])
DAY = timedelta(days=1)
STATES = (WorkerState.RUNNING, WorkerState.QUIET, WorkerState.STOPPING, figures.SILENT)


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
    tenant: Annotated[str | None, *gated(parsing.tenant, TENANT)] = None


@router.get("/stats", **operation("stats_get", StatsOut, summary="Figures"))
def stats_get(request: ApiRequest, asked: Annotated[StatsFilters, Asked()]) -> HttpResponse:
    """Of the token's tenant; a token of all tenants gets them all together, or the one it asks for."""
    return answer(_figures(_tenant(request.auth, asked.tenant)))


def _tenant(caller: Caller, asked: str | None) -> str | None:
    if asked is not None and not caller.sees(asked):
        caller.require_all_tenants()
    return asked or caller.tenant


def _figures(tenant: str | None) -> dict[str, Any]:
    counted, force = census.take(tenant), figures.workforce()
    return {
        "jobs": counted.statuses(),
        "by_type": counted.work("job_type"),
        "by_addon": counted.work("addon_id"),
        "oldest_queued_age_sec": counted.oldest_queued_age_sec(),
        "expired_leases": figures.expired_leases(tenant),
        "recovered_24h": figures.recovered(DAY, tenant),
        "workers": force.states,
        "slots": {"total": force.slots, "busy": force.busy, "stuck": force.stuck},
        "as_of": shapes.moment(counted.at),
    }
