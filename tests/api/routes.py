"""Every route there is, read from the routers themselves, with something to fill its paths with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from jobs.ids import uuid7
from jobscheduler.api import api, legacy
from tests import factories


@dataclass(frozen=True)
class Route:
    method: str
    path: str
    name: str
    scope: str
    permission: str | None

    def __str__(self) -> str:
        return f"{self.method} {self.path}"

    @property
    def is_safe(self) -> bool:
        return self.method == "GET"

    @property
    def names_an_object(self) -> bool:
        """Job types are nobody's: what is asked of one that is not there is a mistake, not a secret."""
        return "{" in self.path.replace("{job_type}", "")

    def fill_path(self, values: dict[str, Any]) -> str:
        """The path with these values. A parameter that nobody knows is one that a new route forgot to tell us of."""
        return self.path.format_map(values)


def routes() -> list[Route]:
    return [
        Route(method, f"{base}{path}", operation.operation_id or "", *_needs(operation))
        for surface, base in SURFACES
        for router in surface._get_bound_routers()
        for path, view in router.path_operations.items()
        for operation in view.operations
        for method in operation.methods
    ]


def _needs(operation: Any) -> tuple[str, str | None]:
    bearer, _key, console = operation.auth_callbacks
    return bearer.scope, console.permission and console.permission.rpartition(".")[2]


SURFACES = [(api, "/api"), (legacy, "")]

MAKERS: dict[str, Callable[[str], Any]] = {
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


def objects_of(tenant: str) -> dict[str, Any]:
    """One of everything that a path can name."""
    return {name: make(tenant) for name, make in MAKERS.items()} | {"job_type": "sample.add"}


def absent() -> dict[str, Any]:
    ids = {name: f"absent-{uuid7()}" if name == "key" else UUID(int=uuid7().int) for name in MAKERS}
    return {**ids, "job_type": "absent.type"}
