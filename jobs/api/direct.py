"""Endpoints of direct calls: run a handler within the request, without a job; list the live calls, end one."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from django.http import HttpResponse
from ninja import Router
from pydantic import Field, WithJsonSchema

from jobs import serializers
from jobs.api import field_schemas as f
from jobs.api.auth import ApiRequest, Principal
from jobs.api.job_schemas import ReasonBody
from jobs.api.operations import action, operation
from jobs.api.pagination import Order, Paged, paginate
from jobs.api.request_params import OptionalJsonBody, RequestBody, StrictQuery, body_config
from jobs.api.responses import json_response
from jobs.api.schemas import Id, Out, Page, Time
from jobs.conf import conf
from jobs.direct import bounded
from jobs.errors import HandlerFailed, NotDirect, UnknownJobType
from jobs.models import Lease
from jobs.payload_visibility import cut_message, hide_in_lease
from jobs.redaction import redact
from jobs.services import direct_calls
from jobs.services.permissions import VIEW_PAYLOAD
from jobs.validation import fields
from jobs.validation.sanitize import sanitize_json

router = Router(tags=["direct"])
NEWEST_FIRST = Order(Lease, ("-id",))


class DirectIn(RequestBody):
    model_config = body_config(params={"topic": "sea"})

    params: f.Params | None = None
    wait_sec: Annotated[Any, WithJsonSchema({"type": "number", "minimum": 0})] | None = Field(
        default=None, description="How long to wait for a slot; at most the limit of the settings."
    )


class DirectOut(Out):
    result: Annotated[Any, WithJsonSchema({})] = Field(
        description="The handler's return value, secrets masked. Null without the permission to view payloads."
    )
    waited_ms: int = Field(description="How long the call waited for its slot.")
    ran_ms: int
    skipped: str | None = Field(default=None, description="Why the handler skipped its work; absent if it did not.")


@router.post(
    "/direct/{job_type}",
    **operation(
        "direct_run",
        DirectOut,
        "Run a handler now, without a job",
        scope="submit",
        body="optional",
        problems=[409, 502, 504],
    ),
)
def direct_run(
    request: ApiRequest, job_type: Annotated[str, WithJsonSchema(f.NAME)], body: Annotated[DirectIn, OptionalJsonBody()]
) -> HttpResponse:
    """Takes the next free slot of the limits that apply to the type, before the queue and in the order of the direct
    calls; running jobs continue (DEC-004). The handler must be registered with `direct=True`, else 422 `not_direct`. No
    slot in time, or too many calls of this token or in this process: 503 `no_slot`. The handler raised: 502
    `handler_failed`; it ran too long: 504 `handler_timed_out`. An operator ended the call: 409 `call_ended`."""
    principal, wait = request.auth, float(conf.DIRECT_WAIT_SEC)
    can_view = principal.has_permission(VIEW_PAYLOAD)  # also without the scope `read`: the result is the response
    if body.wait_sec is not None:
        wait = min(fields.parse_number(body.wait_sec, "wait_sec", minimum=0), wait)
    try:
        outcome = bounded.execute(
            job_type,
            body.params,
            wait=wait,
            tenant=principal.resolve_tenant(None),
            actor=principal.actor,
            api_token=principal.token_id,
        )
    except (UnknownJobType, NotDirect) as error:
        raise error.with_prefix("path") from None
    except HandlerFailed as error:
        if can_view:
            raise
        raise HandlerFailed(cut_message(str(error))) from None
    result = redact(sanitize_json(outcome.result)) if can_view else None
    reason = outcome.skipped if can_view or outcome.skipped is None else ""
    skipped = {} if reason is None else {"skipped": reason}
    return json_response({"result": result, "waited_ms": outcome.waited_ms, "ran_ms": outcome.ran_ms, **skipped})


class DirectCallOut(Out):
    id: Id
    job_type: str
    tenant: str
    resource: str
    owner: str = Field(description="The token, user or program that called.")
    requested_at: Time
    granted_at: Time | None = Field(description="Since when it has its slot; null while it waits for one.")
    heartbeat_at: Time | None
    expires_at: Time = Field(description="When its slot is free if its process stops renewing it.")
    ended_at: Time | None
    outcome: str


@router.get(
    "/direct", **operation("direct_list", Page[DirectCallOut], "List live direct calls", permissions=["view_lease"])
)
def direct_list(request: ApiRequest, query: Annotated[Paged, StrictQuery()]) -> HttpResponse:
    """The direct calls that wait or run, also those of Python code."""
    rows = direct_calls.list_live_calls(request.auth.tenant)
    serialize = partial(_serialize_call, request.auth)
    return json_response(paginate(request.auth, "direct_list", query, rows, NEWEST_FIRST, serialize))


@router.post("/direct/{lease_id}/end", **action("direct_end", DirectCallOut, "end_lease", "End a direct call"))
def direct_end(request: ApiRequest, lease_id: Id, body: ReasonBody) -> HttpResponse:
    """Its slot is free at once. Within 2 s its handler is asked to stop, and its caller gets 409 `call_ended`."""
    principal = request.auth
    lease = direct_calls.end(
        fields.parse_id(lease_id), tenant=principal.tenant, reason=body.reason or "", actor=principal.actor
    )
    return json_response(_serialize_call(principal, lease))


def _serialize_call(principal: Principal, lease: Lease) -> dict[str, Any]:
    if not principal.can_view_payload:
        hide_in_lease(lease)
    return serializers.serialize_direct_call(lease)
