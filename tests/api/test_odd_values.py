"""Odd values in every query, path and body field of the OpenAPI document: never a 5xx, and a problem if refused."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple
from urllib.parse import quote

import pytest
from django.db import transaction
from django.test import override_settings

from jobs.services import tokens
from tests.api.routes import build_example, create_objects, find_body_schema, read_document
from tests.factories import JobFactory
from tests.support.api_client import ApiClient
from tests.support.remote_client import RemoteClient

pytestmark = pytest.mark.django_db

Document = dict[str, Any]
FieldPath = tuple[str | int, ...]

TRIES = 6945  # of the attack by hand that this test repeats
ODD_TEXTS = (
    *("", "-1", "9" * 30, "NaN", "x" * 300, "%", "{0} %s", "' OR 1=1 --", "a\0b", "a\r\nb", "١", "../../etc/passwd"),
    *("0001-01-01T00:00:00+14:00", "01920000-0000-7000-8000-000000000000"),
)
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 1e308, 2**63, "", "a\0b", "\ud800", "x" * 300, "' OR 1=1 -- {0} %s"),
    *([[None]], {"a\r\n": {"b": [1]}}, "0001-01-01T00:00:00+14:00"),
)
# The state in which a job gets furthest with each verb.
STATE_OF_VERB = {"resume": "paused", "retry": "failed", "resolve": "failed", "release": "pending", "logs": "failed"}


class Try(NamedTuple):
    what: str
    method: str
    url: str
    body: Any


class Operation(NamedTuple):
    method: str
    path: str
    parameters: list[Document]
    schema: Document | None

    @property
    def query_names(self) -> list[str]:
        return [parameter["name"] for parameter in self.parameters if parameter["in"] == "query"]

    @property
    def path_names(self) -> list[str]:
        return [parameter["name"] for parameter in self.parameters if parameter["in"] == "path"]


class OddRequests:
    """Every operation, once for each of its fields and each odd value; all else in the request is as it should be."""

    def __init__(self, document: Document, values: dict[str, Any], lease: dict[str, Any]) -> None:
        self.schemas = document["components"]["schemas"]
        self.operations = [
            Operation(method.upper(), path, described.get("parameters", []), find_body_schema(document, described))
            for path, methods in document["paths"].items()
            for method, described in methods.items()
        ]
        self.values, self.lease = values, lease
        self.job_ids = {state: JobFactory.create(**{state: True}).pk for state in set(STATE_OF_VERB.values())}

    def __iter__(self) -> Iterator[Try]:
        for operation in self.operations:
            body, values = self._build_body(operation), self._choose_values(operation)
            url, name = operation.path.format_map(values), f"{operation.method} {operation.path}"
            for parameter in operation.query_names:
                for text in ODD_TEXTS:
                    query = f"{parameter}={quote(text, safe='')}"
                    yield Try(f"{name}: {parameter}={text[:40]!r}", operation.method, f"{url}?{query}", body)
            for parameter in operation.path_names:
                for text in ODD_TEXTS:
                    odd_url = operation.path.format_map({**values, parameter: quote(text, safe="")})
                    yield Try(f"{name}: {parameter}={text[:40]!r}", operation.method, odd_url, body)
            for field in self._list_fields(operation.schema or {}):
                for value in ODD_VALUES:
                    what = f"{name}: {field}={str(value)[:40]!r}"
                    yield Try(what, operation.method, url, replace_field(body, field, value))

    def _resolve(self, schema: Document) -> Document:
        found: Document = self.schemas[schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema
        return found

    def _build_body(self, operation: Operation) -> Any:
        body = build_example(operation.schema)
        return {**body, "lease_id": self.lease["lease_id"]} if "lease_id" in (body or {}) else body

    def _choose_values(self, operation: Operation) -> dict[str, Any]:
        """Return values for the path: a remote job for the calls of workers, else a job in a fitting state."""
        if "lease/" in operation.path or operation.path.endswith(("/complete", "/start")):
            return {**self.values, **self.lease}
        state = STATE_OF_VERB.get(operation.path.rpartition("/")[2])
        return self.values if state is None else {**self.values, "job_id": self.job_ids[state]}

    def _list_fields(self, schema: Document) -> Iterator[FieldPath]:
        schema = self._resolve(schema)
        for option in schema.get("anyOf", ()):
            yield from self._list_fields(option)
        if "items" in schema:
            yield (0,)
            yield from ((0, *field) for field in self._list_fields(schema["items"]))
        for name, described in schema.get("properties", {}).items():
            yield (name,)
            yield from ((name, *field) for field in self._list_fields(described))


def replace_field(body: Any, field: FieldPath, value: Any) -> Any:
    """Return a copy of a body with this value in a field; objects and lists around it are made if they are absent."""
    changed = copy.deepcopy(body)
    place = changed
    for name, inner in pairwise(field):
        empty: Any = [] if isinstance(inner, int) else {}
        if isinstance(place, list):
            place.extend([empty] if not place else [])
        elif not isinstance(place.get(name), type(empty)):
            place[name] = empty
        place = place[name]
    if isinstance(place, list):
        place[:] = [value]
    else:
        place[field[-1]] = value
    return changed


def send(api: ApiClient, request: Try) -> Any:
    """Send a request, and undo what it changed."""
    content = b"" if request.body is None else json.dumps(request.body).encode()
    with transaction.atomic():
        response = api.client.generic(request.method, request.url, content, "application/json", headers=api.headers)
        transaction.set_rollback(True)
    return response


@override_settings(JOBSCHEDULER={"API_RATE_LIMIT": None, "LIMITS": {"global": None}})
def test_no_odd_value_in_any_field_is_a_server_error(
    monkeypatch: pytest.MonkeyPatch, errors_logged_alone: None
) -> None:
    api = ApiClient("admin", tenant=None)
    lease = RemoteClient(api).start_new_job()
    token = tokens.find(api.headers["Authorization"].removeprefix("Bearer "))
    monkeypatch.setattr(tokens, "find", lambda text: token)  # looking it up takes half the time of these requests
    document = read_document()
    tries, wrong, statuses = 0, [], set()
    for request in OddRequests(document, create_objects("default"), lease):
        response = send(api, request)
        tries += 1
        statuses.add(response.status_code)
        is_problem = response.get("Content-Type") == "application/problem+json"
        needs_problem = response.status_code >= 400 and request.url.startswith("/api/")
        if response.status_code >= 500 or (needs_problem and not is_problem):
            wrong.append((request.what, response.status_code, response.content[:200]))
    assert wrong == []
    assert statuses >= {200, 201, 404, 409, 422}  # both: some are refused, and some get as far as the database
    assert tries >= TRIES
