"""Endpoints of addons and their remote workers: submit intents, start offered jobs, renew leases, report results.

The scope `work` is for tokens: no session has it.
"""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any
from uuid import UUID

from django.http import HttpResponse
from ninja import Router
from pydantic import Field, WithJsonSchema

from jobs.api import field_schemas as f
from jobs.api.auth import ApiRequest, Principal
from jobs.api.idempotency import WITH_IDEMPOTENCY_KEY, submit_job
from jobs.api.job_lists import JobFilters, build_scans, read_newest
from jobs.api.job_schemas import ReasonBody, SubmissionIn
from jobs.api.operations import action, lookup, operation, submission
from jobs.api.pagination import Paged, limit_param, paginate_ids
from jobs.api.request_params import (
    JsonBody,
    OptionalJsonBody,
    QueryParams,
    RequestBody,
    StrictQuery,
    body_config,
    one_of,
    validated_by,
)
from jobs.api.responses import etag_response, json_response
from jobs.api.schemas import Id, JsonObject, Out, Page, Time, Truncated, enum_schema
from jobs.conf import conf
from jobs.errors import NotFound
from jobs.models import Job
from jobs.models.payload import PARAMS, read_by_id
from jobs.payload_visibility import get_public_reason
from jobs.policies.admission import Denied
from jobs.redaction import redact
from jobs.serializers import mark_truncated, serialize_columns
from jobs.services import jobs as job_services
from jobs.services import remote
from jobs.services.remote import REMOTE_STATES, RemoteStart
from jobs.states import Status, StopMode
from jobs.time_text import format_time
from jobs.validation import fields

router = Router(tags=["remote workers"])
work_operation = partial(operation, scope="work")
QUEUE, LEASE = "/system/scheduler/queue", "/system/scheduler/lease"
INTENT_COLUMNS = (
    *("addon_id", "job_type", "cost_units", "constraints", "expected_duration_sec", "time_sensitive"),
    *("max_runtime_sec", "tags", "tenant", "target", "deadline_at", "reserved_until"),
)
START_COLUMNS = (
    *("lease_expires_at", "checkpoint", "attempt", "fence", "max_runtime_sec", "token_limit", "tokens_used"),
    "group_id",
)
PRIORITY_NAMES = {number: name for name, number in fields.PRIORITIES.items()}
DEFAULT_OFFERS = 10
ADDON_ID = {**f.NAME, "description": "Left out: jobs of every addon that the token may work for."}
STATE_NAMES = list(dict.fromkeys(REMOTE_STATES.values()))
LOG_LINE = {
    "type": "object",
    "required": ["message"],
    "properties": {
        "level": {"type": "string", "maxLength": remote.LEVEL_LENGTH, "default": "INFO"},
        "message": {"type": "string"},
        "at": f.MOMENT,
    },
    "additionalProperties": False,
}
State = Annotated[str, WithJsonSchema(enum_schema(STATE_NAMES))]
Text = Annotated[Any, WithJsonSchema({"type": "string"})]
ExitCode = Annotated[Any, WithJsonSchema({"type": "integer", "minimum": -remote.INT32, "maximum": remote.INT32 - 1})]
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
    earliest_start_at: f.TimeOrDelay | None = None
    tenant: f.Tenant | None = None


class StartIn(RequestBody):
    """One slot has one job at a time; the same call again gets the same lease."""

    model_config = body_config("worker_id", worker_id="indexer-1", slot=0, pid=4711, host="box-3")

    worker_id: f.Name | None = None
    slot: Annotated[Any, WithJsonSchema({"type": "integer", "minimum": 0, "maximum": remote.SLOT_LIMIT - 1})] | None = (
        None
    )
    pid: Annotated[Any, WithJsonSchema({"type": "integer", "minimum": 1, "maximum": remote.PID_LIMIT})] | None = None
    host: f.Name | None = None


class BeatIn(RequestBody):
    model_config = body_config(progress=0.5, message="half")

    progress: Fraction | None = None
    message: Text | None = None
    tokens_used: f.Tokens | None = Field(default=None, description="In total, not since the last heartbeat.")
    checkpoint: Annotated[Any, WithJsonSchema({})] = Field(
        default=None, description="State from which a later start continues; it is returned unchanged."
    )
    logs: Annotated[Any, WithJsonSchema({"type": "array", "items": LOG_LINE, "maxItems": remote.LINE_LIMIT})] | None = (
        None
    )


