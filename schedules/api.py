"""Endpoints of schedules."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

from django.http import HttpResponse
from ninja import Router

from jobs.api.auth import ApiRequest, Principal
from jobs.api.job_schemas import NEW_OR_EXISTING, ReasonBody, VerbIn
from jobs.api.operations import action, operation
from jobs.api.pagination import Order, Paged, paginate
from jobs.api.request_params import JsonBody, StrictQuery
from jobs.api.responses import empty_response, etag_response, json_response
from jobs.api.schemas import Id
from jobs.api.serializers import hide_payload, read_job
from jobs.models.payload import PARAMS
from schedules import history, services
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
from schedules.serializers import serialize_fire, serialize_schedule, serialize_upcoming

APP_LABEL = Schedule._meta.app_label
view_operation = partial(operation, permissions=[f"{APP_LABEL}.view_schedule"])
admin_operation = partial(operation, scope="admin")
router = Router(tags=["schedules"])
NEWEST_FIRST = Order(Schedule, ("-id",))
_UNUSED = [f"template__{name}" for name in ("params", "retry_policy", "tags")]  # only its name is shown
LATEST_FIRST = Order(ScheduleFire, ("-fire_time",))  # unique within one schedule


@router.get("/schedules", **view_operation("schedules_list", SchedulePage, summary="List schedules"))
def schedules_list(request: ApiRequest, query: Annotated[ScheduleFilters, StrictQuery()]) -> HttpResponse:
    """Newest first."""
    filters: dict[str, Any] = {
        name: value for name in ("tenant", "name", "job_type") if (value := getattr(query, name)) is not None
    }
    if query.enabled is not None:
        filters["enabled"] = query.enabled == "true"
    rows = services.of(request.auth.tenant).filter(**filters).defer(*_UNUSED)
    serialize = partial(_serialize, principal=request.auth)
    return json_response(paginate(request.auth, "schedules_list", query, rows, NEWEST_FIRST, serialize, payload=PARAMS))


@router.post(
    "/schedules",
    **admin_operation("schedules_create", {201: ScheduleOut}, body=True, problems=[409], summary="Create a schedule"),
)
def schedules_create(request: ApiRequest, body: Annotated[ScheduleIn, JsonBody()]) -> HttpResponse:
    """It first fires at its next due time. A cron that never comes due and an unknown timezone give 422."""
    fields = body.given_fields()
    tenant = request.auth.resolve_tenant(fields.pop("tenant", None))
    schedule = services.create(fields, tenant=tenant, actor=request.auth.actor)
    return json_response(_serialize(schedule, request.auth), 201)


@router.get(
    "/schedules/preview", **view_operation("schedules_preview_cron", Preview, summary="Preview a cron expression")
)
def schedules_preview_cron(request: ApiRequest, query: Annotated[CronQuestion, StrictQuery()]) -> HttpResponse:
    """The next due times of an expression that need not be saved, within 100 years."""
    return _preview_response(history.preview_cron(query.cron, query.timezone, query.count))


@router.get(
    "/schedules/{schedule_id}", **view_operation("schedules_get", ScheduleOut, problems=[404], summary="Get a schedule")
)
def schedules_get(request: ApiRequest, schedule_id: Id) -> HttpResponse:
    """With its next and its last due time."""
    schedule = services.get(schedule_id, tenant=request.auth.tenant)
    return etag_response(request, _serialize(schedule, request.auth))


@router.patch(
    "/schedules/{schedule_id}",
    **admin_operation("schedules_update", ScheduleOut, body=True, problems=[404, 409], summary="Change a schedule"),
)
def schedules_update(request: ApiRequest, schedule_id: Id, body: Annotated[ScheduleEdits, JsonBody()]) -> HttpResponse:
    """Jobs inserted before keep their values (INV-005). What came due before the change is still fired."""
    principal = request.auth
    schedule = services.update(schedule_id, body.given_fields(), tenant=principal.tenant, actor=principal.actor)
    return json_response(_serialize(schedule, principal))


@router.delete(
    "/schedules/{schedule_id}",
    **admin_operation("schedules_delete", {204: None}, problems=[404], summary="Delete a schedule"),
)
def schedules_delete(request: ApiRequest, schedule_id: Id) -> HttpResponse:
    """Deletes its history of fires, too. Its jobs stay."""
    services.delete(schedule_id, tenant=request.auth.tenant, actor=request.auth.actor)
    return empty_response()


def schedule_action(name: str, summary: str, response: Any = ScheduleOut, permission: str = "") -> dict[str, Any]:
    return action(f"schedules_{name}", response, f"{APP_LABEL}.{permission or name}_schedule", summary)


@router.post("/schedules/{schedule_id}/trigger", **schedule_action("trigger", "Submit its job now", NEW_OR_EXISTING))
def schedules_trigger(request: ApiRequest, schedule_id: Id, body: ReasonBody) -> HttpResponse:
    """Also while it is disabled or its last job is running. It does not count as a fire. 200 if its unique key is
    taken: with the job that has it."""
    principal = request.auth
    job, created = services.submit_trigger(
        schedule_id, tenant=principal.tenant, reason=body.reason, actor=principal.actor
    )
    return json_response(read_job(job.pk, principal), 201 if created else 200)


@router.post("/schedules/{schedule_id}/enable", **schedule_action("enable", "Enable a schedule"))
def schedules_enable(request: ApiRequest, schedule_id: Id, body: ReasonBody) -> HttpResponse:
    """It fires from its next due time on; what came due while it was disabled is not fired."""
    return _run_action(request, services.enable, schedule_id, body)


@router.post("/schedules/{schedule_id}/disable", **schedule_action("disable", "Disable a schedule"))
def schedules_disable(request: ApiRequest, schedule_id: Id, body: ReasonBody) -> HttpResponse:
    """The reason is stored in `disabled_reason`."""
    return _run_action(request, services.disable, schedule_id, body)


@router.post(
    "/schedules/{schedule_id}/skip-next",
    **schedule_action("skip_next", "Skip the next run", permission="skip"),
)
def schedules_skip_next(request: ApiRequest, schedule_id: Id, body: ReasonBody) -> HttpResponse:
    """The one after it comes as usual. 409 `nothing_to_skip` if there is no next fire."""
    return _run_action(request, services.skip_next, schedule_id, body)


@router.get(
    "/schedules/{schedule_id}/preview",
    **view_operation("schedules_preview", Preview, problems=[404, 409], summary="Preview the next runs of a schedule"),
)
def schedules_preview(request: ApiRequest, schedule_id: Id, query: Annotated[Count, StrictQuery()]) -> HttpResponse:
    """Of a disabled schedule, those that it would have if it were enabled now. Within 100 years."""
    schedule = services.get(schedule_id, tenant=request.auth.tenant)
    return _preview_response(history.preview_schedule(schedule, query.count))


@router.get(
    "/schedules/{schedule_id}/fires",
    **operation(
        "schedules_fires",
        FirePage,
        permissions=[f"{APP_LABEL}.view_schedulefire"],
        problems=[404],
        summary="List the runs of a schedule",
    ),
)
def schedules_fires(request: ApiRequest, schedule_id: Id, query: Annotated[Paged, StrictQuery()]) -> HttpResponse:
    """Latest first, each with the outcome of its job."""
    schedule = services.get(schedule_id, tenant=request.auth.tenant)
    rows = history.fires_of(schedule)
    document = paginate(
        request.auth, "schedules_fires", query, rows, LATEST_FIRST, lambda row: row, parent=str(schedule.pk)
    )
    items = [serialize_fire(past) for past in history.load_outcomes(document["items"])]
    return json_response({**document, "items": items})


def _run_action(request: ApiRequest, service: Callable[..., Schedule], schedule_id: str, body: VerbIn) -> HttpResponse:
    principal = request.auth
    schedule = service(schedule_id, tenant=principal.tenant, reason=body.reason, actor=principal.actor)
    return json_response(_serialize(schedule, principal))


def _preview_response(upcoming: history.UpcomingFires) -> HttpResponse:
    items = [serialize_upcoming(fire) for fire in upcoming.fires]
    return json_response({"items": items, "truncated": upcoming.is_truncated})


def _serialize(row: Schedule, principal: Principal) -> dict[str, Any]:
    document = serialize_schedule(row)
    return document if principal.can_view_payload else hide_payload(document, "params")
