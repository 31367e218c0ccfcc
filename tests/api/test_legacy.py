"""CON-004: the old paths and words go on, and say on every answer that they are old."""

from __future__ import annotations

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

import pytest
from django.test import Client, override_settings

from jobs.api.legacy import LEGACY_STATUSES
from jobs.models import Job
from jobs.states import Status
from tests.factories import SAMPLE_TYPE, JobFactory, job_in
from tests.sample_app import job_types
from tests.support.api_client import ApiClient

pytestmark = pytest.mark.django_db
assert job_types.note.name == SAMPLE_TYPE  # importing it makes its types known


def ask(api: ApiClient, method: str, path: str, body: Any = None, **headers: str) -> Any:
    content: Any = {} if body is None else {"data": body, "content_type": "application/json"}
    return getattr(api.client, method)(path, headers={**api.headers, **headers}, **content)


@pytest.fixture
def api() -> ApiClient:
    return ApiClient("read", "submit", "operate")


@pytest.mark.parametrize("status", list(Status))
def test_con_004_each_status_has_its_old_word(api: ApiClient, status: Status) -> None:
    job = job_in(status)
    word = LEGACY_STATUSES[status]
    document = ask(api, "get", f"/jobs/{job.pk}").json()
    assert document == {**api.get(f"/jobs/{job.pk}").json(), "status": word}
    assert [item["status"] for item in ask(api, "get", "/jobs/").json()["items"]] == [word]
    assert [item["id"] for item in ask(api, "get", f"/jobs?status={word}").json()["items"]] == [str(job.pk)]


def test_con_004_jobs_are_made_and_cancelled_as_before(api: ApiClient) -> None:
    made = ask(api, "post", "/jobs/", {"job_type": "tests.note", "params": {"text": "x"}})
    assert (made.status_code, made.json()["status"]) == (201, "queued")
    job_id = made.json()["id"]
    ended = ask(api, "post", f"/jobs/{job_id}/cancel")
    assert (ended.status_code, ended.json()["status"]) == (200, "cancelled")
    refused = ask(api, "post", f"/jobs/{job_id}/cancel")
    assert (refused.status_code, refused["Content-Type"]) == (409, "application/problem+json")
    assert Job.objects.get().status == Status.CANCELLED


def test_con_004_keys_are_honoured_across_both_surfaces(api: ApiClient) -> None:
    fields = {"job_type": "tests.note", "params": {"text": "x"}}
    first = ask(api, "post", "/jobs", fields, **{"Idempotency-Key": "k"})
    again = api.post("/jobs", fields, **{"Idempotency-Key": "k"})
    assert again["Idempotent-Replayed"] == "true"
    assert again.json()["id"] == first.json()["id"]


def test_con_004_lists_go_on_page_by_page(api: ApiClient) -> None:
    jobs = JobFactory.create_batch(3)
    first = ask(api, "get", "/jobs/?limit=2").json()
    second = ask(api, "get", f"/jobs/?limit=2&cursor={first['next_cursor']}").json()
    seen = [item["id"] for page in (first, second) for item in page["items"]]
    assert seen == [str(job.pk) for job in reversed(jobs)]
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
def test_con_004_every_answer_says_that_it_is_old(api: ApiClient, method: str, path: str, status: int) -> None:
    response = ask(api, method, path, "x" if status == 415 else None)
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
def test_con_004_the_links_know_the_prefix(api: ApiClient) -> None:
    for path in ("/deep/scheduler/jobs/", "/deep/scheduler/jobs/jobs", "/deep/scheduler/jobs/x/cancel/"):
        assert "</deep/scheduler/api/jobs>" in ask(api, "get", path)["Link"]


def test_con_004_new_paths_are_not_called_old(api: ApiClient) -> None:
    assert "Deprecation" not in api.get("/jobs").headers
    assert Client().get("/jobs/")["Deprecation"]