class CompleteIn(RequestBody):
    """`CANCELED` and `PAUSED` confirm a stop request; `error` is the reason for `FAILED`, `SKIPPED` or `SNOOZED`."""

    model_config = body_config(
        "lease_id", "state", lease_id="0192f0c1-2b3a-7c4d-8e5f-60718293a4b5", state="DONE", artifacts={"result": 42}
    )

    lease_id: f.JobId | None = None
    state: Annotated[Any, WithJsonSchema(enum_schema(remote.FINAL_STATES))] | None = None
    exit_code: ExitCode | None = None
    error: Text | None = None
    delay_sec: f.Delay | None = Field(
        default=None,
        description="For `SNOOZED`, when the job starts again: the same attempt. For `FAILED`, the delay of its retry, "
        "if it has one.",
    )
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
    """A job as addons see it: with its retries, it is one intent. `lease_id` is valid only with the API token that
    started the job."""

    job_id: Id
    current_job_id: Id = Field(description="The latest attempt: `job_id`, or the last of its retries.")
    addon_id: str
    job_type: str
    cost_units: int
    priority: int | str = Field(description="By its name, if it has one.")
    constraints: JsonObject
    expected_duration_sec: float | None
    payload: JsonObject | None = Field(description="Secrets masked, except for the worker that may run it.")
    time_sensitive: bool
    deadline_at: Time | None
    max_runtime_sec: float | None
    tags: list[str]
    created_at: Time
    state: State
    attempts: int = Field(description="Runs that started, those of earlier attempts included.")
    next_earliest_start_at: Time | None
    lease_id: Id | None
    pid: int | None
    tenant: str
    target: str | None
    reserved_until: Time | None = Field(
        description="DISPATCHING: when the offer expires unless a worker starts the job."
    )
    reason: str
    truncated: Truncated = False


class IntentPage(Page[IntentOut]):
    pass


class SubmittedOut(Out):
    job_id: Id
    state: State


NEW_OR_EXISTING = {200: SubmittedOut, 201: SubmittedOut}


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
    group_id: Id | None = Field(description="Null for a job in no group.")
    context: JsonObject = Field(description="What JOB_CONTEXT returned at its submission; empty if there is none.")


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
    addon_id: Annotated[str | None, *validated_by(fields.parse_identifier, ADDON_ID)] = None
    limit: Annotated[int, *limit_param(DEFAULT_OFFERS)] = DEFAULT_OFFERS


class Said(RequestBody):
    """An empty object."""  # the schema's name in the OpenAPI document is stable


@router.post(
    f"{QUEUE}/jobs/submit",
    **submission("queue_submit", NEW_OR_EXISTING, "Submit a job intent", **WITH_IDEMPOTENCY_KEY),
)
def queue_submit(request: ApiRequest, body: Annotated[IntentIn, JsonBody()]) -> HttpResponse:
    """It waits in the same queue as every other job, in the same order and under the same limits, until a remote
    worker of its addon starts it (or a local one, if its type is registered here as local)."""
    return submit_job(
        request,
        body.given_fields(),
        _serialize_submitted,
        service=remote.submit,
    )


@router.get(f"{QUEUE}/jobs", **operation("queue_list", IntentPage, "List job intents"))
def queue_list(request: ApiRequest, query: Annotated[IntentFilters, StrictQuery()]) -> HttpResponse:
    """Newest first, of each intent the latest attempt. A page may be shorter than `limit`, even empty, while
    `next_cursor` is there."""
    principal = request.auth
    statuses = [str(status) for status, state in REMOTE_STATES.items() if state == query.state]
    filters = JobFilters.model_construct(addon_id=query.addon_id)
    read_ids = partial(read_newest, build_scans(principal, filters, statuses))
    rows = principal.visible_jobs().latest_attempts().defer("checkpoint")
    serialize = partial(_serialize_intents, principal=principal)
    return json_response(paginate_ids(principal, "queue_list", query, read_ids, rows, PARAMS, serialize))


@router.get(f"{QUEUE}/jobs/{{job_id}}", **lookup("queue_get", IntentOut, "Get a job intent"))
def queue_get(request: ApiRequest, job_id: Id) -> HttpResponse:
    """By the id of any of its attempts. State, lease and reason are those of the latest attempt, `current_job_id`: an
    intent that failed and waits for its retry is QUEUED."""
    return etag_response(request, _read_intent(fields.parse_id(job_id), request.auth))


