"""How many jobs may run at once."""

from __future__ import annotations

from typing import Annotated, Any

from django.http import HttpResponse
from ninja import Router
from pydantic import Field, WithJsonSchema

from jobs import limits, shapes
from jobs.api import fields as f
from jobs.api.auth import ApiRequest
from jobs.api.operations import operation
from jobs.api.pagination import Paged, page_in_memory
from jobs.api.request_params import Asked, Document, Said, example
from jobs.api.responses import answer
from jobs.api.schemas import Out, Page, Time, words
from jobs.limits import LARGEST, LimitState
from jobs.models import LimitScope

router = Router(tags=["limits"])
SCOPES = list(LimitScope.values)
Maximum = Annotated[Any, WithJsonSchema({"type": "integer", "minimum": 1, "maximum": LARGEST})]


class LimitOut(Out):
    scope: Annotated[str, WithJsonSchema(words(SCOPES))]
    key: str = Field(description="The name within the scope; empty for the global limit.")
    max: int | None = Field(description="Null: unlimited.")
    in_use: int
    paused: bool
    paused_by: str
    paused_at: Time | None
    reason: str
    source: Annotated[str, WithJsonSchema(words(["settings", "override"]))]


class LimitIn(Said):
    """`max` and `paused` change what they name and nothing else; `reset` drops the override and stands alone."""

    model_config = example(scope="job_type", key="mail.send", max=3)

    scope: Annotated[Any, WithJsonSchema(words(SCOPES))]
    key: Annotated[Any, WithJsonSchema({"type": "string", "maxLength": 200})] | None = None
    max: Maximum | None = Field(default=None, description="Null: unlimited.")
    paused: f.Flag | None = None
    reason: f.Reason = None
    reset: f.Flag | None = None


@router.get("/limits", **operation("limits_list", Page[LimitOut], summary="List limits"))
def limits_list(request: ApiRequest, asked: Annotated[Paged, Asked()]) -> HttpResponse:
    """Every limit that the settings or an operator set, by scope and key. Of tenants, only those the caller may see."""
    caller = request.auth
    rows = [state for state in limits.listing() if state.scope != LimitScope.TENANT or caller.sees(state.key)]
    return answer(page_in_memory(caller, "limits_list", asked, rows, _place, shapes.limit))


@router.put(
    "/limits",
    **operation("limits_put", LimitOut, scope="admin", permission="change_limits", body=True, summary="Set a limit"),
)
def limits_put(request: ApiRequest, body: Annotated[LimitIn, Document()]) -> HttpResponse:
    """Sets or pauses one limit, or puts it back to what the settings say. Needs a token of all tenants."""
    request.auth.require_all_tenants()
    return answer(shapes.limit(limits.put(body.said(), actor=request.auth.actor)))


def _place(state: LimitState) -> list[Any]:
    return [SCOPES.index(state.scope), state.key]
