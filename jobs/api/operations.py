"""How an operation is declared: its stable id, what it needs, and every status that it can answer."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

from jobs.api.auth import needs
from jobs.api.schemas import Problem

IF_NONE_MATCH = {"schema": {"type": "string"}, "description": "The ETag of what you have: 304 if it is still so."}
ETAG = {"ETag": {"description": "Names this version.", "schema": {"type": "string"}}}
ALWAYS = (401, 403, 422, 429, 500, 503)
WITH_BODY = (400, 413, 415)


def operation(
    name: str,
    response: Any,
    *,
    scope: str = "read",
    permission: str | None = None,
    problems: Iterable[int] = (),
    body: bool | Literal["optional"] = False,
    cached: bool = False,
    headers: Mapping[str, Any] | None = None,
    openapi_extra: Mapping[str, Any] | None = None,
    **more: Any,
) -> dict[str, Any]:
    """For `@router.get("/jobs", **operation("jobs_list", JobPage))`.

    `response` is a schema for 200, or {status: schema}. `problems` names what can be refused beyond ALWAYS; `body`
    adds what can be wrong with one; `cached` is for answers of `responses.tagged`. `headers` documents request headers
    as {name: {schema, description}}.
    """
    refused = {*ALWAYS, *problems, *(WITH_BODY if body else ())}
    told = {**dict.fromkeys(sorted(refused)), 422: Problem}  # a model each would take ninja half a second to make
    answers = response if isinstance(response, dict) else {200: response}
    named = {**(headers or {}), **({"If-None-Match": IF_NONE_MATCH} if cached else {})}
    parameters = [{"in": "header", "name": header, "required": False, **each} for header, each in named.items()]
    return {
        "operation_id": name,
        "url_name": name,
        "auth": needs(scope, permission),
        "response": {**answers, **({304: None} if cached else {}), **told},
        "openapi_extra": {
            **(openapi_extra or {}),
            **({"parameters": parameters} if parameters else {}),
            **({"requestBody": {"required": False}} if body == "optional" else {}),
            **({"responses": {200: {"headers": ETAG}, 304: {"headers": ETAG}}} if cached else {}),
        },
        **more,
    }


def submission(name: str, response: Any, summary: str, **more: Any) -> dict[str, Any]:
    """As `operation`, for what makes jobs: POST that answers 201."""
    return operation(name, {201: response}, scope="submit", body=True, problems=[409], summary=summary, **more)


def action(
    name: str, response: Any, permission: str, summary: str, *, problems: Iterable[int] = (404, 409), **more: Any
) -> dict[str, Any]:
    """As `operation`, for what a person does with one object: POST with a body that may be absent."""
    options: dict[str, Any] = {"scope": "operate", "permission": permission, "body": "optional", "problems": problems}
    return operation(name, response, summary=summary, **options, **more)