@router.post(
    f"{QUEUE}/jobs/{{job_id}}/cancel",
    **action("queue_cancel", IntentOut, "cancel_job", "Cancel a job", scope="submit"),
)
def queue_cancel(request: ApiRequest, job_id: Id, body: ReasonBody) -> HttpResponse:
    """By the id of any attempt: the latest one is cancelled. If it waits, it is CANCELED at once; if it runs, it gets a
    stop request and is CANCELED when its worker stops. A token without the scope `operate` cancels only what it
    submitted."""
    pk, principal = request.auth.require_job_id(job_id), request.auth
    principal.require_own_job(pk)
    remote.cancel(pk, reason=body.reason or "", actor=principal.actor)
    return json_response(_read_intent(pk, principal))


@router.get(
    f"{QUEUE}/dispatchable", **work_operation("queue_dispatchable", IntentPage, "List jobs that an addon may start")
)
def queue_dispatchable(request: ApiRequest, query: Annotated[Poll, StrictQuery()]) -> HttpResponse:
    """Reserves up to `limit` jobs of the addon, within targets, limits and admission; after them it lists earlier
    offers to the addon that no worker has started yet. Offers expire: request as many as you can start, and start them
    in this order. An offer may be without its payload (`truncated`): the response to the start has all of it."""
    principal, addons = request.auth, request.auth.require_token().addons
    if query.addon_id:
        principal.require_addon(query.addon_id)
        addons = [query.addon_id]
    ids = remote.list_dispatchable(addons, tenant=principal.tenant, limit=query.limit)
    rows = read_by_id(Job.objects.defer("checkpoint"), ids, PARAMS)
    return json_response({"items": _serialize_intents(rows, principal, for_worker=True), "next_cursor": None})


@router.post(f"{QUEUE}/kick", **action("queue_kick", KickOut, "change_job", "Make offers now", problems=[]))
def queue_kick(request: ApiRequest, body: Annotated[Said, OptionalJsonBody()]) -> HttpResponse:
    """For every addon that polled recently, without waiting for its next poll."""
    return json_response({"dispatched": remote.make_offers(tenant=request.auth.tenant)})


@router.post(
    f"{QUEUE}/jobs/{{job_id}}/start",
    **work_operation("queue_start", StartOut, "Start an offered job", body=True, problems=[404, 409]),
)
def queue_start(request: ApiRequest, job_id: Id, body: Annotated[StartIn, JsonBody()]) -> HttpResponse:
    """Returns the lease and everything that is needed to run the job. Repeated with the same token, worker and slot it
    returns the same; a slot with another job is a 409 `slot_busy`."""
    pk, token = request.auth.require_job_id(job_id), request.auth.require_token()
    request.auth.require_addon(job_services.get(pk).addon_id)
    row = remote.start(pk, token.pk, body.given_fields(), token_name=token.name)
    lease = {"lease_id": str(row.lease_token), "lease_sec": conf.LEASE_SEC, "heartbeat_sec": conf.HEARTBEAT_SEC}
    columns = serialize_columns(row, START_COLUMNS)
    return json_response(
        {"job_id": str(row.pk), **lease, "payload": row.params, "context": row.context or {}, **columns}
    )


@router.post(
    f"{QUEUE}/jobs/{{job_id}}/complete",
    **work_operation("queue_complete", IntentOut, "Report the result of a job", body=True, problems=[404, 409]),
)
def queue_complete(request: ApiRequest, job_id: Id, body: Annotated[CompleteIn, JsonBody()]) -> HttpResponse:
    """Returns this attempt, also if it failed and has a retry. Repeated, it returns the same. An expired lease is a
    409, another token's lease a 404; neither changes anything. CANCELED and PAUSED need a stop request; a job that
    exceeds its token limit is FAILED whatever is reported."""
    pk = request.auth.require_job_id(job_id)
    remote.complete(pk, request.auth.require_token().pk, body.given_fields())
    document = _serialize_intents([job_services.get(pk)], request.auth, for_worker=True)[0]
    return json_response({**document, "current_job_id": str(job_services.find_latest_attempt(pk))})


