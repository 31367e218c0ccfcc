"""Who does the work."""

from __future__ import annotations

from typing import Annotated, Any

from django.http import HttpResponse
from ninja import Router
from pydantic import Field, WithJsonSchema

from jobs import figures, shapes
from jobs.api.answers import answer
from jobs.api.callers import ApiRequest
from jobs.api.operations import operation
from jobs.api.pages import Order, Paged, page
from jobs.api.queries import Asked
from jobs.api.schemas import Id, Out, Page, Time, words
from jobs.models import Worker, WorkerState

router = Router(tags=["workers"])
NEWEST_FIRST = Order(Worker, ("-id",))


class WorkerOut(Out):
    id: Id
    name: str
    host: str
    pid: int
    version: str
    state: Annotated[str, WithJsonSchema(words(WorkerState.values))] = Field(description="What it said last.")
    slots: int
    busy: int
    stuck: int = Field(description="Slots whose handler cannot be stopped.")
    serves: Annotated[Any, WithJsonSchema({"type": "object"})]
    started_at: Time
    heartbeat_at: Time


@router.get("/workers", **operation("workers_list", Page[WorkerOut], summary="List workers"))
def workers_list(request: ApiRequest, asked: Annotated[Paged, Asked()]) -> HttpResponse:
    """Workers that live, and those that fell silent within the hour. Needs a token of all tenants."""
    request.auth.require_all_tenants()
    rows = figures.present_workers()
    return answer(page(request.auth, "workers_list", asked, rows, NEWEST_FIRST, shapes.worker))
