"""List every route of the routers, create objects for the parameters of their paths, and bodies by their schemas."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from docs import generate
from jobs.ids import uuid7
from jobscheduler.api import api, legacy
from tests import factories
from tests.sample_app import job_types


@dataclass(frozen=True)
class Route:
    method: str
    path: str
    name: str
    scope: str
    permissions: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def is_safe(self) -> bool:
        return self.method == "GET"

    @property
    def names_an_object(self) -> bool:
        """Job types belong to no tenant: an unknown one is bad input and need not be hidden."""
        return "{" in self.path.replace("{job_type}", "")

    def fill_path(self, values: dict[str, Any]) -> str:
        """Return the path with these values. A KeyError means: add the parameter of a new route to OBJECT_FACTORIES."""
        return self.path.format_map(values)


def list_routes() -> list[Route]:
    return [
        Route(method, f"{base}{path}", operation.operation_id or "", *_read_requirements(operation))
        for ninja_api, base in APIS
        for router in ninja_api._get_bound_routers()
        for path, view in router.path_operations.items()
        for operation in view.operations
        for method in operation.methods
    ]


def _read_requirements(operation: Any) -> tuple[str, tuple[str, ...]]:
    """Return the scope, and the names of the permissions without their app label."""
    bearer, key, console, *_legacy_token = operation.auth_callbacks
    assert bearer.requirement == key.requirement == console.requirement
    return bearer.requirement.scope, tuple(name.rpartition(".")[2] for name in bearer.requirement.permissions)


APIS = [(api, "/api"), (legacy, "")]

OBJECT_FACTORIES: dict[str, Callable[[str], Any]] = {
    "job_id": lambda tenant: factories.JobFactory.create(tenant=tenant, queued=True).pk,
    "run_id": lambda tenant: factories.JobFactory.create(tenant=tenant, failed=True).pk,
    "key": lambda tenant: factories.TargetFactory.create(tenant=tenant).key,
    "group_id": lambda tenant: factories.JobGroupFactory.create(tenant=tenant).pk,
    "template_id": lambda tenant: factories.JobTemplateFactory.create(tenant=tenant).pk,
    "lease_id": lambda tenant: factories.LeaseFactory.create(tenant=tenant).pk,
    "schedule_id": lambda tenant: factories.ScheduleFactory.create(tenant=tenant).pk,
    "endpoint_id": lambda tenant: factories.WebhookEndpointFactory.create(tenant=tenant).pk,
    "delivery_id": lambda tenant: factories.WebhookDeliveryFactory.create(endpoint__tenant=tenant).pk,
}


def create_objects(tenant: str) -> dict[str, Any]:
    """Create one object for each path parameter; return the values of the parameters."""
    return {name: create(tenant) for name, create in OBJECT_FACTORIES.items()} | {"job_type": "sample.add"}


def absent_values() -> dict[str, Any]:
    ids = {name: f"absent-{uuid7()}" if name == "key" else UUID(int=uuid7().int) for name in OBJECT_FACTORIES}
    return {**ids, "job_type": "absent.type"}


# The examples of the document have job types that no test registers.
KNOWN_TYPES = {"story.generate": job_types.anything.name, "report.make": job_types.anything.name}


def read_document() -> dict[str, Any]:
    document: dict[str, Any] = json.loads(generate.OPENAPI.read_text())
    return document


def list_example_bodies() -> dict[str, Any]:
    """Return a valid body of every operation that takes one, by the operation's name."""
    document = read_document()
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    return {
        operation["operationId"]: build_example(find_body_schema(document, operation))
        for operation in operations
        if "requestBody" in operation
    }


def find_body_schema(document: dict[str, Any], operation: dict[str, Any]) -> dict[str, Any] | None:
    if "requestBody" not in operation:
        return None
    reference = operation["requestBody"]["content"]["application/json"]["schema"]["$ref"]
    schema: dict[str, Any] = document["components"]["schemas"][reference.rpartition("/")[2]]
    return schema


def build_example(schema: dict[str, Any] | None) -> Any:
    """Return the example of a body's schema with a registered job type; None without a schema."""
    if schema is None:
        return None
    text = json.dumps(schema.get("examples", [{}])[0])
    for example, known in KNOWN_TYPES.items():
        text = text.replace(example, known)
    return json.loads(text)
