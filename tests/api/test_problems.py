"""Whatever goes wrong is told as problem+json, and no more of it than is the caller's business."""

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

assert job_types.note.name == SAMPLE_TYPE  # importing it makes its types known

BROKEN = override_settings(ROOT_URLCONF="tests.api.breaking_urls")


@BROKEN
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


@BROKEN
@pytest.mark.parametrize("path", ["outage", "interface"])
def test_a_database_that_does_not_answer_is_503_with_retry_after(path: str) -> None:
    response = Client().get(f"/broken/{path}")
    assert (response.status_code, response.json()["code"]) == (503, "unavailable")
    assert int(response["Retry-After"]) >= 1
    assert SECRET not in response.content.decode()


def test_a_real_outage_is_503_on_every_kind_of_request(process_env: dict[str, str]) -> None:
    """A process whose database refuses connections; under ATOMIC_REQUESTS, which would need one before the view."""
    asking = """
import django; django.setup()
from django.conf import settings
from django.test import Client
for atomic in (False, True):
    settings.DATABASES["default"]["ATOMIC_REQUESTS"] = atomic
    for headers, session in (({"authorization": "Bearer js_x"}, ""), ({}, "x" * 32)):
        client = Client()
        client.cookies["sessionid"] = session
        for ask in (client.get, client.post):
            answer = ask("/api/jobs", headers=headers)
            print(answer.status_code, answer["Content-Type"], answer["Retry-After"])
    print(Client().get("/api/nowhere").status_code)
"""
    env = {**process_env, "DATABASE_URL": "postgres://nobody:x@127.0.0.1:1/none", "ALLOWED_HOSTS": "testserver"}
    result = subprocess.run(
        [sys.executable, "-c", asking], env=env, cwd=CHECKOUT, capture_output=True, text=True, check=False
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
def test_answers_say_that_they_depend_on_credentials_and_are_private() -> None:
    api = ApiClient("read")
    for response in (api.get("/jobs"), api.get("/jobs/x"), Client().get("/api/jobs")):
        varies = {item.strip().lower() for item in response["Vary"].split(",")}
        assert {"authorization", "cookie", "x-api-key"} <= varies
    assert api.get("/jobs")["Cache-Control"] == "private, no-cache"
    assert api.get("/jobs/x")["Cache-Control"] == "no-store"


@BROKEN
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("host_wants_transactions", [False, True])
def test_no_view_of_ours_runs_in_a_transaction_of_the_host(
    monkeypatch: pytest.MonkeyPatch, host_wants_transactions: bool
) -> None:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", host_wants_transactions)
    assert Client().get("/broken/atomic").json() == {"in_a_transaction": False}
    api = ApiClient("submit", "read")
    made = api.post("/jobs", {"job_type": "tests.note", "params": {"text": "x"}})
    assert made.status_code == 201
    assert (
        api.post(
            "/jobs/bulk", {"jobs": [made.json() and {"job_type": "tests.note", "params": {"text": "x"}}, {}]}
        ).status_code
        == 422
    )
    assert Job.objects.count() == 1


@BROKEN
@pytest.mark.django_db
def test_what_pydantic_refuses_is_told_in_our_form() -> None:
    response = Client().get("/broken/typed/many")
    assert response.status_code == 422
    (error,) = response.json()["errors"]
    assert error["loc"] == ["path"]
    assert set(error) == {"loc", "msg", "type"}


@pytest.mark.django_db
def test_an_answer_does_not_grow_with_the_mistake() -> None:
    api = ApiClient("submit")
    for body in ({str(n) * 50: 1 for n in range(5000)}, {"x" * 500_000: 1}):
        refused = api.post("/jobs", body)
        assert refused.status_code == 422
        assert len(refused.content) < 50_000


@pytest.mark.django_db
def test_details_speak_the_callers_language_and_codes_do_not() -> None:
    document = Client().get("/api/jobs", headers={"Accept-Language": "de"}).json()
    assert document["code"] == "unauthorized"


@pytest.mark.django_db
def test_a_token_never_appears_in_an_answer_or_a_log(caplog: pytest.LogCaptureFixture) -> None:
    _, written = tokens.create("robot", scopes=["read"])
    client: Any = Client(headers={"Authorization": f"Bearer {written}"})
    with caplog.at_level(logging.DEBUG):
        answers = [client.get("/api/jobs"), client.post("/api/jobs"), client.get("/api/nowhere")]
    assert not any(written in answer.content.decode() + str(answer.headers) for answer in answers)
    assert written not in caplog.text
