"""Templates over HTTP: created, edited, run and deleted."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from jobs.models import Job, JobTemplate
from jobs.redaction import MASK
from jobs.services import jobs as job_services
from tests.factories import SAMPLE_TYPE, JobFactory, JobTemplateFactory, ScheduleFactory
from tests.sample_app import job_types
from tests.support.api_client import ApiClient, read_error_locations

pytestmark = pytest.mark.django_db
ANYTHING_TYPE = job_types.anything.name
FULL_TEMPLATE: dict[str, Any] = {
    "name": "nightly",
    "job_type": ANYTHING_TYPE,
    "params": {"pages": 3, "paper": "A4"},
    "retry_policy": {"max_attempts": 2, "base_sec": 1.5, "backoff": 3, "max_sec": 60, "jitter": 0.5},
    "priority": "HIGH",
    "resource": "printer",
    "target": "book-1",
    "max_runtime_sec": 60,
    "token_limit": 100,
    "cost_units": 5,
    "tags": ["night"],
}


def create_template(api: ApiClient, **fields: Any) -> dict[str, Any]:
    response = api.post("/job-templates", {**FULL_TEMPLATE, **fields})
    assert response.status_code == 201, response.content
    document: dict[str, Any] = response.json()
    return document


def test_a_template_is_created_with_the_submitted_fields() -> None:
    template = create_template(ApiClient())
    assert {name: template[name] for name in FULL_TEMPLATE} == {**FULL_TEMPLATE, "priority": 75}
    assert template["tenant"] == "default"
    assert JobTemplate.objects.get().name == "nightly"


def test_absent_fields_of_a_template_are_null() -> None:
    response = ApiClient().post("/job-templates", {"name": "bare", "job_type": SAMPLE_TYPE})
    template = response.json()
    nullable = ("priority", "resource", "target", "max_runtime_sec", "token_limit", "cost_units")
    assert [template[name] for name in nullable] == [None] * len(nullable)
    assert template["retry_policy"] == dict.fromkeys(("max_attempts", "base_sec", "backoff", "max_sec", "jitter"))
    assert (template["params"], template["tags"]) == ({}, [])


def test_reading_requires_read_and_everything_else_admin() -> None:
    template = create_template(ApiClient())
    for scopes, status in ((("read",), 200), (("submit", "operate", "work"), 403)):
        assert ApiClient(*scopes).get(f"/job-templates/{template['id']}").status_code == status
        assert ApiClient(*scopes).get("/job-templates").status_code == status
    for scope in ("read", "submit", "operate", "work"):
        api = ApiClient(scope)
        assert api.post("/job-templates", FULL_TEMPLATE).status_code == 403
        assert api.patch(f"/job-templates/{template['id']}", {}).status_code == 403
        assert api.delete(f"/job-templates/{template['id']}").status_code == 403
        assert api.post(f"/job-templates/{template['id']}/run").status_code == (201 if scope == "submit" else 403)


@pytest.mark.parametrize(
    ("fields", "loc"),
    [
        ({"name": None}, ["body", "name"]),
        ({"name": ""}, ["body", "name"]),
        ({"name": "x" * 201}, ["body", "name"]),
        ({"name": "two\nlines"}, ["body", "name"]),
        ({"job_type": None}, ["body", "job_type"]),
        ({"job_type": "unknown.type"}, ["body", "job_type"]),
        ({"params": []}, ["body", "params"]),
        ({"params": {"a": "\ud800"}}, ["body"]),
        ({"retry_policy": {"max_attempts": -1}}, ["body", "retry_policy", "max_attempts"]),
        ({"retry_policy": {"max_attempts": True}}, ["body", "retry_policy", "max_attempts"]),
        ({"retry_policy": {"sleep": 1}}, ["body", "retry_policy", "sleep"]),
        ({"retry_policy": {"jitter": 1.5}}, ["body", "retry_policy", "jitter"]),
        ({"retry_policy": []}, ["body", "retry_policy"]),
        ({"priority": 101}, ["body", "priority"]),
        ({"priority": "SOON"}, ["body", "priority"]),
        ({"target": "a/b"}, ["body", "target"]),
        ({"max_runtime_sec": 0}, ["body", "max_runtime_sec"]),
        ({"token_limit": -1}, ["body", "token_limit"]),
        ({"cost_units": 101}, ["body", "cost_units"]),
        ({"tags": ["x"] * 33}, ["body", "tags"]),
        ({"tags": "x"}, ["body", "tags"]),
        ({"status": "RUNNING"}, ["body", "status"]),
        ({"id": str(uuid4())}, ["body", "id"]),
    ],
)
def test_a_wrong_field_is_named_and_nothing_is_stored(fields: dict[str, Any], loc: list[Any]) -> None:
    response = ApiClient().post("/job-templates", {**FULL_TEMPLATE, **fields})
    assert read_error_locations(response)[0][: len(loc)] == loc
    assert not JobTemplate.objects.exists()


def test_params_may_be_incomplete_but_not_wrong() -> None:
    api = ApiClient()
    assert api.post("/job-templates", {"name": "a", "job_type": SAMPLE_TYPE, "params": {"times": 2}}).status_code == 201
    response = api.post("/job-templates", {"name": "b", "job_type": SAMPLE_TYPE, "params": {"times": "2"}})
    assert read_error_locations(response) == [["body", "params", "times"]]
    template = JobTemplate.objects.get()
    assert read_error_locations(api.patch(f"/job-templates/{template.pk}", {"params": {"nope": 1}})) == [
        ["body", "params", "nope"]
    ]
    assert read_error_locations(api.post(f"/job-templates/{template.pk}/run")) == [["body", "params", "text"]]


def test_a_name_is_unique_in_a_tenant() -> None:
    all_tenants = ApiClient(tenant=None)
    create_template(all_tenants)
    assert all_tenants.post("/job-templates", FULL_TEMPLATE).json()["code"] == "name_taken"
    assert all_tenants.post("/job-templates", FULL_TEMPLATE).status_code == 409
    assert create_template(all_tenants, tenant="other")["tenant"] == "other"
    second = create_template(all_tenants, name="second")
    renamed = all_tenants.patch(f"/job-templates/{second['id']}", {"name": "nightly"})
    assert (renamed.status_code, renamed.json()["code"]) == (409, "name_taken")


def test_an_edit_changes_the_named_fields_and_null_clears() -> None:
    api = ApiClient()
    template = create_template(api)
    edited = api.patch(
        f"/job-templates/{template['id']}",
        {"priority": None, "resource": None, "target": None, "tags": None, "retry_policy": None, "cost_units": 7},
    ).json()
    assert edited["priority"] is edited["resource"] is edited["target"] is None
    assert (edited["tags"], edited["cost_units"], edited["name"]) == ([], 7, "nightly")
    assert edited["retry_policy"]["max_attempts"] is None
    assert edited["params"] == FULL_TEMPLATE["params"]
    assert read_error_locations(api.patch(f"/job-templates/{template['id']}", {"name": None})) == [["body", "name"]]
    assert read_error_locations(api.patch(f"/job-templates/{template['id']}", {"tenant": "x"})) == [["body", "tenant"]]


def test_a_secret_is_masked_and_kept_when_it_comes_back_masked() -> None:
    api = ApiClient()
    template = create_template(api, params={"password": "hush", "pages": 3})
    assert template["params"] == {"password": MASK, "pages": 3}
    path = f"/job-templates/{template['id']}"
    assert api.patch(path, {"params": template["params"], "priority": "LOW"}).status_code == 200
    changed = api.patch(path, {"params": {**template["params"], "pages": 4}})
    assert read_error_locations(changed) == [["body", "params", "password"]]
    assert JobTemplate.objects.get().params == {"password": "hush", "pages": 3}
    written_again = {"password": "hush", "pages": 4}
    assert api.patch(path, {"params": written_again}).status_code == 200
    assert JobTemplate.objects.get().params == written_again
    copied = api.post("/job-templates", {**FULL_TEMPLATE, "name": "copy", "params": template["params"]})
    assert read_error_locations(copied) == [["body", "params", "password"]]


def test_a_run_merges_params_key_by_key_and_lets_a_submission_win() -> None:
    api = ApiClient()
    template = create_template(api)
    response = api.post(
        f"/job-templates/{template['id']}/run", {"params": {"pages": 5}, "priority": 10, "tags": ["now"]}
    )
    job = response.json()

    assert response.status_code == 201
    assert job["params"] == {"pages": 5, "paper": "A4"}
    assert (job["priority"], job["tags"], job["resource"]) == (10, ["now"], "printer")
    assert (job["target"], job["token_limit"], job["cost_units"], job["max_retries"]) == ("book-1", 100, 5, 2)
    assert job["template"] == "nightly"
    assert JobTemplate.objects.get().params == FULL_TEMPLATE["params"]


def test_a_run_needs_no_body() -> None:
    api = ApiClient()
    template = create_template(api)
    assert api.post(f"/job-templates/{template['id']}/run").json()["params"] == FULL_TEMPLATE["params"]


@pytest.mark.parametrize(
    "body",
    [{"job_type": "x"}, {"template": "x"}, {"tenant": "default"}, {"status": "RUNNING"}, {"lease_token": "x"}],
)
def test_a_run_cannot_override_the_type_template_or_tenant(body: dict[str, Any]) -> None:
    api = ApiClient()
    template = create_template(api)
    assert read_error_locations(api.post(f"/job-templates/{template['id']}/run", body)) == [["body", *body]]
    assert not Job.objects.exists()


def test_a_run_with_a_key_is_made_once() -> None:
    api = ApiClient()
    path = f"/job-templates/{create_template(api)['id']}/run"
    first = api.post(path, {"params": {"pages": 1}}, **{"Idempotency-Key": "k1"})
    replay = api.post(path, {"params": {"pages": 1}}, **{"Idempotency-Key": "k1"})
    by_field = api.post(path, {"params": {"pages": 1}, "idempotency_key": "k1"})
    other = api.post(path, {"params": {"pages": 2}}, **{"Idempotency-Key": "k1"})

    assert "Idempotent-Replayed" not in first
    assert replay["Idempotent-Replayed"] == by_field["Idempotent-Replayed"] == "true"
    assert first.json()["id"] == replay.json()["id"] == by_field.json()["id"]
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_key_reused")
    assert Job.objects.count() == 1


def test_a_template_in_use_cannot_be_deleted() -> None:
    api = ApiClient()
    template = create_template(api)
    job = api.post(f"/job-templates/{template['id']}/run").json()
    refused = api.delete(f"/job-templates/{template['id']}")
    assert (refused.status_code, refused.json()["code"]) == (409, "in_use")

    job_services.cancel(job["id"])
    assert api.delete(f"/job-templates/{template['id']}").status_code == 204
    assert Job.objects.get().template is None
    assert api.get(f"/job-templates/{template['id']}").status_code == 404


def test_a_template_of_a_schedule_cannot_be_deleted() -> None:
    template = JobTemplateFactory.create()
    ScheduleFactory(template=template, job_type="")
    refused = ApiClient().delete(f"/job-templates/{template.pk}")
    assert (refused.status_code, refused.json()["code"]) == (409, "in_use")
    assert "schedule" in refused.json()["detail"]


@pytest.mark.parametrize("status", ["pending", "queued", "dispatching", "running", "paused"])
def test_a_template_of_a_live_job_cannot_be_deleted(status: str) -> None:
    template = JobTemplateFactory.create()
    JobFactory.create(template=template, **{status: True})
    assert ApiClient().delete(f"/job-templates/{template.pk}").status_code == 409


def test_another_tenants_template_is_404() -> None:
    foreign = JobTemplateFactory.create(tenant="theirs")
    api = ApiClient()
    absent = api.get(f"/job-templates/{uuid4()}")
    for path in (f"/job-templates/{foreign.pk}", "/job-templates/nonsense", f"/job-templates/{foreign.pk}"):
        response = api.get(path)
        assert (response.status_code, response.content) == (404, absent.content)
    assert api.patch(f"/job-templates/{foreign.pk}", {"priority": 1}).status_code == 404
    assert api.delete(f"/job-templates/{foreign.pk}").status_code == 404
    assert api.post(f"/job-templates/{foreign.pk}/run").status_code == 404
    assert api.get("/job-templates").json()["items"] == []
    assert api.get("/job-templates?tenant=theirs").json()["items"] == []
    assert api.post("/job-templates", {**FULL_TEMPLATE, "tenant": "theirs"}).status_code == 403
    assert len(ApiClient(tenant=None).get("/job-templates?tenant=theirs").json()["items"]) == 1


def test_the_list_is_newest_first_and_pages_through() -> None:
    names = [JobTemplateFactory.create().name for _ in range(7)]
    assert [template["name"] for template in ApiClient().list_all("/job-templates", 3)] == names[::-1]
    assert [template["name"] for template in ApiClient().get(f"/job-templates?name={names[2]}").json()["items"]] == [
        names[2]
    ]
    assert ApiClient().get("/job-templates?job_type=none").json() == {"items": [], "next_cursor": None}
    assert ApiClient().get("/job-templates?colour=red").status_code == 422


def test_an_unchanged_template_need_not_be_sent_again() -> None:
    api = ApiClient()
    path = f"/job-templates/{create_template(api)['id']}"
    tag = api.get(path)["ETag"]
    assert api.get(path, **{"If-None-Match": tag}).status_code == 304
    api.patch(path, {"cost_units": 9})
    assert api.get(path, **{"If-None-Match": tag}).status_code == 200
