"""Schemas of the requests and responses of remote workers."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from jobs.api import field_schemas as f
from jobs.api.job_schemas import SubmissionIn
from jobs.api.pagination import Paged, limit_param
from jobs.api.request_params import QueryParams, RequestBody, body_config, one_of, validated_by
from jobs.api.schemas import Id, JsonObject, Out, Page, Time, enum_schema
from jobs.services.remote import FINAL_STATES, INT32, LEVEL_LENGTH, LINE_LIMIT, PID_LIMIT, REMOTE_STATES, SLOT_LIMIT
from jobs.states import StopMode
from jobs.validation import fields

DEFAULT_OFFERS = 10
ADDON_ID = {**f.NAME, "description": "Left out: jobs without an addon."}
STATE_NAMES = list(dict.fromkeys(REMOTE_STATES.values()))
LOG_LINE = {
    "type": "object",
    "required": ["message"],
    "properties": {
        "level": {"type": "string", "maxLength": LEVEL_LENGTH, "default": "INFO"},
        "message": {"type": "string"},
        "at": f.MOMENT,
    },
    "additionalProperties": False,
}
State = Annotated[str, WithJsonSchema(enum_schema(STATE_NAMES))]
Text = Annotated[Any, WithJsonSchema({"type": "string"})]
ExitCode = Annotated[Any, WithJsonSchema({"type": "integer", "minimum": -INT32, "maximum": INT32 - 1})]
Fraction = Annotated[Any, WithJsonSchema({"type": "number", "minimum": 0, "maximum": 1})]


class IntentIn(SubmissionIn):
    """A job intent. A `job_type` that is not registered here is for remote workers; its `payload` is not checked."""

    model_config = body_config(
        *("addon_id", "job_type"),
        addon_id="visuals",
        job_type="indexing",
        payload={"path": "/some/dir"},
        cost_units=30,
        priority="NORMAL",
        constraints={"cpu_heavy": True},
        expected_duration_sec=120,
    )

    job_type: f.Name | None = None
    payload: f.Params | None = None
    earliest_start_at: f.Moment | None = None
    tenant: f.Tenant | None = None


class StartIn(RequestBody):
    """One slot has one job at a time; the same call again gets the same lease."""

    model_config = body_config("worker_id", worker_id="indexer-1", slot=0, pid=4711, host="box-3")

    worker_id: f.Name | None = None
    slot: Annotated[Any, WithJsonSchema({"type": "integer", "minimum": 0, "maximum": SLOT_LIMIT - 1})] | None = None
    pid: Annotated[Any, WithJsonSchema({"type": "integer", "minimum": 1, "maximum": PID_LIMIT})] | None = None
    host: f.Name | None = None


class BeatIn(RequestBody):
    model_config = body_config(progress=0.5, message="half")

    progress: Fraction | None = None
    message: Text | None = None
    tokens_used: f.Tokens | None = Field(default=None, description="In total, not since the last heartbeat.")
    checkpoint: Annotated[Any, WithJsonSchema({})] | None = Field(
        default=None, description="State from which a later start continues; it is returned unchanged."
    )
    logs: Annotated[Any, WithJsonSchema({"type": "array", "items": LOG_LINE, "maxItems": LINE_LIMIT})] | None = None


class CompleteIn(RequestBody):
    """`CANCELED` and `PAUSED` confirm a stop request; `error` is the reason for `FAILED` or `SKIPPED`."""

    model_config = body_config("lease_id", "state", lease_id="…", state="DONE", artifacts={"result": 42})

    lease_id: f.JobId | None = None
    state: Annotated[Any, WithJsonSchema(enum_schema(FINAL_STATES))] | None = None
    exit_code: ExitCode | None = None
    error: Text | None = None
    artifacts: f.Params | None = None


class ReleaseIn(RequestBody):
    """For a job's lease: `hand_back` returns the job to the queue, with its checkpoint."""

    model_config = body_config(hand_back=True)

    hand_back: f.Flag | None = None


class AdmissionIn(RequestBody):
    """Work that an addon does itself, outside of the queue."""

    model_config = body_config(
        *("addon_id", "job_type"),
        addon_id="visuals",
        job_type="preview",
        cost_units=30,
        constraints={"cpu_heavy": True},
    )

    addon_id: f.Name | None = None
    job_type: f.Name | None = None
    cost_units: f.CostUnits | None = None
    priority: f.Priority | None = None
    constraints: f.Constraints | None = None
    expected_duration_sec: f.Duration | None = None
    tenant: f.Tenant | None = None


class IntentOut(Out):
    """A job as addons see it. `lease_id` is valid only with the API token that started the job."""

    job_id: Id
    addon_id: str
    job_type: str
    cost_units: int
    priority: int
    constraints: JsonObject
    expected_duration_sec: float | None
    payload: JsonObject | None = Field(description="Secrets masked, except for the worker that may run it.")
    time_sensitive: bool
    deadline_at: Time | None
    max_runtime_sec: float | None
    tags: list[str]
    created_at: Time
    state: State
    attempts: int
    next_earliest_start_at: Time | None
    lease_id: Id | None
    pid: int | None
    tenant: str
    target: str | None
    reserved_until: Time | None = Field(
        description="DISPATCHING: when the offer expires unless a worker starts the job."
    )
    reason: str


class IntentPage(Page[IntentOut]):
    pass


class SubmittedOut(Out):
    job_id: Id
    state: State


class KickOut(Out):
    dispatched: int


class StartOut(Out):
    job_id: Id
    lease_id: Id
    lease_expires_at: Time
    lease_sec: float = Field(
        description="Duration of the lease from each heartbeat on, by a monotonic clock of the worker."
    )
    heartbeat_sec: float
    payload: JsonObject
    checkpoint: Any
    attempt: int
    fence: int = Field(
        description="Fencing token: grows with every start within a retry chain, for external systems to compare."
    )
    max_runtime_sec: float | None
    token_limit: int | None
    tokens_used: int


class BeatOut(Out):
    lease_expires_at: Time
    cancel_requested: bool
    cancel_mode: Annotated[str, WithJsonSchema(enum_schema(["", *StopMode]))]


class AdmissionOut(Out):
    """Approved: `lease_id` and `lease_expires_at`. Denied: `reason` and `retry_after_sec`."""

    approved: bool
    lease_id: Id | None = None
    lease_expires_at: Time | None = None
    reason: str | None = None
    retry_after_sec: float | None = None


class ReleaseOut(Out):
    released: bool


class IntentFilters(Paged):
    state: Annotated[str | None, *validated_by(one_of(*STATE_NAMES), enum_schema(STATE_NAMES))] = None
    addon_id: Annotated[str | None, *validated_by(fields.parse_identifier, f.NAME)] = None


class Poll(QueryParams):
    addon_id: Annotated[str, *validated_by(fields.parse_identifier, ADDON_ID)] = ""
    limit: Annotated[int, *limit_param(DEFAULT_OFFERS)] = DEFAULT_OFFERS


class Said(RequestBody):
    """An empty object."""  # the schema's name in the OpenAPI document is stable
