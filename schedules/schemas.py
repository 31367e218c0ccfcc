"""Schedules as documents of the API: request bodies, query parameters and responses."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from jobs.api import field_schemas as f
from jobs.api.job_schemas import SHOWN_STATUSES
from jobs.api.pagination import Paged
from jobs.api.request_params import QueryParams, RequestBody, body_config, integer_between, one_of, validated_by
from jobs.api.schemas import Id, JsonObject, Out, Page, Time, Truncated, enum_schema
from jobs.conf.rules import YEAR_SEC
from jobs.validation import fields
from schedules import cron, history, validation
from schedules.models import CatchUp, Overlap

CRON = {
    "type": "string",
    "maxLength": cron.CRON_LENGTH,
    "description": f"Five fields, or one of {', '.join(cron.ALIASES)}. Clock changes are handled as in Debian's cron.",
    "examples": ["0 3 * * 1-5"],
}
ZONE = {"type": "string", "description": "An IANA name.", "examples": ["Europe/Berlin"]}


def integer_schema(minimum: int, maximum: int) -> dict[str, Any]:
    return {"type": "integer", "minimum": minimum, "maximum": maximum}


Cron = Annotated[Any, WithJsonSchema(CRON)]
Zone = Annotated[Any, WithJsonSchema(ZONE)]
Every = Annotated[Any, WithJsonSchema(integer_schema(1, validation.MAX_EVERY_SEC))]
Fires = Annotated[Any, WithJsonSchema(integer_schema(1, validation.MAX_FIRES))]
CatchUpChoice = Annotated[Any, WithJsonSchema(enum_schema(CatchUp.values))]
CatchUpMax = Annotated[Any, WithJsonSchema(integer_schema(1, validation.MAX_CATCH_UP))]
OverlapChoice = Annotated[Any, WithJsonSchema(enum_schema(Overlap.values))]
Grace = Annotated[Any, WithJsonSchema(integer_schema(0, YEAR_SEC))]
Jitter = Annotated[Any, WithJsonSchema(integer_schema(0, validation.MAX_JITTER_SEC))]


class ScheduleOut(Out):
    """A rule that inserts jobs at its due times. Changes never affect jobs inserted before (INV-005)."""

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
    params: JsonObject | None = Field(description="Secrets masked. Null where the principal may not see payloads.")
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
    note: str = Field(description="The last message of the scheduler: due times that were missed or skipped.")
    source: str = Field(description="Empty, or the origin: `code:…` (declared), `q2:…` (imported from django-q2).")
    edited: bool
    created_at: Time
    truncated: Truncated = False


class FireOut(Out):
    """One due time of a schedule and the job that it inserted."""

    id: int
    schedule_id: Id
    fire_time: Time
    fired_at: Time
    job_id: Id | None = Field(description="Null once the job was pruned.")
    outcome: Annotated[str, WithJsonSchema(enum_schema(SHOWN_STATUSES))] | None = Field(
        description="The state of the last job of its retry chain; null once the job was pruned."
    )
    last_job_id: Id | None
    note: str


class UpcomingOut(Out):
    fire_at: Time
    local: str = Field(description="ISO 8601 with the offset of the schedule's timezone.")
    note: str | None = Field(description="On a day with a clock change: what it means for this run.")


class Preview(Out):
    items: list[UpcomingOut]
    truncated: bool = Field(description=f"There are more, but not within {history.HORIZON_YEARS} years.")


class SchedulePage(Page[ScheduleOut]):
    pass


class FirePage(Page[FireOut]):
    pass


class ScheduleEdits(RequestBody):
    """Null resets a field. A new cron or timezone counts from the next fire (DEC-010)."""

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
    catch_up: CatchUpChoice | None = None
    catch_up_max: CatchUpMax | None = None
    overlap: OverlapChoice | None = None
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


def _count_param(maximum: int) -> tuple[Any, Any]:
    schema = {**integer_schema(history.MIN_COUNT, maximum), "default": history.DEFAULT_COUNT}
    return validated_by(integer_between(history.MIN_COUNT, maximum), schema)


class Count(QueryParams):  # a component of the OpenAPI document has this name
    count: Annotated[int, *_count_param(history.MAX_COUNT)] = history.DEFAULT_COUNT


class CronQuestion(QueryParams):
    cron: Annotated[str, *validated_by(validation.parse_cron, CRON)]
    timezone: Annotated[str, *validated_by(validation.parse_timezone, {**ZONE, "default": "UTC"})] = "UTC"
    count: Annotated[int, *_count_param(history.MAX_UNSAVED_COUNT)] = history.DEFAULT_COUNT
