"""Schemas of the requests and responses of jobs.

`jobs.serializers` builds the documents; these schemas describe them, and tests compare the two.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field, SkipValidation, WithJsonSchema

from jobs.actors import ActorKind
from jobs.api import field_schemas as f
from jobs.api.request_params import OptionalJsonBody, QueryParams, RequestBody, body_config, one_of, validated_by
from jobs.api.schemas import Id, JsonObject, Out, Page, Time, Truncated, enum_schema
from jobs.states import RUN_STATUSES, EventKind, Status, StopMode, UniqueUntil

REASON_CODES = (
    *("not_before", "backoff", "held", "predecessor", "paused", "target_busy", "target_blocked", "target_paused"),
    *("snoozed", "limit", "rate_limit", "scope_paused", "admission_denied", "reservation", "dispatching", "no_worker"),
    *("no_slot", "queue"),
)

SHOWN_STATUSES = [str(status) for status in Status if status != Status.DISPATCHING]
EXAMPLE: dict[str, Any] = {
    "job_type": "story.generate",
    "params": {"topic": "sea"},
    "target": "book-1",
    "priority": "HIGH",
}


class LeaseOut(Out):
    """The worker that runs the job. A slot runs one job at a time (INV-003)."""

    owner: str
    expires_at: Time
    heartbeat_at: Time | None


class JobRunOut(Out):
    """The single execution of a job (DEC-001). A finished run never changes (INV-002)."""

    id: Id
    job_id: Id
    status: Annotated[str, WithJsonSchema(enum_schema(RUN_STATUSES))]
    started_at: Time
    finished_at: Time | None
    exit_code: int | None
    error: str = Field(
        description="Of a traceback only the exception's class and place without the permission to view payloads."
    )
    artifacts: JsonObject | None = Field(description="Null without the permission to view payloads.")
    worker: str
    truncated: Truncated = False


class WebhooksOut(Out):
    """Deliveries of this job's events to endpoints."""

    pending: int
    delivered: int
    failed: int


class JobOut(Out):
    """An intent to run one handler once. `params`, `job_type`, `tenant` and `target` are frozen once it was
    dispatched (INV-001); a started job has exactly one run (DEC-001)."""

    id: Id
    job_type: str
    template: str | None = Field(description="The name of its template.")
    status: Annotated[str, WithJsonSchema(enum_schema(SHOWN_STATUSES))] = Field(
        description="The same name as in its run, in events and in webhooks (DEC-006)."
    )
    status_reason: str = Field(
        description="Without the text of a handler, such as an exception's, if payloads must not be viewed."
    )
    params: JsonObject | None = Field(description="Secrets masked. Null without the permission to view payloads.")
    tenant: str
    target: str | None
    addon_id: str
    resource: str
    tags: list[str]
    priority: int = Field(description="0 to 100. Dispatch order is priority, then position (INV-004).")
    position: Annotated[str, WithJsonSchema({"type": "string", "pattern": "^-?[0-9]+$"})] = Field(
        description="The position within its priority, lowest first (DEC-005). A 64-bit number, as text because "
        "JavaScript rounds numbers beyond 2^53."
    )
    cost_units: int
    constraints: JsonObject
    not_before: Time | None
    deadline_at: Time | None
    time_sensitive: bool
    expected_duration_sec: float | None
    max_runtime_sec: float | None
    hold: bool
    token_limit: int | None
    tokens_used: int
    max_retries: int = Field(description="Number of automatic retries after failures (DEC-007).")
    retry_policy: JsonObject = Field(description="Delays of its retries; the settings apply to those that are absent.")
    idempotency_key: str | None
    unique_key: str | None
    unique_until: Annotated[str | None, WithJsonSchema({"enum": [*UniqueUntil, None]})]
    created_at: Time
    dispatched_at: Time | None
    resolved_at: Time | None
    cancel_requested: bool
    cancel_mode: Annotated[str, WithJsonSchema(enum_schema(["", *StopMode]))]
    progress: float | None = Field(ge=0, le=1)
    progress_message: str = Field(description="Empty without the permission to view payloads.")
    attempt: int
    snooze_count: int = Field(description="How often its handler put it back for a while.")
    retry_of: Id | None
    retried_by: Id | None
    permanently_failed: bool
    group_id: Id | None
    group_index: int | None
    schedule_id: Id | None = Field(
        description="Null once the schedule is deleted; the SUBMITTED event keeps its id and name."
    )
    fire_time: Time | None = Field(description="The due time of the schedule that submitted it.")
    blocks_target: bool
    lease: LeaseOut | None
    run: JobRunOut | None
    webhooks: WebhooksOut
    truncated: Truncated = False


NEW_OR_EXISTING = {200: JobOut, 201: JobOut}  # of operations that create a job, unless it exists already


