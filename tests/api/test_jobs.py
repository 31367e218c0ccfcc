"""Submit, read and edit jobs over HTTP."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import override_settings

from jobs.api.job_schemas import JobOut, JobRunOut, LeaseOut
from jobs.models import Job, JobEvent
from jobs.redaction import MASK
from jobs.states import Status
from tests.factories import SAMPLE_TYPE, JobFactory, JobLogFactory, JobTemplateFactory, job_in
from tests.sample_app import job_types
from tests.support.admin_users import create_reader, log_in
from tests.support.api_client import ApiClient, read_error_locations
from tests.support.snapshots import dump_tables, list_event_kinds

pytestmark = pytest.mark.django_db
assert job_types.note.name == SAMPLE_TYPE  # the import registers its job types

NOTE: dict[str, Any] = {"job_type": "tests.note", "params": {"text": "x"}}


@pytest.fixture
def api() -> ApiClient:
    return ApiClient("admin")


def test_a_submission_answers_with_the_whole_job(api: ApiClient) -> None:
    response = api.post("/jobs", NOTE)
    assert response.status_code == 201
    job = Job.objects.get()
    document = response.json()
    assert document == api.get(f"/jobs/{job.pk}").json()
    assert document["id"] == str(job.pk)
    assert (document["status"], document["params"], document["run"], document["lease"]) == (
        "QUEUED",
        {"text": "x"},
        None,
        None,
    )
    assert document["created_at"].endswith("Z")


def test_every_field_of_a_submission_is_stored_and_shown(api: ApiClient) -> None:
    fields = {
        **NOTE,
        "tenant": "default",
        "target": "book-1",
        "addon_id": "tool",
        "priority": 80,
        "position": "-5",
        "not_before": "2030-01-01T00:00:00Z",
        "deadline_at": "2030-01-02T00:00:00Z",
        "time_sensitive": True,
        "expected_duration_sec": 1.5,
        "max_runtime_sec": 60.0,
        "cost_units": 7,
        "constraints": {"cpu_heavy": True},
        "resource": "gpu",
        "token_limit": 100,
        "max_retries": 9,
        "tags": ["a", "b"],
        "idempotency_key": "k",
        "hold": True,
    }
    document = api.post("/jobs", fields).json()
    assert {name: document[name] for name in fields} == fields
    assert document["status"] == "PENDING"


def test_a_position_is_sent_as_a_number_or_as_text_and_shown_as_text(api: ApiClient) -> None:
    first, second = (api.post("/jobs", {**NOTE, "position": position}).json() for position in (2**60 + 1, str(2**60)))
    assert (first["position"], second["position"]) == ("1152921504606846977", "1152921504606846976")
    assert [job["id"] for job in api.get("/jobs?order=queue").json()["items"]] == [second["id"], first["id"]]
    moved = api.post(f"/jobs/{first['id']}/move", {"to": "top"}).json()
    (event,) = (e for e in api.get(f"/jobs/{first['id']}/events").json()["items"] if e["kind"] == "MOVED")
    assert event["data"] == {"from": first["position"], "to": moved["position"]}


def test_names_of_priorities_and_other_offsets_are_understood(api: ApiClient) -> None:
    document = api.post("/jobs", {**NOTE, "priority": "high", "not_before": "2030-01-01T01:00:00+01:00"}).json()
    assert (document["priority"], document["not_before"]) == (75, "2030-01-01T00:00:00Z")


def test_null_is_the_same_as_an_absent_field(api: ApiClient) -> None:
    nulls = dict.fromkeys(("target", "priority", "tags", "template", "hold", "constraints", "tenant"))
    document = api.post("/jobs", {**NOTE, **nulls}).json()
    assert (document["target"], document["priority"], document["tags"], document["hold"]) == (None, 50, [], False)


def test_a_template_is_named_and_shown(api: ApiClient) -> None:
    JobTemplateFactory.create(name="mine", params={"text": "t"}, priority=5)
    JobTemplateFactory.create(name="theirs", tenant="acme")
    document = api.post("/jobs", {"template": "mine", "params": {"times": 2}}).json()
    assert (document["template"], document["params"], document["priority"]) == ("mine", {"text": "t", "times": 2}, 5)
    assert read_error_locations(api.post("/jobs", {"template": "theirs"})) == [["body", "template"]]


def test_the_submitter_is_in_the_events(api: ApiClient) -> None:
    job_id = api.post("/jobs", NOTE).json()["id"]
    (event,) = api.get(f"/jobs/{job_id}/events").json()["items"]
    assert (event["kind"], event["actor"]) == ("SUBMITTED", {"kind": "token", "name": api.actor_name})
    boss = log_in(User.objects.create_superuser("boss"))
    job_id = boss.post("/api/jobs", NOTE, content_type="application/json").json()["id"]
    (event,) = api.get(f"/jobs/{job_id}/events").json()["items"]
    assert event["actor"] == {"kind": "user", "name": "boss"}


def test_a_token_of_one_tenant_submits_into_it_and_nowhere_else() -> None:
    api = ApiClient("submit", "read", tenant="acme")
    assert api.post("/jobs", NOTE).json()["tenant"] == "acme"
    assert api.post("/jobs", {**NOTE, "tenant": "acme"}).status_code == 201
    before = dump_tables()
    assert api.post("/jobs", {**NOTE, "tenant": "default"}).status_code == 403
    assert api.post("/jobs/bulk", {"jobs": [NOTE, {**NOTE, "tenant": "default"}]}).status_code == 403
    assert dump_tables() == before


def test_a_token_of_all_tenants_names_the_tenant() -> None:
    api = ApiClient("submit", tenant=None)
    assert api.post("/jobs", NOTE).json()["tenant"] == "default"
    assert api.post("/jobs", {**NOTE, "tenant": "acme"}).json()["tenant"] == "acme"


def test_bulk_is_all_or_nothing(api: ApiClient) -> None:
    document = api.post("/jobs/bulk", {"jobs": [{**NOTE, "priority": n} for n in range(5)]}).json()
    assert document["count"] == 5
    assert [Job.objects.get(pk=job_id).priority for job_id in document["ids"]] == list(range(5))
    refused = api.post("/jobs/bulk", {"jobs": [NOTE] * 5 + [{"job_type": "tests.unknown"}]})
    assert read_error_locations(refused) == [["body", "jobs", 5, "job_type"]]
    assert Job.objects.count() == 5
    assert api.post("/jobs/bulk", {"jobs": []}).json() == {"count": 0, "ids": []}


def test_bulk_has_its_own_limits(api: ApiClient) -> None:
    with override_settings(JOBSCHEDULER={"API_BULK_LIMIT": 2, "MAX_BODY_BYTES": 1024, "BULK_BODY_BYTES": 4096}):
        assert read_error_locations(api.post("/jobs/bulk", {"jobs": [NOTE] * 3})) == [["body", "jobs"]]
        long = {**NOTE, "params": {"text": "x" * 900}}
        assert api.post("/jobs/bulk", {"jobs": [long] * 2}).status_code == 201
        assert api.post("/jobs/bulk", {"jobs": [long] * 5}).status_code == 413


def test_bulk_honours_keys_per_entry(api: ApiClient) -> None:
    first = api.post("/jobs/bulk", {"jobs": [{**NOTE, "idempotency_key": "a"}]}).json()["ids"]
    second = api.post("/jobs/bulk", {"jobs": [{**NOTE, "idempotency_key": "a"}, NOTE]}).json()["ids"]
    assert second[0] == first[0]
    assert Job.objects.count() == 2


@pytest.mark.parametrize("status", list(Status))
def test_a_job_in_any_state_has_the_documented_fields_and_no_others(api: ApiClient, status: Status) -> None:
    job = job_in(status, target="book-1")
    document = api.get(f"/jobs/{job.pk}").json()
    assert set(document) == set(JobOut.model_fields) - {"truncated"}
    assert document["run"] is None or set(document["run"]) == set(JobRunOut.model_fields) - {"truncated"}
    assert document["lease"] is None or set(document["lease"]) == set(LeaseOut.model_fields)
    assert document["status"] == (Status.QUEUED if status == Status.DISPATCHING else status)
    assert (document["run"] is None) == (not hasattr(Job.objects.get(pk=job.pk), "run"))


def test_a_retry_chain_is_linked_both_ways(api: ApiClient) -> None:
    failed = job_in(Status.FAILED)
    follower = JobFactory.create(retry_of=failed, attempt=2)
    document = api.get(f"/jobs/{failed.pk}").json()
    assert (document["retried_by"], document["permanently_failed"]) == (str(follower.pk), False)
    assert api.get(f"/jobs/{follower.pk}").json()["retry_of"] == str(failed.pk)
    assert api.get(f"/jobs/{job_in(Status.FAILED).pk}").json()["permanently_failed"] is True


def test_secrets_are_masked_everywhere(api: ApiClient) -> None:
    params = {"text": "x", "Password": "geheim", "deep": [{"token": "geheim"}]}
    job = JobFactory.create(completed=True, params=params, run__artifacts={"api_key": "geheim"})
    assert job.run.artifacts == {"api_key": "geheim"}
    for path in (f"/jobs/{job.pk}", "/jobs", f"/job-runs/{job.pk}", "/job-runs"):
        assert "geheim" not in api.get(path).content.decode(), path


def test_an_edit_changes_the_named_fields_and_nothing_else(api: ApiClient) -> None:
    job = JobFactory.create(target="book-1", tags=["a"])
    before = api.get(f"/jobs/{job.pk}").json()
    fields = {"priority": "URGENT", "target": None, "tags": ["b"], "not_before": "2030-01-01T00:00:00Z"}
    document = api.patch(f"/jobs/{job.pk}", fields).json()
    assert document == {**before, **fields, "priority": 100}
    assert api.patch(f"/jobs/{job.pk}", {"not_before": None}).json()["not_before"] is None
    assert list_event_kinds(job)[-1] == "UPDATED"


def test_inv_001_a_dispatched_job_is_frozen_but_for_its_tags(api: ApiClient) -> None:
    job = job_in(Status.RUNNING)
    refused = api.patch(f"/jobs/{job.pk}", {"params": {"text": "y"}})
    assert refused.status_code == 409
    document = refused.json()
    assert (document["code"], document["detail"]) == ("invalid_operation", "Cannot modify params after dispatch")
    assert (document["state"], document["allowed"]) == ("RUNNING", ["cancel", "pause"])
    assert api.patch(f"/jobs/{job.pk}", {"tags": ["x"]}).json()["tags"] == ["x"]


def test_masked_params_may_be_sent_back(api: ApiClient) -> None:
    job = JobFactory.create(job_type="tests.anything", params={"token": "geheim", "n": 1})
    masked = api.get(f"/jobs/{job.pk}").json()["params"]
    assert masked == {"token": MASK, "n": 1}
    assert api.patch(f"/jobs/{job.pk}", {"params": masked, "priority": 60}).status_code == 200
    assert (Job.objects.get().params, Job.objects.get().priority) == ({"token": "geheim", "n": 1}, 60)


def test_a_masked_param_is_not_restored_beside_a_changed_one(api: ApiClient) -> None:
    job = JobFactory.create(
        job_type="tests.anything", params={"login": {"token": "geheim"}, "url": "https://a.example"}
    )
    response = api.patch(f"/jobs/{job.pk}", {"params": {"login": {"token": MASK}, "url": "https://b.example"}})
    assert read_error_locations(response) == [["body", "params", "login", "token"]]
    assert "write its value in again" in response.json()["errors"][0]["msg"]
    assert Job.objects.get().params["url"] == "https://a.example"


def test_a_reader_without_payload_sees_neither_params_nor_artifacts_nor_logs() -> None:
    job = job_in(Status.COMPLETED, params={"text": "private"})
    JobLogFactory.create(job=job, message="private")
    reader, payload_reader = log_in(create_reader("plain")), log_in(create_reader("trusted", "view_payload"))
    for path in (f"/api/jobs/{job.pk}", "/api/jobs", f"/api/job-runs/{job.pk}", "/api/job-runs", f"/jobs/{job.pk}"):
        assert "private" not in reader.get(path).content.decode()
    document = reader.get(f"/api/jobs/{job.pk}").json()
    assert (document["params"], document["run"]["artifacts"]) == (None, None)
    assert reader.get(f"/api/jobs/{job.pk}/logs").status_code == 403
    assert payload_reader.get(f"/api/jobs/{job.pk}").json()["params"] == {"text": "private"}
    assert payload_reader.get(f"/api/jobs/{job.pk}/logs").json()["items"][0]["message"] == "private"


def test_editing_params_requires_the_permission_to_view_them() -> None:
    job = JobFactory.create()
    editor = log_in(create_reader("blind", "change_job"))
    url, request = f"/api/jobs/{job.pk}", {"params": {"text": "mine"}}
    assert editor.patch(url, request, content_type="application/json").status_code == 403
    assert editor.patch(url, {"priority": 1}, content_type="application/json").json()["params"] is None
    assert JobEvent.objects.get().kind == "UPDATED"
