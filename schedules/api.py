"""Schedules: when jobs are made by themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from django.http import HttpResponse
from ninja import Router
from pydantic import Field, WithJsonSchema

from jobs.api import fields as f
from jobs.api import serializers
from jobs.api.auth import ApiRequest, Caller
from jobs.api.operations import action, operation
from jobs.api.pagination import Order, Paged, page
from jobs.api.request_params import Asked, Document, Optional, Question, Said, example, gated, one_of, whole
from jobs.api.responses import answer, nothing, tagged
from jobs.api.schemas import SHOWN_STATUSES, Id, JobOut, JsonObject, Out, Page, Time, VerbIn, words
from jobs.conf.rules import YEAR_SEC
from jobs.validation import fields
from schedules import cron, history, services
from schedules import serializers as shapes
from schedules import validation as gates
from schedules.models import CatchUp, Overlap, Schedule, ScheduleFire

CRON = {
    "type": "string",
    "maxLength": cron.LENGTH,
    "description": f"Five fields, or one of {', '.join(cron.NAMES)}. On days when clocks change as Debian's cron.",
    "examples": ["0 3 * * 1-5"],
}
ZONE = {"type": "string", "description": "An IANA name.", "examples": ["Europe/Berlin"]}


def whole_number(minimum: int, maximum: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": minimum, "maximum": maximum}


COUNT = {**whole_number(history.FEWEST, history.MOST), "default": history.DEFAULT}
Cron = Annotated[Any, WithJsonSchema(CRON)]
Zone = Annotated[Any, WithJsonSchema(ZONE)]
Every = Annotated[Any, WithJsonSchema(whole_number(1, gates.LONGEST_EVERY_SEC))]
Fires = Annotated[Any, WithJsonSchema(whole_number(1, gates.MOST_FIRES))]
CatchUpWord = Annotated[Any, WithJsonSchema(words(CatchUp.values))]
CatchUpMost = Annotated[Any, WithJsonSchema(whole_number(1, gates.MOST_CATCH_UP))]
OverlapWord = Annotated[Any, WithJsonSchema(words(Overlap.values))]
Grace = Annotated[Any, WithJsonSchema(whole_number(0, YEAR_SEC))]
Jitter = Annotated[Any, WithJsonSchema(whole_number(0, gates.LONGEST_JITTER_SEC))]


class ScheduleOut(Out):
    """Due times that make jobs. What is edited here never touches jobs already made (INV-005)."""

    id: Id
    tenant: str
    name: str
    cron: str | None
    every_sec: int | None
    anchor_at: Time | None
    run_at: Time | None
    timezone: str
    max_fires: int | None
    enabled: bool
    disabled_reason: str
    job_type: str | None
    template: str | None = Field(description="The name of a template.")
    params: JsonObject | None = Field(description="Secrets masked. Null where the caller may not see payloads.")
    fire_time_param: str | None
    priority: int | None
    target: str | None
    resource: str | None
    catch_up: Annotated[str, WithJsonSchema(words(CatchUp.values))]
    catch_up_max: int
    overlap: Annotated[str, WithJsonSchema(words(Overlap.values))]
    misfire_grace_sec: int
    jitter_sec: int
    next_fire_at: Time | None
    last_fire_at: Time | None
    fire_count: int
    note: str = Field(description="What the scheduler last had to say: due times that it missed or skipped.")
    source: str = Field(description="Empty, or where it comes from: `code:…`, `q2:…`.")
    edited: bool
    created_at: Time


class FireOut(Out):
    """One due time, fired once."""

    id: int
    schedule_id: Id
    fire_time: Time
    fired_at: Time
    job_id: Id | None = Field(description="Null once the job was pruned.")
    outcome: Annotated[str, WithJsonSchema(words(SHOWN_STATUSES))] | None = Field(
        description="The state of the last job of its retry chain."
    )
    last_job_id: Id | None
    note: str


class UpcomingOut(Out):
    fire_at: Time
    local: str = Field(description="ISO 8601 with the offset of the schedule's timezone.")
    note: str | None = Field(description="On a day when clocks change: what that means for this fire.")


class Preview(Out):
    items: list[UpcomingOut]


class SchedulePage(Page[ScheduleOut]):
    pass


class FirePage(Page[FireOut]):
    pass


class ScheduleEdits(Said):
    """Null clears. A new cron or timezone counts from the next fire (DEC-010)."""

    model_config = example(cron="30 4 * * *", priority="LOW")

    name: f.Name = Field(default=None)
    cron: Cron | None = None
    every_sec: Every | None = None
    anchor_at: f.Moment | None = None
    run_at: f.Moment | None = None
    timezone: Zone | None = None
    max_fires: Fires | None = None
    enabled: f.Flag | None = None
    job_type: f.Name | None = None
    template: f.Name | None = None
    params: f.Params | None = None
    fire_time_param: f.Name | None = None
    priority: f.Priority | None = None
    target: f.Target | None = None
    resource: f.Name | None = None
    catch_up: CatchUpWord | None = None
    catch_up_max: CatchUpMost | None = None
    overlap: OverlapWord | None = None
    misfire_grace_sec: Grace | None = None
    jitter_sec: Jitter | None = None


class ScheduleIn(ScheduleEdits):
    """Exactly one of `cron` (DEC-003), `every_sec` and `run_at`; exactly one of `job_type` and `template`."""

    model_config = example(name="nightly report", cron="0 3 * * *", timezone="Europe/Berlin", job_type="report.make")

    name: f.Name
    tenant: f.Tenant | None = None


class ScheduleFilters(Paged):
    tenant: Annotated[str | None, *gated(fields.tenant, f.TENANT)] = None
    name: Annotated[str | None, *gated(fields.identifier, f.NAME)] = None
    job_type: Annotated[str | None, *gated(fields.identifier, f.NAME)] = None
    enabled: Annotated[str | None, *gated(one_of("true", "false"), words(["true", "false"]))] = None


class Count(Question):
    count: Annotated[int, *gated(whole(history.FEWEST, history.MOST), COUNT)] = history.DEFAULT


class CronQuestion(Count):
    cron: Annotated[str, *gated(gates.cron, CRON)]
    timezone: Annotated[str, *gated(gates.timezone, {**ZONE, "default": "UTC"})] = "UTC"


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
