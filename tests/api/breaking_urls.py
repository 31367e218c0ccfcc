"""URLs of the API under two prefixes, beside an API whose endpoints fail."""

from __future__ import annotations

from typing import Annotated, Any

from django.db import InterfaceError, OperationalError, connection
from django.http import HttpRequest, HttpResponse
from django.urls import include, path
from ninja import Router

from jobs.api.ninja_api import SchedulerApi
from jobs.api.request_params import JsonBody, RequestBody
from jobs.api.responses import json_response
from jobs.services import jobs as job_services

SECRET = "the password is hunter2"

router = Router()


@router.get("/unexpected", operation_id="unexpected")
def raise_runtime_error(request: HttpRequest) -> HttpResponse:
    raise RuntimeError(SECRET)


@router.get("/outage", operation_id="outage")
def raise_operational_error(request: HttpRequest) -> HttpResponse:
    raise OperationalError(f"connection refused: {SECRET}")


@router.get("/interface", operation_id="interface")
def raise_interface_error(request: HttpRequest) -> HttpResponse:
    raise InterfaceError(SECRET)


@router.get("/atomic", operation_id="atomic")
def report_transaction(request: HttpRequest) -> HttpResponse:
    return json_response({"in_a_transaction": connection.in_atomic_block})


@router.post("/half", operation_id="half")
def enqueue_and_raise(request: HttpRequest, body: Annotated[RequestBody, JsonBody()]) -> HttpResponse:
    job_services.enqueue("tests.note", {"text": "kept"})
    raise RuntimeError(SECRET)


@router.get("/typed/{number}", operation_id="typed")
def echo_number(request: HttpRequest, number: int) -> HttpResponse:
    return json_response({"number": number})


broken: Any = SchedulerApi(urls_namespace="broken", openapi_url=None, docs_url=None)
broken.add_router("", router)

urlpatterns = [
    path("broken/", include((broken.patterns(), "broken"))),
    path("", include("jobscheduler.urls")),
    path("deep/scheduler/", include("jobscheduler.urls")),
]
