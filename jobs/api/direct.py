"""Direct execution over HTTP: a handler runs within the request, in the next free slot, without a job."""

from __future__ import annotations

from typing import Annotated, Any

from django.http import HttpResponse
from ninja import Router
from pydantic import Field, WithJsonSchema

from jobs import direct
from jobs.api import field_schemas as f
from jobs.api.auth import ApiRequest
from jobs.api.operations import operation
from jobs.api.request_params import OptionalJsonBody, RequestBody, body_config
from jobs.api.responses import json_response
from jobs.api.schemas import Out
from jobs.conf import conf
from jobs.errors import UnknownJobType
from jobs.redaction import redact
from jobs.validation import fields
from jobs.validation.sanitize import sanitize_json

router = Router(tags=["direct"])


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
        "direct_run", DirectOut, "Run a handler now, without a job", scope="submit", body="optional", problems=[502]
    ),
)
def direct_run(
    request: ApiRequest, job_type: Annotated[str, WithJsonSchema(f.NAME)], body: Annotated[DirectIn, OptionalJsonBody()]
) -> HttpResponse:
    """Takes the next free slot of the limits that apply to the type, before the queue and in the order of the direct
    calls; running jobs continue (DEC-004). No slot in time: 503 `no_slot`. The handler raised: 502 `handler_failed`."""
    principal, wait = request.auth, float(conf.DIRECT_WAIT_SEC)
    if body.wait_sec is not None:
        wait = min(fields.parse_number(body.wait_sec, "wait_sec", minimum=0), wait)
    try:
        outcome = direct.execute(
            job_type, body.params, wait=wait, tenant=principal.resolve_tenant(None), actor=principal.actor
        )
    except UnknownJobType as error:
        raise error.with_prefix("path") from None
    result = redact(sanitize_json(outcome.result)) if principal.can_view_payload else None
    skipped = {} if outcome.skipped is None else {"skipped": outcome.skipped}
    return json_response({"result": result, "waited_ms": outcome.waited_ms, "ran_ms": outcome.ran_ms, **skipped})
