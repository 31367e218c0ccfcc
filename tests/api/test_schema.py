"""The OpenAPI document: complete, stable, the one in docs/, and true of every answer that schemathesis can provoke."""

from __future__ import annotations

import json
import random
import secrets
from pathlib import Path
from typing import Any

import pytest

from docs import generate
from jobscheduler.api import api
from tests.api.routes import routes
from tests.chaos import schema
from tests.support.worker_processes import Fleet

RULES = ("INV-001", "INV-002", "INV-003", "INV-004", "INV-005", "DEC-001", "DEC-005", "DEC-006", "DEC-007")
NEEDED = {"401", "403", "422", "429", "500", "503"}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return json.loads(json.dumps(api.get_openapi_schema(path_prefix="/api/")))  # type: ignore[no-any-return]


def operations(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {item["operationId"]: item for methods in document["paths"].values() for item in methods.values()}


def test_the_document_in_docs_is_the_one_that_is_served() -> None:
    assert generate.OPENAPI.read_text() == generate.openapi_document(), "run `make docs`"


def test_every_route_is_described_under_its_own_stable_id(document: dict[str, Any]) -> None:
    listed = [item["operationId"] for methods in document["paths"].values() for item in methods.values()]
    assert set(listed) == {route.name for route in routes()}
    assert len(set(listed)) == len(listed)
    assert {"jobs_list", "jobs_create", "jobs_cancel", "job_runs_retry"} <= set(listed)


def test_every_operation_names_what_it_needs_and_what_it_can_answer(document: dict[str, Any]) -> None:
    for name, operation in operations(document).items():
        assert set(operation["responses"]) >= NEEDED, name
        assert {next(iter(item)) for item in operation["security"]} == {"Bearer", "ApiKey", "Console"}, name
        assert operation["summary"], name
        for status, response in operation["responses"].items():
            if int(status) >= 400:
                refusal = document["components"]["responses"][response["$ref"].rsplit("/", 1)[-1]]
                assert list(refusal["content"]) == ["application/problem+json"], (name, status)
        if "requestBody" in operation:
            assert {"400", "413", "415"} <= set(operation["responses"]), name


def test_bodies_are_closed_and_have_examples(document: dict[str, Any]) -> None:
    for name, operation in operations(document).items():
        if "requestBody" in operation:
            ref = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
            body = document["components"]["schemas"][ref.rsplit("/", 1)[-1]]
            assert body["additionalProperties"] is False, name
            assert body.get("examples") or not body.get("properties"), name


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_is_named_where_it_governs(document: dict[str, Any], rule: str) -> None:
    assert rule in json.dumps(document)


def test_only_the_old_paths_are_called_old(document: dict[str, Any]) -> None:
    old = {name for name, operation in operations(document).items() if operation.get("deprecated")}
    assert old == {name for name in operations(document) if name.startswith("legacy_")} != set()


@pytest.mark.timeout(300)
def test_no_answer_is_a_server_error_or_one_that_the_schema_does_not_name(
    process_env: dict[str, str], tmp_path: Path
) -> None:
    seed = secrets.token_hex(4)
    print(f"SEED={seed}")
    with Fleet(process_env, tmp_path) as fleet:
        verdict = schema.run(fleet, random.Random(seed), seconds=20)
    print(verdict)
    assert not verdict.broken, str(verdict)
