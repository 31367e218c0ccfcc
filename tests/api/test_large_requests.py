"""One token has few bulk submissions, groups and group actions in progress at a time, so that others get their turn."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import pytest

from jobs.actors import make_token_actor
from jobs.api.auth import Principal
from jobs.api.large_requests import large_request
from jobs.models import Job
from tests.support.api_client import ApiClient

pytestmark = [pytest.mark.django_db, pytest.mark.once]

JOB = {"job_type": "sample.noop"}
SCOPES = ("read", "submit", "operate")


@contextmanager
def in_progress(api: ApiClient) -> Iterator[None]:
    """Have a large request of this client in progress."""
    token = api.token
    with large_request(Principal(make_token_actor(token.name, token.prefix, token.pk), token.tenant, token)):
        yield


def send_each(api: ApiClient) -> dict[str, Any]:
    group = f"/job-groups/{uuid4()}"
    submissions = {"/jobs/bulk": {"jobs": [JOB]}, "/job-groups": {"jobs": [JOB]}}
    requests: dict[str, Any] = {**submissions, f"{group}/cancel": {}, f"{group}/retry": {}}
    return {path: api.post(path, body) for path, body in requests.items()}


def test_a_second_large_request_of_a_token_is_refused_and_changes_nothing() -> None:
    api, other = ApiClient(*SCOPES), ApiClient(*SCOPES)
    with in_progress(api):
        for path, response in send_each(api).items():
            assert (response.status_code, response["Retry-After"]) == (429, "1"), path
            assert "1 large requests in progress" in response.json()["detail"]
        assert not Job.objects.exists()
        assert api.post("/jobs", JOB).status_code == 201
        assert other.post("/jobs/bulk", {"jobs": [JOB]}).status_code == 201
    assert [response.status_code for response in send_each(api).values()] == [201, 201, 404, 404]


def test_another_large_request_is_refused_before_its_body_is_read() -> None:
    api = ApiClient(*SCOPES)
    for path in ("/jobs/bulk", "/job-groups"):
        assert api.post(path, {"nonsense": 1}).status_code == 422
        with in_progress(api):
            assert api.post(path, {"nonsense": 1}).status_code == 429


def test_a_failed_large_request_is_no_longer_in_progress() -> None:
    api = ApiClient(*SCOPES)
    assert api.post("/jobs/bulk", {"jobs": [{"job_type": "no.such"}]}).status_code == 422
    assert api.post("/jobs/bulk", {"jobs": [JOB]}).status_code == 201


@pytest.mark.sqlite_only
def test_on_sqlite_the_next_large_request_of_a_caller_begins_after_a_rest_as_long_as_the_last_one() -> None:
    api, entered_at = ApiClient(*SCOPES), list[float]()
    for _request in range(2):
        with in_progress(api):
            entered_at.append(time.monotonic())
            time.sleep(0.2)  # the work
    assert entered_at[1] - entered_at[0] >= 0.4  # the work and the rest


def test_the_number_is_a_setting(settings: Any) -> None:
    api = ApiClient(*SCOPES)
    for limit, status in ((2, 201), (None, 201), (1, 429)):
        settings.JOBSCHEDULER = {"API_LARGE_REQUESTS": limit}
        with in_progress(api):
            assert api.post("/jobs/bulk", {"jobs": [JOB]}).status_code == status
