"""Schedules: when jobs are made by themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from django.http import HttpResponse
from ninja import Router

from jobs.api import serializers
from jobs.api.auth import ApiRequest, Caller
from jobs.api.job_schemas import JobOut, VerbIn
from jobs.api.operations import action, operation
from jobs.api.pagination import Order, Paged, page
from jobs.api.request_params import Asked, Document, Optional
from jobs.api.responses import answer, nothing, tagged
from jobs.api.schemas import Id
from schedules import history, services
from schedules import serializers as shapes
from schedules.models import Schedule, ScheduleFire
from schedules.schemas import (
    Count,
    CronQuestion,
    FirePage,
    Preview,
    ScheduleEdits,
    ScheduleFilters,
    ScheduleIn,
    ScheduleOut,
    SchedulePage,
)

router = Router(tags=["schedules"])
Why = Annotated[VerbIn, Optional()]
NEWEST_FIRST = Order(Schedule, ("-id",))
LATEST_FIRST = Order(ScheduleFire, ("-fire_time",))  # unique within one schedule


@router.get("/schedules", **operation("schedules_list", SchedulePage, summary="List schedules"))
def schedules_list(request: ApiRequest, asked: Annotated[ScheduleFilters, Asked()]) -> HttpResponse:
    """Newest first."""
    filters: dict[str, Any] = {
        name: value for name in ("tenant", "name", "job_type") if (value := getattr(asked, name)) is not None
    }
    if asked.enabled is not None:
        filters["enabled"] = asked.enabled == "true"
    rows = services.of(request.auth.tenant).filter(**filters)
    return answer(
        page(request.auth, "schedules_list", asked, rows, NEWEST_FIRST, lambda row: _serialize(row, request.auth))
    )


@router.post(
    "/schedules",
    **operation(
        "schedules_create", {201: ScheduleOut}, scope="admin", body=True, problems=[409], summary="Make a schedule"
    ),
)
def schedules_create(request: ApiRequest, body: Annotated[ScheduleIn, Document()]) -> HttpResponse:
    """It first fires at its next due time. A cron that never comes due, and a timezone that there is not, are 422."""
    values = body.given_fields()
    tenant = request.auth.tenant_for(values.pop("tenant", None))
    schedule = services.create(values, tenant=tenant, actor=request.auth.actor)
    return answer(_serialize(schedule, request.auth), 201)


@router.get("/schedules/preview", **operation("schedules_preview_cron", Preview, summary="Preview a cron expression"))
def schedules_preview_cron(request: ApiRequest, asked: Annotated[CronQuestion, Asked()]) -> HttpResponse:
    """The next due times of an expression that need not be saved."""
    return _answer_preview(history.of_cron(asked.cron, asked.timezone, asked.count))


@router.get(
    "/schedules/{schedule_id}", **operation("schedules_get", ScheduleOut, problems=[404], summary="Get a schedule")
)
def schedules_get(request: ApiRequest, schedule_id: Id) -> HttpResponse:
    schedule = services.get(schedule_id, tenant=request.auth.tenant)
    return tagged(request, _serialize(schedule, request.auth))


@router.patch(
    "/schedules/{schedule_id}",
    **operation(
        "schedules_update", ScheduleOut, scope="admin", body=True, problems=[404, 409], summary="Change a schedule"
    ),
)
def schedules_update(request: ApiRequest, schedule_id: Id, body: Annotated[ScheduleEdits, Document()]) -> HttpResponse:
    """Jobs that it has made keep what they were given (INV-005). What was due before the change is still fired."""
    caller = request.auth
    schedule = services.update(schedule_id, body.given_fields(), tenant=caller.tenant, actor=caller.actor)
    return answer(_serialize(schedule, caller))


@router.delete(
    "/schedules/{schedule_id}",
    **operation("schedules_delete", {204: None}, scope="admin", problems=[404], summary="Delete a schedule"),
)
def schedules_delete(request: ApiRequest, schedule_id: Id) -> HttpResponse:
    """With its history of fires. Its jobs stay."""
    services.delete(schedule_id, tenant=request.auth.tenant, actor=request.auth.actor)
    return nothing()


def verb(name: str, summary: str, response: Any = ScheduleOut, permission: str = "") -> dict[str, Any]:
    return action(f"schedules_{name}", response, f"jobscheduler_schedules.{permission or name}_schedule", summary)


@router.post("/schedules/{schedule_id}/trigger", **verb("trigger", "Make its job now", {201: JobOut}))
def schedules_trigger(request: ApiRequest, schedule_id: Id, body: Why) -> HttpResponse:
    """Whether or not it is enabled, and whatever is running. It counts as no fire."""
    caller = request.auth
    job = services.trigger(schedule_id, tenant=caller.tenant, reason=body.reason, actor=caller.actor)
    return answer(serializers.one(job.pk, caller), 201)


@router.post("/schedules/{schedule_id}/enable", **verb("enable", "Let it fire again"))
def schedules_enable(request: ApiRequest, schedule_id: Id, body: Why) -> HttpResponse:
    """From its next due time on: what came due while it was disabled is not made up for."""
    return _run_verb(request, services.enable, schedule_id, body)


@router.post("/schedules/{schedule_id}/disable", **verb("disable", "Fire no more"))
def schedules_disable(request: ApiRequest, schedule_id: Id, body: Why) -> HttpResponse:
    """The reason is kept in `disabled_reason`."""
    return _run_verb(request, services.disable, schedule_id, body)


@router.post("/schedules/{schedule_id}/skip-next", **verb("skip_next", "Leave out the next fire", permission="skip"))
def schedules_skip_next(request: ApiRequest, schedule_id: Id, body: Why) -> HttpResponse:
    """The one after it comes as usual. 409 `nothing_to_skip` if there is no next fire."""
    return _run_verb(request, services.skip_next, schedule_id, body)


@router.get(
    "/schedules/{schedule_id}/preview",
    **operation("schedules_preview", Preview, problems=[404, 409], summary="The next fires of a schedule"),
)
def schedules_preview(request: ApiRequest, schedule_id: Id, asked: Annotated[Count, Asked()]) -> HttpResponse:
    """Of a disabled schedule, what would come if it were enabled now."""
    schedule = services.get(schedule_id, tenant=request.auth.tenant)
    return _answer_preview(history.of_schedule(schedule, asked.count))


@router.get(
    "/schedules/{schedule_id}/fires",
    **operation("schedules_fires", FirePage, problems=[404], summary="What a schedule has fired"),
)
def schedules_fires(request: ApiRequest, schedule_id: Id, asked: Annotated[Paged, Asked()]) -> HttpResponse:
    """Latest first, each with what became of its job."""
    schedule = services.get(schedule_id, tenant=request.auth.tenant)
    rows = history.fires_of(schedule)
    found = page(request.auth, "schedules_fires", asked, rows, LATEST_FIRST, lambda row: row, of=str(schedule.pk))
    return answer({**found, "items": [shapes.fire(past) for past in history.with_outcomes(found["items"])]})


def _run_verb(request: ApiRequest, service: Callable[..., Schedule], schedule_id: str, body: VerbIn) -> HttpResponse:
    caller = request.auth
    schedule = service(schedule_id, tenant=caller.tenant, reason=body.reason, actor=caller.actor)
    return answer(_serialize(schedule, caller))


def _answer_preview(upcoming: list[history.Upcoming]) -> HttpResponse:
    return answer({"items": [shapes.upcoming(due) for due in upcoming]})


def _serialize(row: Schedule, caller: Caller) -> dict[str, Any]:
    document = shapes.schedule(row)
    return document if caller.payload else {**document, "params": None}
