"""Bodies that remote workers send, and documents that they get."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, WithJsonSchema

from jobs.api import field_schemas as f
from jobs.api.job_schemas import SubmissionIn
from jobs.api.pagination import Paged, page_limit
from jobs.api.request_params import Question, Said, example, gated, one_of
from jobs.api.schemas import Id, JsonObject, Out, Page, Time, words
from jobs.services.remote import ENDS, INT32, LEVEL_LENGTH, MOST_LINES, MOST_PID, MOST_SLOTS, STATES
from jobs.states import StopMode
from jobs.validation import fields

DEFAULT = 10
ADDON = {**f.NAME, "description": "Left out: jobs that belong to no addon."}
STATE_WORDS = list(dict.fromkeys(STATES.values()))
LINE = {
    "type": "object",
    "required": ["message"],
    "properties": {
        "level": {"type": "string", "maxLength": LEVEL_LENGTH, "default": "INFO"},
        "message": {"type": "string"},
        "at": f.MOMENT,
    },
    "additionalProperties": False,
}
State = Annotated[str, WithJsonSchema(words(STATE_WORDS))]
Text = Annotated[Any, WithJsonSchema({"type": "string"})]
ExitCode = Annotated[Any, WithJsonSchema({"type": "integer", "minimum": -INT32, "maximum": INT32 - 1})]
Share = Annotated[Any, WithJsonSchema({"type": "number", "minimum": 0, "maximum": 1})]


class IntentIn(SubmissionIn):
    """A job intent. A `job_type` that is not registered here is for remote workers, and its `payload` opaque."""

    model_config = example(
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


class StartIn(Said):
    """One slot has one job at a time; the same call again gets the same lease."""

    model_config = example("worker_id", worker_id="indexer-1", slot=0, pid=4711, host="box-3")

    worker_id: f.Name | None = None
    slot: Annotated[Any, WithJsonSchema({"type": "integer", "minimum": 0, "maximum": MOST_SLOTS - 1})] | None = None
    pid: Annotated[Any, WithJsonSchema({"type": "integer", "minimum": 1, "maximum": MOST_PID})] | None = None
    host: f.Name | None = None


class BeatIn(Said):
    model_config = example(progress=0.5, message="half")

    progress: Share | None = None
    message: Text | None = None
    tokens_used: f.Tokens | None = Field(default=None, description="In all, not since the last beat.")
    checkpoint: Annotated[Any, WithJsonSchema({})] | None = Field(
        default=None, description="What a later start needs to go on from here; it gets it back as it is."
    )
    logs: Annotated[Any, WithJsonSchema({"type": "array", "items": LINE, "maxItems": MOST_LINES})] | None = None


class CompleteIn(Said):
    """`CANCELED` and `PAUSED` answer a stop request; `error` says why it `FAILED` or was `SKIPPED`."""

    model_config = example("lease_id", "state", lease_id="…", state="DONE", artifacts={"result": 42})

    lease_id: f.JobId | None = None
    state: Annotated[Any, WithJsonSchema(words(ENDS))] | None = None
    exit_code: ExitCode | None = None
    error: Text | None = None
    artifacts: f.Params | None = None


class ReleaseIn(Said):
    """Of a job's lease: `hand_back` puts the job back into the queue, with its checkpoint."""

    model_config = example(hand_back=True)

    hand_back: f.Flag | None = None


class AdmissionIn(Said):
    """Work that an addon would do itself, outside of the queue."""

    model_config = example(
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
    """A job in the words of addons. `lease_id` is of use only with the API token that started it."""

    job_id: Id
    addon_id: str
    job_type: str
    cost_units: int
    priority: int
    constraints: JsonObject
    expected_duration_sec: float | None
    payload: JsonObject | None = Field(description="Masked, except for those who may work on it.")
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
    reserved_until: Time | None = Field(description="DISPATCHING: when it is taken back unless somebody starts it.")
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
    lease_sec: float = Field(description="How long the lease lasts from each heartbeat on, by your own steady clock.")
    heartbeat_sec: float
    payload: JsonObject
    checkpoint: Any
    attempt: int
    fence: int = Field(description="Grows with every start along a retry chain: for outside systems to compare.")
    max_runtime_sec: float | None
    token_limit: int | None
    tokens_used: int


class BeatOut(Out):
    lease_expires_at: Time
    cancel_requested: bool
    cancel_mode: Annotated[str, WithJsonSchema(words(["", *StopMode]))]


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
    state: Annotated[str | None, *gated(one_of(*STATE_WORDS), words(STATE_WORDS))] = None
    addon_id: Annotated[str | None, *gated(fields.parse_identifier, f.NAME)] = None


class Poll(Question):
    addon_id: Annotated[str, *gated(fields.parse_identifier, ADDON)] = ""
    limit: Annotated[int, *page_limit(DEFAULT)] = DEFAULT
