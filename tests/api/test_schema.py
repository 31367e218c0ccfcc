"""The OpenAPI document is complete, stable, equal to the one in docs/, and valid for every generated request."""

from __future__ import annotations

import json
import random
import secrets
from pathlib import Path
from typing import Any

import pytest

from docs import generate
from jobscheduler.api import api
from tests.api.routes import list_routes
from tests.chaos import schema
from tests.support.worker_processes import Fleet

# Each rule of the product, and a schema, an operation, a tag or "info" whose description must name it.
RULES = {
    "INV-001": "jobs_update",
    "INV-002": "JobRunOut",
    "INV-003": "LeaseOut",
    "INV-004": "jobs_list",
    "INV-005": "schedules_update",
    "INV-006": "ListedGroupOut",
    "DEC-001": "JobOut",
    "DEC-002": "info",
    "DEC-003": "ScheduleIn",
    "DEC-004": "direct_run",
    "DEC-005": "jobs_move",
    "DEC-006": "LegacyJobOut",
    "DEC-007": "jobs_retry",
    "DEC-008": "jobs_create",
    "DEC-009": "DeliveryOut",
    "DEC-010": "ScheduleEdits",
    "DEC-011": "LimitOut",
    "DEC-012": "GroupIn",
    "CON-001": "workers_list",
    "CON-002": "LimitOut",
    "CON-003": "WorkerOut",
    "CON-004": "legacy",
}
TESTS = Path(__file__).resolve().parents[1]
KINDS = ("unit", "integration", "error")
REQUIRED_RESPONSES = {"401", "403", "422", "429", "500", "503"}


@pytest.fixture(scope="module")
def document() -> dict[str, Any]:
    return json.loads(json.dumps(api.get_openapi_schema(path_prefix="/api/")))  # type: ignore[no-any-return]


def index_operations(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {
        operation["operationId"]: operation for methods in document["paths"].values() for operation in methods.values()
    }


@pytest.mark.once
def test_the_document_in_docs_is_the_one_that_is_served() -> None:
    assert generate.OPENAPI.read_text() == generate.openapi_document(), "run `make docs`"


@pytest.mark.once
def test_every_route_is_described_under_its_own_stable_id(document: dict[str, Any]) -> None:
    operation_ids = [
        operation["operationId"] for methods in document["paths"].values() for operation in methods.values()
    ]
    assert set(operation_ids) == {route.name for route in list_routes()}
    assert len(set(operation_ids)) == len(operation_ids)
    assert {"jobs_list", "jobs_create", "jobs_cancel", "job_runs_retry"} <= set(operation_ids)


@pytest.mark.once
def test_every_operation_describes_its_security_and_responses(document: dict[str, Any]) -> None:
    for name, operation in index_operations(document).items():
        assert set(operation["responses"]) >= REQUIRED_RESPONSES, name
        assert {next(iter(scheme)) for scheme in operation["security"]} == {"Bearer", "ApiKey", "Console"}, name
        assert operation["summary"], name
        for status, response in operation["responses"].items():
            if int(status) >= 400:
                problem = document["components"]["responses"][response["$ref"].rsplit("/", 1)[-1]]
                assert list(problem["content"]) == ["application/problem+json"], (name, status)
        if "requestBody" in operation:
            assert {"400", "413", "415"} <= set(operation["responses"]), name


@pytest.mark.once
def test_bodies_are_closed_and_have_examples(document: dict[str, Any]) -> None:
    for name, operation in index_operations(document).items():
        if "requestBody" in operation:
            ref = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
            body = document["components"]["schemas"][ref.rsplit("/", 1)[-1]]
            assert body["additionalProperties"] is False, name
            assert body.get("examples") or not body.get("properties"), name


@pytest.mark.once
def test_every_rule_is_named_where_it_governs(document: dict[str, Any]) -> None:
    tags = {tag["name"]: tag for tag in document["tags"]}
    places = {**document["components"]["schemas"], **index_operations(document), **tags, "info": document["info"]}
    assert {rule: place for rule, place in RULES.items() if rule not in places[place]["description"]} == {}


@pytest.mark.once
def test_every_rule_has_a_unit_an_integration_and_an_error_test() -> None:
    names = "".join(path.read_text() for path in TESTS.rglob("test_*.py"))
    required = [f"def test_{rule.lower().replace('-', '_')}_{kind}_" for rule in RULES for kind in KINDS]
    assert [name for name in required if name not in names] == []


@pytest.mark.once
def test_only_the_legacy_paths_are_deprecated(document: dict[str, Any]) -> None:
    deprecated = {name for name, operation in index_operations(document).items() if operation.get("deprecated")}
    assert deprecated == {name for name in index_operations(document) if name.startswith("legacy_")} != set()


@pytest.mark.timeout(300)
def test_no_response_is_a_server_error_or_missing_from_the_schema(process_env: dict[str, str], tmp_path: Path) -> None:
    seed = secrets.token_hex(4)
    print(f"SEED={seed}")
    with Fleet(process_env, tmp_path) as fleet:
        verdict = schema.run(fleet, random.Random(seed), seconds=20)
    print(verdict)
    assert not verdict.broken, str(verdict)