class ActorOut(Out):
    kind: Annotated[str, WithJsonSchema(enum_schema(ActorKind))]
    name: str


class EventOut(Out):
    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    id: int
    at: Time
    kind: Annotated[str, WithJsonSchema(enum_schema(EventKind))]
    from_: Annotated[str, WithJsonSchema(enum_schema(["", *Status]))] = Field(alias="from")
    to: Annotated[str, WithJsonSchema(enum_schema(["", *Status]))]
    reason: str
    actor: ActorOut
    data: Any
    truncated: Truncated = False


class LogOut(Out):
    id: int
    at: Time
    level: str
    message: str


class ReasonOut(Out):
    code: Annotated[str, WithJsonSchema(enum_schema(REASON_CODES))]
    message: str
    blocking_job_id: Id | None = None
    since: Time | None = None
    until: Time | None = None
    by: str | None = None


class ExplanationOut(Out):
    summary: str
    reasons: list[ReasonOut]
    ahead: int | None = Field(description="Number of jobs ahead of it, counted up to 10000; null if it is not queued.")
    predicted_start_at: Time | None = Field(
        description="Null if it cannot be estimated, or if an operator has to act first."
    )


class BulkOut(Out):
    count: int
    ids: list[Id]


class JobPage(Page[JobOut]):
    pass


class JobRunPage(Page[JobRunOut]):
    pass


class EventPage(Page[EventOut]):
    pass


class LogPage(Page[LogOut]):
    pass


class Follow(QueryParams):
    follow: Annotated[str | None, *validated_by(one_of("latest"), enum_schema(["latest"]))] = None


class SubmissionIn(RequestBody):
    """The fields of all submissions."""

    target: f.Target | None = None
    addon_id: f.Name | None = None
    priority: f.Priority | None = None
    deadline_at: f.TimeOrDelay | None = None
    time_sensitive: f.Flag | None = None
    expected_duration_sec: f.Duration | None = None
    max_runtime_sec: f.Duration | None = None
    cost_units: f.CostUnits | None = None
    constraints: f.Constraints | None = None
    resource: f.Name | None = None
    token_limit: f.Tokens | None = None
    max_retries: f.Retries | None = None
    retry_policy: f.RetryPolicy | None = None
    tags: f.Tags | None = None
    idempotency_key: f.Key | None = None
    unique_key: f.UniqueKey | None = Field(
        default=None,
        description="While a job with this key waits (or lives, see `unique_until`), no second one is made: the "
        "response is 200 with that job. Not for members of a group.",
    )
    unique_until: f.UniqueUntil | None = Field(default=None, description="Default `start`.")
    on_conflict: f.OnConflict | None = Field(
        default=None,
        description="`replace`: the job that has the key gets these params and this `not_before`, unless it was "
        "dispatched. Default `return`.",
    )


class RunIn(SubmissionIn):
    """Overrides of the template for this job; params are merged key by key."""

    model_config = body_config(params={"pages": 5})

    params: f.Params | None = None
    position: f.Position | None = None
    not_before: f.TimeOrDelay | None = None
    hold: f.Flag | None = None


class JobIn(RunIn):
    """Exactly one of `job_type` and `template` (a template's name). Null means the same as leaving a field out."""

    model_config = body_config(**EXAMPLE)

    job_type: f.Name | None = None
    template: f.Name | None = None
    tenant: f.Tenant | None = None


class JobsIn(RequestBody):
    """Many jobs, all or none."""

    model_config = body_config(jobs=[EXAMPLE])

    jobs: Annotated[list[JobIn], SkipValidation]  # the type is for the document; the service validates each entry


class JobEdits(RequestBody):
    """Null clears. Once the job was dispatched, `params` and `target` cannot be changed (INV-001)."""

    model_config = body_config(priority="URGENT", not_before=None)

    priority: f.Priority | None = None
    not_before: f.TimeOrDelay | None = None
    deadline_at: f.TimeOrDelay | None = None
    time_sensitive: f.Flag | None = None
    expected_duration_sec: f.Duration | None = None
    max_runtime_sec: f.Duration | None = None
    tags: f.Tags | None = None
    params: f.Params = None
    target: f.Target | None = None


class VerbIn(RequestBody):
    model_config = body_config(reason="not needed any more")

    reason: f.Reason = None


ReasonBody = Annotated[VerbIn, OptionalJsonBody()]


class RetryIn(VerbIn):
    fresh: f.Flag | None = None


RetryBody = Annotated[RetryIn, OptionalJsonBody()]


class MoveIn(VerbIn):
    """Exactly one of `before`, `after` and `to`."""

    model_config = body_config(to="top")

    before: f.JobId | None = None
    after: f.JobId | None = None
    to: Annotated[Any, WithJsonSchema({"type": "string", "enum": ["top", "bottom"]})] | None = None
