"""CON-004: the legacy paths and statuses still work, and every response says that they are deprecated."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import pytest
from django.db.models.functions import Now
from django.test import Client, override_settings

from jobs.api.legacy import LEGACY_STATUSES
from jobs.checks import check_legacy_token
from jobs.models import ApiToken, Job
from jobs.services import tokens
from jobs.states import Status
from tests.factories import SAMPLE_TYPE, JobFactory, job_in
from tests.sample_app import job_types
from tests.support.api_client import ApiClient
from tests.support.snapshots import list_events

pytestmark = pytest.mark.django_db
assert job_types.note.name == SAMPLE_TYPE  # the import registers its job types


def send(api: ApiClient, method: str, path: str, body: Any = None, **headers: str) -> Any:
    content: Any = {} if body is None else {"data": body, "content_type": "application/json"}
    return getattr(api.client, method)(path, headers={**api.headers, **headers}, **content)


@pytest.fixture
def api() -> ApiClient:
    return ApiClient("read", "submit", "operate")


@pytest.mark.parametrize("status", list(Status))
def test_con_004_unit_each_status_has_its_legacy_name(api: ApiClient, status: Status) -> None:
    job = job_in(status)
    legacy_status = LEGACY_STATUSES[status]
    document = send(api, "get", f"/jobs/{job.pk}").json()
    assert document == {**api.get(f"/jobs/{job.pk}").json(), "status": legacy_status}
    assert [job["status"] for job in send(api, "get", "/jobs/").json()["items"]] == [legacy_status]
    assert [job["id"] for job in send(api, "get", f"/jobs?status={legacy_status}").json()["items"]] == [str(job.pk)]


def test_con_004_integration_jobs_are_created_and_cancelled_as_before(api: ApiClient) -> None:
    created = send(api, "post", "/jobs/", {"job_type": "tests.note", "params": {"text": "x"}})
    assert (created.status_code, created.json()["status"]) == (201, "queued")
    job_id = created.json()["id"]
    cancelled = send(api, "post", f"/jobs/{job_id}/cancel")
    assert (cancelled.status_code, cancelled.json()["status"]) == (200, "cancelled")
    refused = send(api, "post", f"/jobs/{job_id}/cancel")
    assert (refused.status_code, refused["Content-Type"]) == (409, "application/problem+json")
    assert Job.objects.get().status == Status.CANCELLED


def test_con_004_integration_keys_are_honoured_across_both_apis(api: ApiClient) -> None:
    fields = {"job_type": "tests.note", "params": {"text": "x"}}
    first = send(api, "post", "/jobs", fields, **{"Idempotency-Key": "k"})
    replay = api.post("/jobs", fields, **{"Idempotency-Key": "k"})
    assert replay["Idempotent-Replayed"] == "true"
    assert replay.json()["id"] == first.json()["id"]


def test_con_004_integration_lists_are_paginated(api: ApiClient) -> None:
    jobs = JobFactory.create_batch(3)
    first = send(api, "get", "/jobs/?limit=2").json()
    second = send(api, "get", f"/jobs/?limit=2&cursor={first['next_cursor']}").json()
    job_ids = [job["id"] for page in (first, second) for job in page["items"]]
    assert job_ids == [str(job.pk) for job in reversed(jobs)]
    assert second["next_cursor"] is None


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("get", "/jobs/", 200),
        ("get", "/jobs", 200),
        ("get", "/jobs/nothing", 404),
        ("get", "/jobs/?limit=0", 422),
        ("get", "/jobs/?status=QUEUED", 422),
        ("post", "/jobs/", 415),
        ("delete", "/jobs/", 405),
        ("post", "/jobs/nothing/cancel/", 404),
    ],
)
@override_settings(JOBSCHEDULER={"LEGACY_SUNSET": "2029-06-30"})
def test_con_004_error_a_refusal_says_that_the_path_is_deprecated_as_every_response_does(
    api: ApiClient, method: str, path: str, status: int
) -> None:
    response = send(api, method, path, "x" if status == 415 else None)
    if status == 415:
        response = api.client.post(path, "x", content_type="text/plain", headers=api.headers)
    assert response.status_code == status
    deprecated = datetime.fromtimestamp(int(response["Deprecation"].removeprefix("@")), UTC)
    sunset = parsedate_to_datetime(response["Sunset"])
    assert deprecated < sunset
    assert sunset == datetime(2029, 6, 30, 23, 59, 59, tzinfo=UTC)
    assert '</api/docs>; rel="deprecation"' in response["Link"]
    assert '</api/jobs>; rel="successor-version"' in response["Link"]


@override_settings(ROOT_URLCONF="tests.api.breaking_urls")
def test_con_004_unit_the_links_contain_the_prefix(api: ApiClient) -> None:
    for path in ("/deep/scheduler/jobs/", "/deep/scheduler/jobs/jobs", "/deep/scheduler/jobs/x/cancel/"):
        assert "</deep/scheduler/api/jobs>" in send(api, "get", path)["Link"]


@pytest.mark.parametrize(
    "path", ["/jobs/{}/resume", "/targets/book-1/jobs/{}/resume/", "/targets/book-1/jobs/{}/resume"]
)
def test_con_004_a_paused_or_failed_job_is_resumed_at_its_old_path(api: ApiClient, path: str) -> None:
    paused, failed = JobFactory.create(paused=True, target="book-1"), JobFactory.create(failed=True, target="book-1")
    resumed = send(api, "post", path.format(paused.pk), {"reason": "go on"})
    assert (resumed.status_code, resumed.json()["id"], resumed.json()["status"]) == (200, str(paused.pk), "queued")
    retried = send(api, "post", path.format(failed.pk))
    assert (retried.status_code, retried.json()["retry_of"]) == (201, str(failed.pk))
    refused = send(api, "post", path.format(failed.pk)).json()
    assert (refused["status"], refused["tail_id"]) == (409, retried.json()["id"])
    collection = "targets" if "targets" in path else "jobs"
    assert f'</api/{collection}>; rel="successor-version"' in retried["Link"]
    assert send(ApiClient("operate", tenant="other"), "post", path.format(failed.pk)).status_code == 404
    assert send(api, "post", f"/targets/book-2/jobs/{failed.pk}/resume/").status_code == 404


def test_con_004_without_credentials_a_client_acts_as_the_named_token_on_legacy_paths_only(settings: Any) -> None:
    token, _text = tokens.create("old clients", scopes=["read", "submit", "operate"])
    client = Client()
    fields = {"job_type": "tests.note", "params": {"text": "x"}}
    assert client.post("/jobs/", fields, content_type="application/json").status_code == 401
    settings.JOBSCHEDULER = {"LEGACY_TOKEN": token.prefix}
    created = client.post("/jobs/", fields, content_type="application/json")
    assert (created.status_code, created.json()["status"]) == (201, "queued")
    job = Job.objects.get()
    assert list_events(job)[0].actor_name == f"old clients ({token.prefix}…)"
    assert [item["id"] for item in client.get("/jobs").json()["items"]] == [str(job.pk)]
    assert client.get(f"/jobs/{job.pk}").status_code == 200
    assert client.post(f"/jobs/{job.pk}/cancel").json()["status"] == "cancelled"
    assert client.get("/jobs", headers={"Authorization": "Bearer js_wrong"}).status_code == 401
    for path in ("/api/jobs", f"/api/jobs/{job.pk}", "/api/stats", "/metrics"):
        assert client.get(path).status_code == 401, path
    settings.JOBSCHEDULER = {"LEGACY_TOKEN": tokens.create("readers", scopes=["read"])[0].prefix}
    assert client.post("/jobs/", fields, content_type="application/json").status_code == 403


@pytest.mark.parametrize("reason", ["revoked", "expired", "unknown"])
def test_con_004_a_named_token_that_cannot_be_used_is_a_401_and_a_warning(settings: Any, reason: str) -> None:
    token, _text = tokens.create("old clients")
    settings.JOBSCHEDULER = {"LEGACY_TOKEN": "js_unknown" if reason == "unknown" else token.prefix}
    if reason == "revoked":
        tokens.revoke(token.pk)
    elif reason == "expired":
        ApiToken.objects.update(expires_at=Now() - timedelta(seconds=1))
    refused = Client().get("/jobs/")
    assert (refused.status_code, refused["WWW-Authenticate"]) == (401, "Bearer")
    assert "LEGACY_TOKEN" in refused.json()["detail"]
    assert [message.id for message in check_legacy_token(databases=["default"])] == ["jobs.W008"]
    settings.JOBSCHEDULER = {"LEGACY_TOKEN": tokens.create("new ones")[0].prefix}
    assert (Client().get("/jobs/").status_code, check_legacy_token(databases=["default"])) == (200, [])


def test_con_004_unit_current_paths_are_not_deprecated(api: ApiClient) -> None:
    assert "Deprecation" not in api.get("/jobs").headers
    assert Client().get("/jobs/")["Deprecation"]
