"""POST /api/direct/{job_type}."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import override_settings

from jobs.engine.selection import limits
from jobs.models import Lease
from jobs.services import jobs as job_services
from tests.dispatch import handlers
from tests.sample_app import job_types
from tests.support import executor
from tests.support.api_client import ApiClient, read_error_locations

pytestmark = pytest.mark.django_db
TYPE = job_types.anything.name
assert handlers  # registers them


def test_the_result_comes_with_the_response() -> None:
    api = ApiClient("submit", tenant="acme")
    for slash in ("", "/"):
        response = api.post(f"/direct/direct.echo{slash}", {"params": {"word": "sea"}})
        assert response.status_code == 200
        document = response.json()
        assert set(document) == {"result", "waited_ms", "ran_ms"}
        assert document["result"]["word"] == "sea"
        assert document["result"]["job_id"] is None
        assert document["result"]["secret"] != "s3cret", "masked as everywhere"
        assert [type(document[name]) for name in ("waited_ms", "ran_ms")] == [int, int]
    assert {(row.tenant, row.owner, row.outcome) for row in Lease.objects.all()} == {("acme", "tests", "completed")}


def test_a_body_may_be_absent_and_an_odd_result_is_told_as_well_as_json_can() -> None:
    response = ApiClient("submit").post("/direct/direct.odd")
    assert response.status_code == 200
    assert sorted(response.json()["result"]["1"]) == [2, 3]


def test_a_skip_is_an_answer() -> None:
    response = ApiClient("submit").post("/direct/direct.skip", {"params": {}})
    assert response.status_code == 200
    assert (response.json()["result"], response.json()["skipped"]) == (None, "nothing new")


@pytest.mark.parametrize("job_type", ["direct.boom", "direct.leave"])
def test_a_handler_that_raises_is_a_bad_gateway(job_type: str) -> None:
    response = ApiClient("submit").post(f"/direct/{job_type}", {"params": {}})
    assert response.status_code == 502
    assert response["Content-Type"] == "application/problem+json"
    assert response.json()["code"] == "handler_failed"
    assert "second line" not in response.content.decode()


@pytest.mark.parametrize(
    ("job_type", "body", "where"),
    [
        ("direct.elsewhere", {}, "job_type"),
        ("direct.nowhere", {}, "job_type"),
        ("direct.echo", {"params": {"word": 3}}, "word"),
        ("direct.echo", {"params": {"bogus": 3}}, "bogus"),
        ("direct.echo", {"params": []}, "params"),
        ("direct.echo", {"bogus": 1}, "bogus"),
        ("direct.echo", {"wait_sec": -1}, "wait_sec"),
        ("direct.echo", {"wait_sec": "soon"}, "wait_sec"),
    ],
)
def test_what_makes_no_sense_is_refused_and_reserves_nothing(job_type: str, body: Any, where: str) -> None:
    (loc,) = read_error_locations(ApiClient("submit").post(f"/direct/{job_type}", body))
    assert loc[-1] == where
    assert not Lease.objects.exists()


@pytest.mark.parametrize("scopes", [("read",), ("operate",), ("work",)])
def test_it_takes_the_scope_submit(scopes: tuple[str, ...]) -> None:
    assert ApiClient(*scopes).post("/direct/direct.echo").status_code == 403


@override_settings(JOBSCHEDULER={"DIRECT_WAIT_SEC": 0})
def test_no_slot_in_time_is_unavailable_for_now() -> None:
    limits.sync_limits()
    running = executor.claim(job_services.enqueue(TYPE))
    response = ApiClient("submit").post("/direct/direct.echo", {"wait_sec": 30})
    assert response.status_code == 503
    assert int(response["Retry-After"]) >= 1
    assert response.json()["code"] == "no_slot"
    executor.complete(running)
    assert ApiClient("submit").post("/direct/direct.echo").status_code == 200


def test_it_is_in_the_document() -> None:
    described = ApiClient("read").get("/openapi.json").json()["paths"]["/api/direct/{job_type}"]["post"]
    assert {"200", "401", "403", "422", "502", "503"} <= set(described["responses"])
