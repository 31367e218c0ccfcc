"""Every error is answered as problem+json, without internal details."""

from __future__ import annotations

import logging
import subprocess
import sys
from typing import Any

import pytest
from django.db import connections
from django.test import Client, override_settings

from jobs.models import Job
from jobs.services import tokens
from tests.api.breaking_urls import SECRET
from tests.factories import SAMPLE_TYPE
from tests.sample_app import job_types
from tests.support.api_client import ApiClient
from tests.support.commands import CHECKOUT

assert job_types.note.name == SAMPLE_TYPE  # the import registers its job types

WITH_FAILING_API = override_settings(ROOT_URLCONF="tests.api.breaking_urls")


@WITH_FAILING_API
@pytest.mark.parametrize("debug", [False, True])
def test_an_unexpected_error_is_logged_under_an_id_and_never_leaked(
    caplog: pytest.LogCaptureFixture, debug: bool
) -> None:
    with caplog.at_level(logging.ERROR), override_settings(DEBUG=debug):
        response = Client().get("/broken/unexpected")
    document = response.json()
    assert (response.status_code, response["Content-Type"], document["code"]) == (
        500,
        "application/problem+json",
        "internal_error",
    )
    assert SECRET not in response.content.decode()
    assert "Traceback" not in response.content.decode()
    (record,) = [record for record in caplog.records if record.name == "jobs.api"]
    assert document["error_id"] in record.getMessage()
    assert record.exc_info is not None
    assert SECRET in str(record.exc_info[1])


@WITH_FAILING_API
@pytest.mark.parametrize("path", ["outage", "interface"])
def test_a_database_that_does_not_answer_is_503_with_retry_after(path: str) -> None:
    response = Client().get(f"/broken/{path}")
    assert (response.status_code, response.json()["code"]) == (503, "unavailable")
    assert int(response["Retry-After"]) >= 1
    assert SECRET not in response.content.decode()


def test_a_real_outage_is_503_on_every_kind_of_request(process_env: dict[str, str]) -> None:
    """The database refuses connections, also under ATOMIC_REQUESTS, which connects before the view."""
    script = """
import django; django.setup()
from django.conf import settings
from django.test import Client
for atomic in (False, True):
    settings.DATABASES["default"]["ATOMIC_REQUESTS"] = atomic
    for headers, session in (({"authorization": "Bearer js_x"}, ""), ({}, "x" * 32)):
        client = Client()
        client.cookies["sessionid"] = session
        for send in (client.get, client.post):
            response = send("/api/jobs", headers=headers)
            print(response.status_code, response["Content-Type"], response["Retry-After"])
    print(Client().get("/api/nowhere").status_code)
"""
    env = {**process_env, "DATABASE_URL": "postgres://nobody:x@127.0.0.1:1/none", "ALLOWED_HOSTS": "testserver"}
    result = subprocess.run(
        [sys.executable, "-c", script], env=env, cwd=CHECKOUT, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [*["503 application/problem+json 5"] * 4, "404"] * 2


@pytest.mark.parametrize("path", ["/api/nowhere", "/api/", "/api/jobs/x/y/z", "/api/docs/x", "/api/%00", "/api//jobs"])
@pytest.mark.parametrize("method", ["get", "post", "delete"])
def test_unknown_paths_below_the_api_are_404_problems(path: str, method: str) -> None:
    response = getattr(Client(enforce_csrf_checks=True), method)(path)
    assert (response.status_code, response["Content-Type"]) == (404, "application/problem+json")
    assert response.json()["code"] == "no_such_path"


@pytest.mark.django_db
def test_head_is_answered_like_get() -> None:
    api = ApiClient("read")
    response = api.client.head("/api/jobs", headers=api.headers)
    assert (response.status_code, response.content) == (200, b"")


@pytest.mark.django_db
def test_responses_vary_by_credentials_and_are_private() -> None:
    api = ApiClient("read")
    for response in (api.get("/jobs"), api.get("/jobs/x"), Client().get("/api/jobs")):
        varies = {name.strip().lower() for name in response["Vary"].split(",")}
        assert {"authorization", "cookie", "x-api-key"} <= varies
    assert api.get("/jobs")["Cache-Control"] == "private, no-cache"
    assert api.get("/jobs/x")["Cache-Control"] == "no-store"


@WITH_FAILING_API
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("host_wants_transactions", [False, True])
def test_no_view_of_ours_runs_in_a_transaction_of_the_host(
    monkeypatch: pytest.MonkeyPatch, host_wants_transactions: bool
) -> None:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", host_wants_transactions)
    assert Client().get("/broken/atomic").json() == {"in_a_transaction": False}
    api = ApiClient("submit", "read")
    created = api.post("/jobs", {"job_type": "tests.note", "params": {"text": "x"}})
    assert created.status_code == 201
    assert (
        api.post(
            "/jobs/bulk", {"jobs": [created.json() and {"job_type": "tests.note", "params": {"text": "x"}}, {}]}
        ).status_code
        == 422
    )
    assert Job.objects.count() == 1


@WITH_FAILING_API
@pytest.mark.django_db
def test_an_error_of_pydantic_has_the_form_of_our_problems() -> None:
    response = Client().get("/broken/typed/many")
    assert response.status_code == 422
    (error,) = response.json()["errors"]
    assert error["loc"] == ["path"]
    assert set(error) == {"loc", "msg", "type"}


@pytest.mark.django_db
def test_a_problem_does_not_grow_with_the_request() -> None:
    api = ApiClient("submit")
    for body in ({str(n) * 50: 1 for n in range(5000)}, {"x" * 500_000: 1}):
        refused = api.post("/jobs", body)
        assert refused.status_code == 422
        assert len(refused.content) < 50_000


@pytest.mark.django_db
def test_details_are_translated_and_codes_are_not() -> None:
    document = Client().get("/api/jobs", headers={"Accept-Language": "de"}).json()
    assert document["code"] == "unauthorized"


@pytest.mark.django_db
def test_a_token_never_appears_in_a_response_or_a_log(caplog: pytest.LogCaptureFixture) -> None:
    _, token_text = tokens.create("robot", scopes=["read"])
    client: Any = Client(headers={"Authorization": f"Bearer {token_text}"})
    with caplog.at_level(logging.DEBUG):
        responses = [client.get("/api/jobs"), client.post("/api/jobs"), client.get("/api/nowhere")]
    assert not any(token_text in response.content.decode() + str(response.headers) for response in responses)
    assert token_text not in caplog.text
