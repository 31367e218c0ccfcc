"""Groups over HTTP: the same services behind tokens, tenants and problem+json."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.models import JobGroup
from jobs.services import groups
from jobs.services import jobs as job_services
from tests.support import executor
from tests.support.api_client import ApiClient, read_error_locations
from tests.support.snapshots import dump_tables

pytestmark = pytest.mark.django_db

ITEM = {"job_type": "sample.noop"}


def create_group(api: ApiClient, **fields: Any) -> dict[str, Any]:
    answer = api.post("/job-groups", {"jobs": [ITEM, ITEM], **fields})
    assert answer.status_code == 201, answer.content
    document: dict[str, Any] = answer.json()
    return document


def test_a_group_is_answered_with_its_jobs_and_its_progress() -> None:
    group = create_group(ApiClient("submit", "read"), name="book", mode="sequential", on_failure="skip")
    assert (group["name"], group["mode"], group["on_failure"], group["status"]) == (
        "book",
        "sequential",
        "skip",
        "PENDING",
    )
    assert [(job["group_index"], job["status"], job["group_id"]) for job in group["jobs"]] == [
        (0, "QUEUED", group["id"]),
        (1, "PENDING", group["id"]),
    ]
    assert group["progress"] == {"total": 2, "by_status": {"QUEUED": 1, "PENDING": 1}}
    assert ApiClient("read").get(f"/job-groups/{group['id']}").json() == group


def test_a_group_that_has_not_changed_is_not_sent_again() -> None:
    api = ApiClient()
    group = create_group(api)
    first = api.get(f"/job-groups/{group['id']}")
    assert api.get(f"/job-groups/{group['id']}", **{"If-None-Match": first["ETag"]}).status_code == 304


def test_the_job_of_a_place_is_the_last_of_its_retries() -> None:
    api = ApiClient()
    group = create_group(api)
    first = groups.get_latest_attempts(group["id"])[0]
    executor.fail(executor.claim(first))
    again = job_services.retry(first.pk)
    assert api.get(f"/job-groups/{group['id']}").json()["jobs"][0]["id"] == str(again.pk)


def test_only_so_many_jobs_are_shown_and_the_rest_is_in_the_list() -> None:
    api = ApiClient()
    group = create_group(api, jobs=[ITEM] * 201)
    assert (len(group["jobs"]), group["progress"]["total"]) == (200, 201)
    assert len(api.list_all(f"/jobs?group={group['id']}", 100)) == 201


def test_groups_are_listed_newest_first_page_by_page_in_few_statements(django_assert_max_num_queries: Any) -> None:
    api = ApiClient()
    ids = [create_group(api)["id"] for _ in range(5)]
    with django_assert_max_num_queries(8):
        listed = api.get("/job-groups?limit=3").json()
    assert [item["id"] for item in listed["items"]] == ids[:1:-1]
    assert [group["id"] for group in api.list_all("/job-groups", 2)] == ids[::-1]
    groups.cancel(ids[0])
    assert [group["id"] for group in api.list_all("/job-groups?status=CANCELLED", 2)] == ids[:1]


def test_verbs_answer_with_the_group_as_it_is_now() -> None:
    api = ApiClient("operate")
    group = create_group(ApiClient("submit"))
    cancelled = api.post(f"/job-groups/{group['id']}/cancel", {"reason": "no need"})
    assert (cancelled.status_code, cancelled.json()["status"]) == (200, "CANCELLED")
    refused = api.post(f"/job-groups/{group['id']}/cancel")
    assert (refused.status_code, refused.json()["code"]) == (409, "wrong_state")
    assert (refused.json()["state"], refused.json()["allowed"]) == ("CANCELLED", ["retry"])
    retried = api.post(f"/job-groups/{group['id']}/retry")
    assert (retried.status_code, retried.json()["status"], retried.json()["round"]) == (200, "RUNNING", 2)


def test_a_group_of_another_tenant_is_not_there() -> None:
    theirs = groups.create([ITEM], tenant="acme")
    api = ApiClient()
    absent = "01a1e326-2d3f-7874-ad8c-79793630013e"
    for path in ("", "/cancel", "/retry"):
        ask = api.get if not path else api.post
        foreign, unknown = ask(f"/job-groups/{theirs.pk}{path}"), ask(f"/job-groups/{absent}{path}")
        assert (foreign.status_code, unknown.status_code) == (404, 404)
        assert foreign.json()["code"] == unknown.json()["code"]
    assert api.list_all("/job-groups", 50) == []
    assert api.post("/job-groups", {"jobs": [ITEM], "tenant": "acme"}).status_code == 403
    assert create_group(ApiClient(tenant=None), tenant="acme")["tenant"] == "acme"


def test_a_group_that_is_submitted_again_is_answered_with_the_first() -> None:
    api = ApiClient()
    jobs = [{**ITEM, "idempotency_key": key} for key in ("a", "b")]
    assert create_group(api, jobs=jobs)["id"] == create_group(api, jobs=jobs)["id"]
    reused = api.post("/job-groups", {"jobs": jobs[:1]})
    assert (reused.status_code, reused.json()["code"]) == (409, "idempotency_key_reused")
    assert JobGroup.objects.count() == 1


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({}, ["body", "jobs"]),
        ({"jobs": None}, ["body", "jobs"]),
        ({"jobs": []}, ["body", "jobs"]),
        ({"jobs": {}}, ["body", "jobs"]),
        ({"jobs": [7]}, ["body", "jobs", 0]),
        ({"jobs": [{"job_type": "no.such"}]}, ["body", "jobs", 0, "job_type"]),
        ({"jobs": [{**ITEM, "tenant": "default"}]}, ["body", "jobs", 0, "tenant"]),
        ({"jobs": [{**ITEM, "status": "COMPLETED"}]}, ["body", "jobs", 0, "status"]),
        ({"jobs": [ITEM], "status": "COMPLETED"}, ["body", "status"]),
        ({"jobs": [ITEM], "mode": "zigzag"}, ["body", "mode"]),
        ({"jobs": [ITEM], "mode": ["sequential"]}, ["body", "mode"]),
        ({"jobs": [ITEM], "on_failure": 1}, ["body", "on_failure"]),
        ({"jobs": [ITEM], "on_failure": "stop"}, ["body", "on_failure"]),
        ({"jobs": [ITEM], "name": {"a": 1}}, ["body", "name"]),
    ],
)
def test_a_body_that_makes_no_sense_names_its_field_and_changes_nothing(body: Any, place: list[Any]) -> None:
    api = ApiClient()
    before = all_but_tokens()
    assert read_error_locations(api.post("/job-groups", body))[0] == place
    assert all_but_tokens() == before


def all_but_tokens() -> dict[str, Any]:
    """A token keeps when it was last used."""
    return {model: rows for model, rows in dump_tables().items() if model != "ApiToken"}


def test_an_unknown_filter_or_status_is_refused() -> None:
    api = ApiClient()
    assert read_error_locations(api.get("/job-groups?status=HAPPY")) == [["query", "status"]]
    assert read_error_locations(api.get("/job-groups?colour=red")) == [["query", "colour"]]


def test_a_group_is_submitted_with_a_final_job() -> None:
    group = create_group(ApiClient("submit", "read"), then=ITEM, on_failure="skip")
    assert (group["then_index"], group["on_failure"]) == (2, "skip")
    assert [job["status"] for job in group["jobs"]] == ["QUEUED", "QUEUED", "PENDING"]
    assert create_group(ApiClient("submit", "read"))["then_index"] is None


@pytest.mark.parametrize(
    ("then", "location"),
    [
        ("sample.noop", ["body", "then"]),
        ([ITEM], ["body", "then"]),
        ({"jobs": [ITEM]}, ["body", "then", "job_type"]),
        ({**ITEM, "unique_key": "k"}, ["body", "then", "unique_key"]),
        ({**ITEM, "tenant": "acme"}, ["body", "then", "tenant"]),
    ],
)
def test_a_wrong_final_job_is_refused_by_its_field(then: Any, location: list[str]) -> None:
    api = ApiClient("submit")
    before = all_but_tokens()
    assert read_error_locations(api.post("/job-groups", {"jobs": [ITEM], "then": then})) == [location]
    assert all_but_tokens() == before
