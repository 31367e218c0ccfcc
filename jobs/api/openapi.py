"""The OpenAPI document and its page, right under whatever prefix they are asked for."""

from __future__ import annotations

import json
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from django.http import HttpRequest, HttpResponse
from django.urls import URLPattern, path
from django.views.decorators.http import require_safe
from ninja.openapi.docs import Swagger, render_template

from jobs.api.answers import tagged
from jobs.api.problems import MEDIA_TYPE as PROBLEM

if TYPE_CHECKING:
    from jobs.api.surface import SchedulerApi

DOCUMENT, PAGE = "openapi.json", "docs"
RETRY_AFTER = {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 1}}}
CHALLENGE = {"WWW-Authenticate": {"schema": {"type": "string"}}}
DONE = {"200": "Done.", "201": "Made.", "204": "Gone.", "304": "Still as you have it."}
REFUSED = {
    "400": ("MalformedBody", "The body is not JSON."),
    "401": ("Unauthorized", "No credentials, or bad ones."),
    "403": ("Forbidden", "The scope or permission for this is missing, or it is another tenant's."),
    "404": ("NotFound", "There is no such object, or it is another tenant's."),
    "409": ("Conflict", "Not in this state."),
    "413": ("BodyTooLarge", "The body is too large."),
    "415": ("UnsupportedMediaType", "The body is not application/json."),
    "422": ("Invalid", "Something in the request makes no sense; `errors` says what."),
    "429": ("TooManyRequests", "The token's rate limit is used up."),
    "500": ("InternalError", "Something went wrong on our side."),
    "502": ("HandlerFailed", "The handler raised an error."),
    "503": ("Unavailable", "The database does not answer, or there was no room in time."),
}
HEADERS = {"401": CHALLENGE, "429": RETRY_AFTER, "503": RETRY_AFTER}


def patterns(api: SchedulerApi) -> list[URLPattern]:
    def document(request: HttpRequest) -> HttpResponse:
        return tagged(request, _described(api, _prefix(request, DOCUMENT)))

    def page(request: HttpRequest) -> HttpResponse:
        settings = {**Swagger.default_settings, "url": _prefix(request, PAGE) + DOCUMENT}
        inert = json.dumps(settings).replace("<", "\\u003c")  # it stands in a script
        context = {"swagger_settings": inert, "api": api, "add_csrf": True}
        return render_template(request, Swagger.template, Swagger.template_cdn, context)

    return [
        path(DOCUMENT, require_safe(document), name="openapi_json"),
        path(f"{DOCUMENT}/", require_safe(document)),
        path(PAGE, require_safe(page), name="openapi_view"),
        path(f"{PAGE}/", require_safe(page)),
    ]


def add(document: dict[str, Any], other: SchedulerApi, prefix: str) -> None:
    """The paths of another surface, below a prefix of their own."""
    described = other.get_openapi_schema(path_prefix=prefix)
    document["paths"] |= described["paths"]
    document["components"]["schemas"] |= described["components"]["schemas"]


def completed(document: dict[str, Any]) -> dict[str, Any]:
    """What ninja does not say: that refusals have a media type of their own, their headers, and what each means."""
    for methods in document["paths"].values():
        for operation in methods.values():
            responses = {str(status): each for status, each in operation["responses"].items()}
            operation["responses"] = {status: _told(status, each) for status, each in responses.items()}
    document["components"]["responses"] = {name: _refusal(status) for status, (name, _meaning) in REFUSED.items()}
    _without_noise(document["components"]["schemas"])
    return document


def _told(status: str, response: dict[str, Any]) -> dict[str, Any]:
    if status in REFUSED:
        return {"$ref": f"#/components/responses/{REFUSED[status][0]}"}
    return {**response, "description": DONE[status]}


def _refusal(status: str) -> dict[str, Any]:
    content = {PROBLEM: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    headers = {"headers": HEADERS[status]} if status in HEADERS else {}
    return {"description": REFUSED[status][1], "content": content, **headers}


def _without_noise(part: Any) -> None:
    """Titles that repeat the name, and defaults of null for what may be left out."""
    if isinstance(part, dict) and isinstance(part.get("properties"), dict):
        for each in part["properties"].values():
            each.pop("title", None)
            if "default" in each and each["default"] is None:
                del each["default"]
    for inner in part.values() if isinstance(part, dict) else part:
        if isinstance(inner, dict | list):
            _without_noise(inner)


@lru_cache(maxsize=8)
def _described(api: SchedulerApi, prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = api.get_openapi_schema(path_prefix=prefix)
    return found


def _prefix(request: HttpRequest, name: str) -> str:
    """Where the API is, as this request reached it."""
    return request.path.rstrip("/").removesuffix(name)
