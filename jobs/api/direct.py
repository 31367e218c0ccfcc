"""Direct execution over HTTP: a handler runs in the caller's request, in the next free slot; there is no job."""

from __future__ import annotations

from typing import Annotated, Any

from django.http import HttpResponse
from ninja import Router
from pydantic import Field, WithJsonSchema

from jobs import direct
from jobs.api import field_schemas as f
from jobs.api.auth import ApiRequest
from jobs.api.operations import operation
from jobs.api.request_params import Optional, Said, example
from jobs.api.responses import answer
from jobs.api.schemas import Out
from jobs.conf import conf
from jobs.errors import UnknownJobType
from jobs.redaction import redact
from jobs.validation import fields
from jobs.validation.sanitize import sanitize_json

router = Router(tags=["direct"])


class DirectIn(Said):
    model_config = example(params={"topic": "sea"})

    params: f.Params | None = None
    wait_sec: Annotated[Any, WithJsonSchema({"type": "number", "minimum": 0})] | None = Field(
        default=None, description="How long to wait for a slot, if that is shorter than what the settings allow."
    )


class DirectOut(Out):
    result: Annotated[Any, WithJsonSchema({})] = Field(
        description="What the handler returned, secrets masked. Null where the caller may not see payloads."
    )
    waited_ms: int = Field(description="How long the call waited for its slot.")
    ran_ms: int
    skipped: str | None = Field(default=None, description="Why there was nothing to do; absent if there was.")


@router.post(
    "/direct/{job_type}",
    **operation(
        "direct_run",
        DirectOut,
        scope="submit",
        body="optional",
        problems=[502],
        summary="Run a handler now, without a job",
    ),
)
def direct_run(
    request: ApiRequest,
    job_type: Annotated[str, WithJsonSchema(f.NAME)],
    body: Annotated[DirectIn, Optional()],
) -> HttpResponse:
    """Takes the next slot in the limits that the type falls under: what runs goes on, then direct calls in their
    order, then the queue (DEC-004). No slot in time: 503 `no_slot`. The handler raised: 502 `handler_failed`."""
    caller, wait = request.auth, float(conf.DIRECT_WAIT_SEC)
    if body.wait_sec is not None:
        wait = min(fields.parse_number(body.wait_sec, "wait_sec", minimum=0), wait)
    try:
        done = direct.execute(job_type, body.params, wait=wait, tenant=caller.tenant_for(None), actor=caller.actor)
    except UnknownJobType as error:
        raise error.under("path") from None
    result = redact(sanitize_json(done.result)) if caller.payload else None
    skipped = {} if done.skipped is None else {"skipped": done.skipped}
    return answer({"result": result, "waited_ms": done.waited_ms, "ran_ms": done.ran_ms, **skipped})