@router.post(
    f"{LEASE}/request",
    **work_operation("lease_request", AdmissionOut, "Request admission of work outside of the queue", body=True),
)
def lease_request(request: ApiRequest, body: Annotated[AdmissionIn, JsonBody()]) -> HttpResponse:
    """For work without a job: it counts in admission, and in no other limit, as long as heartbeats renew its lease. A
    denial has the time of the next request, and stays the same until then."""
    values = body.given_fields()
    tenant = request.auth.resolve_tenant(values.pop("tenant", None))
    request.auth.require_addon(values.get("addon_id") or "")
    decision = remote.request_admission(values, request.auth.require_token().pk, tenant=tenant)
    if isinstance(decision, Denied):
        return json_response(
            {"approved": False, "reason": decision.reason, "retry_after_sec": decision.retry_after_sec}
        )
    lease = {"lease_id": str(decision.lease_id), "lease_expires_at": format_time(decision.expires_at)}
    return json_response({"approved": True, **lease})


@router.post(
    f"{LEASE}/{{lease_id}}/heartbeat",
    **work_operation("lease_heartbeat", BeatOut, "Renew a lease", body="optional", problems=[404, 409]),
)
def lease_heartbeat(request: ApiRequest, lease_id: Id, body: Annotated[BeatIn, OptionalJsonBody()]) -> HttpResponse:
    """Also reports progress, and returns stop requests. 409: the lease has expired, stop at once."""
    lease = remote.heartbeat(lease_id, request.auth.require_token().pk, body.given_fields())
    stop_request = {"cancel_requested": lease.cancel_requested, "cancel_mode": lease.cancel_mode}
    return json_response({"lease_expires_at": format_time(lease.expires_at), **stop_request})


@router.post(
    f"{LEASE}/{{lease_id}}/release",
    **work_operation("lease_release", ReleaseOut, "Release a lease", body="optional", problems=[404, 409]),
)
def lease_release(request: ApiRequest, lease_id: Id, body: Annotated[ReleaseIn, OptionalJsonBody()]) -> HttpResponse:
    """Releases an admission lease; repeating it changes nothing. A job's lease ends with `complete` (409
    `report_with_complete`), unless `hand_back` returns the job to the queue: its run stays open and its checkpoint is
    kept."""
    remote.release(lease_id, request.auth.require_token().pk, body.given_fields())
    return json_response({"released": True})


def _serialize_submitted(job: Job) -> dict[str, Any]:
    """Return a new intent, or the one that an earlier submission with the same key created, in its current state."""
    latest = job_services.get(job_services.find_latest_attempt(job.pk)) if job.is_terminal else job
    return {"job_id": str(job.pk), "state": REMOTE_STATES[Status(latest.status)]}


def _read_intent(job_id: UUID, principal: Principal) -> dict[str, Any]:
    """Return the intent that a job belongs to, in the state of its latest attempt."""
    row = principal.visible_jobs().filter(pk=job_services.find_latest_attempt(job_id)).first()
    if row is None:
        raise NotFound(f"There is no job {job_id}.")
    return {**_serialize_intents([row], principal)[0], "job_id": str(job_id)}


def _serialize_intents(rows: list[Job], principal: Principal, *, for_worker: bool = False) -> list[dict[str, Any]]:
    """Return latest attempts as intents, their secrets masked except for the worker that is to run them."""
    job_starts, chains = remote.find_starts(rows), job_services.read_chain_histories([row.pk for row in rows])
    documents = []
    for row in rows:
        created_at, runs = chains.get(row.pk, (row.created_at, 0))  # it may have been deleted meanwhile
        chain = {"attempts": runs, "created_at": format_time(created_at), "current_job_id": str(row.pk)}
        documents.append({**_serialize_attempt(row, job_starts.get(row.pk), principal, for_worker), **chain})
    return documents


def _serialize_attempt(row: Job, start: RemoteStart | None, principal: Principal, for_worker: bool) -> dict[str, Any]:
    may_view = principal.can_view_payload or for_worker
    payload = row.params if for_worker else redact(row.params) if may_view else None
    return {
        "job_id": str(row.pk),
        **serialize_columns(row, INTENT_COLUMNS),
        "state": REMOTE_STATES[Status(row.status)],
        "priority": PRIORITY_NAMES.get(row.priority, row.priority),
        "next_earliest_start_at": format_time(row.recheck_at or row.not_before),
        "lease_id": None if start is None else str(start.lease_id),
        "pid": None if start is None else start.pid,
        "reason": row.status_reason if principal.can_view_payload else get_public_reason(row),
        "payload": payload,
        **(mark_truncated(row) if may_view else {}),
    }
