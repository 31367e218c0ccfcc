"""POST /api/direct/{job_type}."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import override_settings
from django.utils import timezone

from jobs.engine.selection import limits
from jobs.models import Lease
from jobs.services import jobs as job_services
from jobs.services import tokens
from tests.dispatch import handlers
from tests.factories import LeaseFactory
from tests.sample_app import job_types
from tests.support import executor
from tests.support.admin_users import create_reader, log_in
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
    assert {(row.tenant, row.owner, row.outcome) for row in Lease.objects.all()} == {
        ("acme", api.actor_name, "completed")
    }


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


def test_the_words_of_a_handler_are_payload_and_its_secrets_are_masked() -> None:
    params = {"text": "QUOTED", "password": "hunter2hunter2"}
    readers = [log_in(create_reader("plain", "add_job")), log_in(create_reader("trusted", "add_job", "view_payload"))]
    for ending in ("raise", "skip"):
        body = {"params": {**params, "ending": ending}}
        texts = [
            reader.post("/api/direct/sample.quote", body, content_type="application/json").content.decode()
            for reader in readers
        ]
        assert ["QUOTED" in text for text in texts] == [False, True], ending
        assert "hunter2" not in "".join([*texts, *Lease.objects.values_list("outcome", flat=True)])


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
    assert {"200", "401", "403", "409", "422", "502", "503", "504"} <= set(described["responses"])


def test_a_handler_that_runs_too_long_is_a_gateway_timeout() -> None:
    response = ApiClient("submit").post("/direct/direct.patient")
    assert (response.status_code, response.json()["code"]) == (504, "handler_timed_out")
    assert response["Content-Type"] == "application/problem+json"
    assert "0.2 s" in response.json()["detail"]


def test_a_type_that_is_not_for_direct_calls_is_refused_and_job_types_tell_which_are() -> None:
    response = ApiClient("submit").post("/direct/direct.private")
    assert read_error_locations(response) == [["path", "job_type"]]
    assert response.json()["code"] == "not_direct"
    assert "direct=True" in response.json()["detail"]
    listed = {item["name"]: item["direct"] for item in ApiClient("read").list_all("/job-types", 500)}
    assert (listed["direct.echo"], listed["direct.private"]) == (True, False)
    assert not any(direct for name, direct in listed.items() if name.startswith("system."))


@override_settings(JOBSCHEDULER={"LIMITS": {"global": None}, "DIRECT_PER_TOKEN": 1})
def test_a_token_with_too_many_calls_is_unavailable_for_now_and_another_is_not() -> None:
    limits.sync_limits()
    busy, idle = ApiClient("submit"), ApiClient("submit")
    token = tokens.find(busy.headers["Authorization"].removeprefix("Bearer "))
    assert token is not None
    LeaseFactory.create(kind="DIRECT", api_token=token.pk)
    response = busy.post("/direct/direct.echo")
    assert (response.status_code, response.json()["code"]) == (503, "no_slot")
    assert "DIRECT_PER_TOKEN" in response.json()["detail"]
    assert int(response["Retry-After"]) >= 1
    assert idle.post("/direct/direct.echo").status_code == 200


def test_live_calls_are_listed_by_tenant_and_ended_with_the_scope_operate() -> None:
    ours = LeaseFactory.create(kind="DIRECT", tenant="ours", owner="robot")
    theirs = LeaseFactory.create(kind="DIRECT", tenant="theirs")
    LeaseFactory.create(tenant="ours")
    reader, operator = ApiClient("read", tenant="ours"), ApiClient("operate", tenant="ours")
    (item,) = reader.get("/direct").json()["items"]
    assert (item["id"], item["owner"], item["granted_at"], item["ended_at"]) == (str(ours.pk), "robot", None, None)
    assert len(ApiClient("read", tenant=None).list_all("/direct", 1)) == 2

    assert reader.post(f"/direct/{ours.pk}/end").status_code == 403
    assert operator.post(f"/direct/{theirs.pk}/end").status_code == 404
    assert operator.post("/direct/no-id/end").status_code == 404
    ended = operator.post(f"/direct/{ours.pk}/end", {"reason": "too slow"})
    assert (ended.status_code, ended.json()["outcome"]) == (200, f"ended by {operator.actor_name}: too slow")
    again = operator.post(f"/direct/{ours.pk}/end")
    assert (again.status_code, again.json()["code"]) == (409, "wrong_state")
    assert reader.get("/direct").json()["items"] == []
    theirs.refresh_from_db()
    assert theirs.ended_at is None


def test_an_operator_of_the_console_may_end_a_call_through_the_api_and_a_viewer_may_not() -> None:
    call = LeaseFactory.create(kind="DIRECT")
    viewer, operator = log_in(create_reader("viewer")), log_in(create_reader("operator", "end_lease"))
    assert viewer.get("/api/direct").status_code == 200
    assert viewer.post(f"/api/direct/{call.pk}/end").status_code == 403
    assert operator.post(f"/api/direct/{call.pk}/end").status_code == 200
    call.refresh_from_db()
    assert call.outcome == "ended by operator"


def test_the_refusal_to_end_a_call_that_is_over_does_not_quote_its_handler() -> None:
    call = LeaseFactory.create(kind="DIRECT", ended_at=timezone.now(), outcome="failed: ValueError: QUOTED")
    operator = log_in(create_reader("operator", "end_lease"))
    response = operator.post(f"/api/direct/{call.pk}/end")
    assert (response.status_code, response.json()["detail"]) == (409, "This direct call is over: failed.")
    assert "QUOTED" not in response.content.decode()
