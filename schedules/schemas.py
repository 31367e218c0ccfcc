"""Schedules as documents of the API: request bodies, query parameters and responses."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from jobs.api import field_schemas as f
from jobs.api.job_schemas import SHOWN_STATUSES
from jobs.api.pagination import Paged
from jobs.api.request_params import QueryParams, RequestBody, body_config, integer_between, one_of, validated_by
from jobs.api.schemas import Id, JsonObject, Out, Page, Time, enum_schema
from jobs.conf.rules import YEAR_SEC
from jobs.validation import fields
from schedules import cron, history
from schedules import validation as gates
from schedules.models import CatchUp, Overlap

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
CatchUpWord = Annotated[Any, WithJsonSchema(enum_schema(CatchUp.values))]
CatchUpMost = Annotated[Any, WithJsonSchema(whole_number(1, gates.MOST_CATCH_UP))]
OverlapWord = Annotated[Any, WithJsonSchema(enum_schema(Overlap.values))]
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
    catch_up: Annotated[str, WithJsonSchema(enum_schema(CatchUp.values))]
    catch_up_max: int
    overlap: Annotated[str, WithJsonSchema(enum_schema(Overlap.values))]
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
    outcome: Annotated[str, WithJsonSchema(enum_schema(SHOWN_STATUSES))] | None = Field(
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


class ScheduleEdits(RequestBody):
    """Null clears. A new cron or timezone counts from the next fire (DEC-010)."""

    model_config = body_config(cron="30 4 * * *", priority="LOW")

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

    model_config = body_config(
        name="nightly report", cron="0 3 * * *", timezone="Europe/Berlin", job_type="report.make"
    )

    name: f.Name
    tenant: f.Tenant | None = None


class ScheduleFilters(Paged):
    tenant: Annotated[str | None, *validated_by(fields.parse_tenant, f.TENANT)] = None
    name: Annotated[str | None, *validated_by(fields.parse_identifier, f.NAME)] = None
    job_type: Annotated[str | None, *validated_by(fields.parse_identifier, f.NAME)] = None
    enabled: Annotated[str | None, *validated_by(one_of("true", "false"), enum_schema(["true", "false"]))] = None


class Count(QueryParams):
    count: Annotated[int, *validated_by(integer_between(history.FEWEST, history.MOST), COUNT)] = history.DEFAULT


class CronQuestion(Count):
    cron: Annotated[str, *validated_by(gates.cron, CRON)]
    timezone: Annotated[str, *validated_by(gates.timezone, {**ZONE, "default": "UTC"})] = "UTC"
