"""Declarations of operations: the stable id, the scope and permissions, and every status of the response."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from jobs.api.auth import build_authenticators
from jobs.api.schemas import Problem
from jobs.services.permissions import OPERATIONS, build_requirement

IF_NONE_MATCH = {"schema": {"type": "string"}, "description": "The ETag of your copy: 304 if it is current."}
ETAG = {"ETag": {"description": "The version of the object.", "schema": {"type": "string"}}}
ALWAYS = (401, 403, 422, 429, 500, 503)
WITH_BODY = (400, 413, 415)


def operation(
    name: str,
    response: Any,
    summary: str | None = None,
    *,
    scope: str = "read",
    permissions: Sequence[str] = (),
    problems: Iterable[int] = (),
    body: bool | Literal["optional"] = False,
    cached: bool = False,
    headers: Mapping[str, Any] | None = None,
    openapi_extra: Mapping[str, Any] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Return the options of a route: `@router.get("/jobs", **operation("jobs_list", JobPage))`.

    `response` is a schema for 200, or {status: schema}. A token needs the scope; a session, and the user who made the
    token, need the permissions, by default those of the scope (`services.permissions`). `problems` lists error statuses
    beyond ALWAYS; `body` adds those of request bodies; `cached` is for responses of `responses.etag_response`.
    `headers` documents request headers as {name: {schema, description}}.
    """
    OPERATIONS[name] = requirement = build_requirement(scope, *permissions)
    statuses = {*ALWAYS, *problems, *(WITH_BODY if body else ())}
    # Only 422 has a model: building one for each status would take ninja half a second.
    problem_schemas = {**dict.fromkeys(sorted(statuses)), 422: Problem}
    success_schemas = response if isinstance(response, dict) else {200: response}
    header_specs = {**(headers or {}), **({"If-None-Match": IF_NONE_MATCH} if cached else {})}
    parameters = [{"in": "header", "name": header, "required": False, **spec} for header, spec in header_specs.items()]
    return {
        "operation_id": name,
        "url_name": name,
        "summary": summary,
        "auth": build_authenticators(requirement),
        "response": {**success_schemas, **({304: None} if cached else {}), **problem_schemas},
        "openapi_extra": {
            **(openapi_extra or {}),
            **({"parameters": parameters} if parameters else {}),
            **({"requestBody": {"required": False}} if body == "optional" else {}),
            **({"responses": {200: {"headers": ETAG}, 304: {"headers": ETAG}}} if cached else {}),
        },
        **options,
    }


def lookup(name: str, response: Any, summary: str, **options: Any) -> dict[str, Any]:
    """Same as `operation`, for a GET of one object with its ETag."""
    return operation(name, response, summary, problems=[404], cached=True, **options)


def submission(name: str, response: Any, summary: str, **options: Any) -> dict[str, Any]:
    """Same as `operation`, for a POST that creates jobs. `response` is a schema for 201, or {status: schema}."""
    created = response if isinstance(response, dict) else {201: response}
    return operation(name, created, summary, scope="submit", body=True, problems=[409], **options)


def action(name: str, response: Any, permission: str, summary: str, **options: Any) -> dict[str, Any]:
    """Same as `operation`, for an operator's action on one object: POST with an optional body."""
    defaults: dict[str, Any] = {"scope": "operate", "body": "optional", "problems": (404, 409)}
    return operation(name, response, summary, permissions=[permission], **{**defaults, **options})
