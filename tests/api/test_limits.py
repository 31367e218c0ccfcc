"""Limits over HTTP: readable for every tenant, set with a token of all tenants."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import override_settings

from jobs.models import ConcurrencyLimit
from tests.factories import JobFactory
from tests.support.api_client import ApiClient, read_error_locations

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("limits_in_settings")]


@pytest.fixture
def limits_in_settings() -> Any:
    limits = {"global": 4, "job_type": {"tests.note": 2}, "tenant": {"ours": 3, "theirs": 1}}
    with override_settings(JOBSCHEDULER={"LIMITS": limits}):
        yield


@pytest.fixture
def operator() -> ApiClient:
    return ApiClient("admin", tenant=None)


def list_limits(api: ApiClient) -> dict[tuple[str, str], dict[str, Any]]:
    return {(limit["scope"], limit["key"]): limit for limit in api.get("/limits").json()["items"]}


def test_every_limit_is_listed_with_its_use() -> None:
    JobFactory.create_batch(2, running=True)
    JobFactory.create(running=True, tenant="ours", job_type="tests.anything")
    limits = list_limits(ApiClient("read", tenant=None))

    assert list(limits) == [("global", ""), ("job_type", "tests.note"), ("tenant", "ours"), ("tenant", "theirs")]
    assert limits["global", ""] == {
        "scope": "global",
        "key": "",
        "max": 4,
        "in_use": 3,
        "paused": False,
        "paused_by": "",
        "paused_at": None,
        "reason": "",
        "source": "settings",
        "rate": None,
        "token_rate": None,
        "burst": None,
        "next_start_at": None,
        "tokens_left": None,
    }
    assert [limit["in_use"] for limit in limits.values()] == [3, 2, 1, 0]


def test_the_list_pages_through_and_its_cursor_is_its_own(operator: ApiClient) -> None:
    for number in range(5):
        operator.put("/limits", {"scope": "resource", "key": f"pool {number}", "max": 1})
    keys = [(limit["scope"], limit["key"]) for limit in operator.list_all("/limits", 2)]
    assert keys == list(list_limits(operator))
    assert len(keys) == 9
    cursor = operator.get("/limits?limit=2").json()["next_cursor"]
    assert read_error_locations(operator.get(f"/job-types?cursor={cursor}")) == [["query", "cursor"]]
    assert read_error_locations(ApiClient("read").get(f"/limits?cursor={cursor}")) == [["query", "cursor"]]


def test_a_token_of_one_tenant_sees_the_limits_that_its_unfinished_jobs_are_under(operator: ApiClient) -> None:
    for scope, key in (("addon", "payments"), ("addon", "visuals"), ("resource", "gpu"), ("resource", "disk")):
        body = {"scope": scope, "key": key, "max": 3, "paused": True, "reason": "customer theirs is late"}
        assert operator.put("/limits", body).status_code == 200
    JobFactory.create(running=True, tenant="theirs", addon_id="payments", resource="gpu")
    ours = ApiClient("read", tenant="ours")
    assert list(list_limits(ours)) == [("global", ""), ("tenant", "ours")]
    JobFactory.create(running=True, tenant="ours", addon_id="visuals", resource="gpu", job_type="tests.anything")
    JobFactory.create(completed=True, tenant="ours", resource="disk")
    limits = list_limits(ours)
    assert list(limits) == [("global", ""), ("resource", "gpu"), ("tenant", "ours"), ("addon", "visuals")]
    assert [limit["in_use"] for limit in limits.values()] == [None, 2, 1, 1]
    assert all(
        limit["max"] == 3 and limit["paused"] for key, limit in limits.items() if key[0] in ("resource", "addon")
    )
    assert {(limit["paused_by"], limit["reason"]) for limit in limits.values()} == {("", "")}


def test_a_token_of_one_tenant_sees_who_paused_its_own_limit(operator: ApiClient) -> None:
    operator.put("/limits", {"scope": "tenant", "key": "ours", "paused": True, "reason": "unpaid"})
    limit = list_limits(ApiClient("read", tenant="ours"))["tenant", "ours"]
    assert (limit["paused_by"], limit["reason"]) == (operator.actor_name, "unpaid")


def test_a_limit_is_set_paused_unpaused_and_reset(operator: ApiClient) -> None:
    def put(**fields: Any) -> dict[str, Any]:
        response = operator.put("/limits", {"scope": "job_type", "key": "tests.note", **fields})
        assert response.status_code == 200, response.content
        document: dict[str, Any] = response.json()
        assert list_limits(operator)["job_type", "tests.note"] == document
        return document

    assert (put(max=7)["max"], put(max=7)["source"]) == (7, "override")
    assert put(max=None)["max"] is None
    paused = put(paused=True, reason="too hot")
    assert (paused["paused"], paused["paused_by"]) == (True, operator.actor_name)
    assert (paused["reason"], paused["max"]) == ("too hot", None)
    assert paused["paused_at"].endswith("Z")
    both = put(max=1, paused=False)
    assert (both["max"], both["paused"], both["paused_at"], both["reason"]) == (1, False, None, "")
    reset = put(reset=True)
    assert (reset["max"], reset["source"]) == (2, "settings")


def test_rates_are_set_beside_the_maximum_and_removed_again(operator: ApiClient) -> None:
    def put(**fields: Any) -> tuple[Any, ...]:
        response = operator.put("/limits", {"scope": "resource", "key": "openai", **fields})
        assert response.status_code == 200, response.content
        document = list_limits(operator).get(("resource", "openai"), response.json())
        assert document == response.json()
        return tuple(document[name] for name in ("max", "rate", "token_rate", "burst", "source"))

    assert put(max=8, rate="60 / Minute", token_rate="90000/m", burst=5) == (8, "60/min", "90000/min", 5, "override")
    assert put(max=None) == (None, "60/min", "90000/min", 5, "override")
    assert put(burst=None) == (None, "60/min", "90000/min", None, "override")
    assert put(burst=2) == (None, "60/min", "90000/min", 2, "override")
    assert put(rate=None) == (None, None, "90000/min", None, "override")
    assert put(reset=True) == (None, None, None, None, "settings")


def test_the_use_of_a_token_rate_is_shown_to_those_who_see_every_tenant(operator: ApiClient) -> None:
    JobFactory.create(running=True, tenant="ours", resource="openai")
    operator.put("/limits", {"scope": "resource", "key": "openai", "token_rate": "600/min"})
    ConcurrencyLimit.objects.update(token_level=-50.0, bucket_at="2100-01-01T00:00:00Z")
    limit = list_limits(operator)["resource", "openai"]
    assert limit["tokens_left"] == -50
    assert limit["next_start_at"].endswith("Z")
    shared = list_limits(ApiClient("read", tenant="ours"))["resource", "openai"]
    assert (shared["token_rate"], shared["tokens_left"], shared["next_start_at"]) == ("600/min", None, None)


def test_an_unknown_limit_is_created_and_reset_deletes_it(operator: ApiClient) -> None:
    assert operator.put("/limits", {"scope": "addon", "key": "new", "max": 5}).json()["source"] == "override"
    reset = operator.put("/limits", {"scope": "addon", "key": "new", "reset": True}).json()
    assert (reset["max"], reset["source"]) == (None, "settings")
    assert ("addon", "new") not in list_limits(operator)


def test_the_global_limit_has_no_key(operator: ApiClient) -> None:
    assert operator.put("/limits", {"scope": "global", "max": 9}).json()["max"] == 9
    assert operator.put("/limits", {"scope": "global", "key": "", "max": 8}).json()["max"] == 8
    assert operator.put("/limits", {"scope": "global", "key": None, "max": 7}).json()["max"] == 7


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        ({}, ["body", "scope"]),
        ({"scope": "planet", "key": "x", "max": 1}, ["body", "scope"]),
        ({"scope": ["global"], "max": 1}, ["body", "scope"]),
        ({"scope": "global", "key": "x", "max": 1}, ["body", "key"]),
        ({"scope": "resource", "max": 1}, ["body", "key"]),
        ({"scope": "resource", "key": "", "max": 1}, ["body", "key"]),
        ({"scope": "resource", "key": 5, "max": 1}, ["body", "key"]),
        ({"scope": "resource", "key": "x" * 201, "max": 1}, ["body", "key"]),
        ({"scope": "tenant", "key": "no spaces", "max": 1}, ["body", "key"]),
        ({"scope": "global", "max": 0}, ["body", "max"]),
        ({"scope": "global", "max": True}, ["body", "max"]),
        ({"scope": "global", "max": 1.5}, ["body", "max"]),
        ({"scope": "global", "max": 2**31}, ["body", "max"]),
        ({"scope": "global", "max": "3"}, ["body", "max"]),
        *(
            ({"scope": "global", name: value}, ["body", name])
            for name in ("rate", "token_rate")
            for value in ("", "60", "0/min", "60/week", 60, True, ["60/min"], "9" * 11 + "/s")
        ),
        ({"scope": "global", "burst": 5}, ["body", "burst"]),
        ({"scope": "global", "rate": "1/s", "burst": 0}, ["body", "burst"]),
        ({"scope": "global", "rate": "1/s", "burst": "5"}, ["body", "burst"]),
        ({"scope": "global", "rate": "1/s", "burst": 10**7}, ["body", "burst"]),
        ({"scope": "global", "rate": None, "burst": 5}, ["body", "burst"]),
        ({"scope": "global", "reset": True, "rate": "1/s"}, ["body", "reset"]),
        ({"scope": "global", "paused": 1}, ["body", "paused"]),
        ({"scope": "global", "max": 1, "reason": "x" * 2001}, ["body", "reason"]),
        ({"scope": "global", "max": 1, "reason": 5}, ["body", "reason"]),
        ({"scope": "global", "reset": "yes"}, ["body", "reset"]),
        ({"scope": "global", "reset": True, "max": 1}, ["body", "reset"]),
        ({"scope": "global", "reset": True, "paused": True}, ["body", "reset"]),
        ({"scope": "global"}, ["body"]),
        ({"scope": "global", "reset": False}, ["body"]),
        ({"scope": "global", "max": 1, "in_use": 0}, ["body", "in_use"]),
    ],
)
def test_a_wrong_field_is_named_and_nothing_changes(operator: ApiClient, body: dict[str, Any], loc: list[Any]) -> None:
    assert read_error_locations(operator.put("/limits", body)) == [loc]
    assert not ConcurrencyLimit.objects.exists()


def test_setting_a_limit_requires_admin_and_all_tenants() -> None:
    body = {"scope": "global", "max": 2}
    assert ApiClient("read", "submit", "operate", "work", tenant=None).put("/limits", body).status_code == 403
    assert ApiClient("admin", tenant="default").put("/limits", body).status_code == 403
    assert not ConcurrencyLimit.objects.exists()
    assert ApiClient("submit").get("/limits").status_code == 403
