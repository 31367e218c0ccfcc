"""One running product for all requirements: `runscheduler`, asked over HTTP as a client of the documents would."""

from __future__ import annotations

import json
import os
import re
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from pytest_django import DjangoDbBlocker

from jobs.services import tokens
from tests.conftest import database_url
from tests.query_plans.large_tables import delete_all_rows
from tests.support.product import Product, run_product
from tests.support.worker_processes import LONG_LEASE_SETTINGS, MANAGE, WAIT_SEC, Fleet, wait_until

SETTINGS: dict[str, Any] = {
    **LONG_LEASE_SETTINGS,
    "SYSTEM_JOB_TYPES": True,
    "WEBHOOK_ALLOW_PRIVATE": True,
    "WEBHOOK_BACKOFF_SEC": 0.2,
    "ADMISSION_POLICY": "jobs.policies.admission.Capacity",
    "ADMISSION": {"quiet_load": 900.0, "busy_load": 1000.0, "streak_sec": 86_400},
}
COMMAND = (str(MANAGE), "runscheduler", "--port=0", "--concurrency=16")


@dataclass
class Scheduler:
    """The product of this module, and one token for everything."""

    product: Product
    fleet: Fleet
    token: str
    url: str = field(init=False)

    def __post_init__(self) -> None:
        found = re.search(r"running: (http://[^/\s]+)", self.product.output)
        assert found, self.product.output
        self.url = found.group(1)

    def send(self, method: str, path: str, body: Any = None, *, token: str | None = "") -> tuple[int, Any]:
        """Return status and document. `token` None: without credentials."""
        headers = {"Content-Type": "application/json"}
        if token is not None:
            headers["Authorization"] = f"Bearer {token or self.token}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=WAIT_SEC) as response:
                status, content = response.status, response.read()
        except urllib.error.HTTPError as refusal:
            status, content = refusal.code, refusal.read()
        try:
            return status, json.loads(content)
        except ValueError:
            return status, content.decode()

    def get(self, path: str) -> Any:
        status, document = self.send("GET", path)
        assert status == 200, document
        return document

    def post(self, path: str, body: Any = None, status: int | None = None) -> Any:
        answered, document = self.send("POST", path, {} if body is None else body)
        assert answered == status if status else answered < 300, document
        return document

    def submit(self, job_type: str, params: Any = None, **fields: Any) -> str:
        return str(self.post("/api/jobs", {"job_type": job_type, "params": params or {}, **fields})["id"])

    def wait_for(self, job_id: str, *statuses: str) -> Any:
        wait_until(lambda: self.get(f"/api/jobs/{job_id}")["status"] in statuses, what=lambda: self.product.output)
        return self.get(f"/api/jobs/{job_id}")

    def list_events(self, job_id: str, kind: str) -> list[Any]:
        return [event for event in self.get(f"/api/jobs/{job_id}/events")["items"] if event["kind"] == kind]

    # The surface of addons

    def submit_intent(self, **fields: Any) -> str:
        body = {"addon_id": "visuals", "job_type": "indexing", **fields}
        return str(self.post("/api/system/scheduler/queue/jobs/submit", body)["job_id"])

    def get_intent(self, job_id: str) -> Any:
        return self.get(f"/api/system/scheduler/queue/jobs/{job_id}")

    def start_intent(self, job_id: str) -> str:
        """Wait for the offer of this job, start it, and return its lease."""
        deadline = time.monotonic() + WAIT_SEC
        while job_id not in {item["job_id"] for item in self.list_offers("?addon_id=visuals&limit=50")}:
            assert time.monotonic() < deadline, self.get(f"/api/jobs/{job_id}/explain")
        started = self.post(f"/api/system/scheduler/queue/jobs/{job_id}/start", {"worker_id": f"w-{job_id[-8:]}"})
        return str(started["lease_id"])

    def list_offers(self, query: str) -> list[Any]:
        document = self.get(f"/api/system/scheduler/queue/dispatchable{query}")
        return list(document if isinstance(document, list) else document["items"])

    def complete_intent(self, job_id: str, lease_id: str, **outcome: Any) -> Any:
        return self.post(f"/api/system/scheduler/queue/jobs/{job_id}/complete", {"lease_id": lease_id, **outcome})


@pytest.fixture(scope="module")
def db(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[None]:
    """Open the test database for a module without a transaction: the product writes to it, too.

    It has the name of pytest-django's fixture, by which that knows that a run of these tests alone needs the database.
    """
    with django_db_blocker.unblock():
        yield
        delete_all_rows()


@pytest.fixture(scope="module")
def module_fleet(db: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Return the fleet of a module; `fleet` is that of one test."""
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "DATABASE_URL": database_url()}
    with Fleet(env, tmp_path_factory.mktemp("product")) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def scheduler(module_fleet: Fleet) -> Iterator[Scheduler]:
    scopes = ["read", "submit", "operate", "work", "admin"]
    token, text = tokens.create("client", tenant=None, scopes=scopes)
    settings = {**SETTINGS, "LEGACY_TOKEN": token.prefix}
    with run_product(module_fleet, *COMMAND, settings=settings) as product:
        yield Scheduler(product, module_fleet, text)
