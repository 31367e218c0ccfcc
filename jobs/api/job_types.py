"""What can be submitted here."""

from __future__ import annotations

from typing import Annotated

from django.http import HttpResponse
from ninja import Router
from pydantic import Field

from jobs import shapes
from jobs.api import listed
from jobs.api.answers import answer
from jobs.api.callers import ApiRequest
from jobs.api.operations import operation
from jobs.api.pages import Paged
from jobs.api.queries import Asked
from jobs.api.schemas import Document, Out, Page
from jobs.registry import registry

router = Router(tags=["job types"])


class JobTypeOut(Out):
    name: str
    params_schema: Document = Field(description="JSON Schema of the params.")
    resource: str
    remote: bool = Field(description="Run by workers that poll over HTTP, not by ours.")
    max_retries: int
    doc: str


@router.get("/job-types", **operation("job_types_list", Page[JobTypeOut], summary="List job types"))
def job_types_list(request: ApiRequest, asked: Annotated[Paged, Asked()]) -> HttpResponse:
    """By name. Known is what is registered in the process that answers."""
    handlers = [registry.get(name) for name in registry.names()]
    found = listed.page(request.auth, "job_types_list", asked, handlers, lambda each: [each.name], shapes.job_type)
    return answer(found)
