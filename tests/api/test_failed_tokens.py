"""Unknown tokens are counted by address; 401s are logged with it."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.db.models.functions import Now
from django.test import Client
from django.test.utils import CaptureQueriesContext

from jobs.models import FailedAttempt
from jobs.services.failed_attempts import UNKNOWN_TOKENS
from tests.support.api_client import ApiClient

pytestmark = pytest.mark.django_db

HERE, ELSEWHERE = "192.0.2.7", "192.0.2.8"


def guess(token: str = "js_guess", address: str = HERE, **headers: str) -> Any:
    return Client(REMOTE_ADDR=address).get("/api/jobs", headers={"Authorization": f"Bearer {token}", **headers})


def guess_often() -> None:
    assert [guess(f"js_{number}").status_code for number in range(UNKNOWN_TOKENS.maximum)] == (
        [401] * UNKNOWN_TOKENS.maximum
    )


def test_an_address_that_guesses_gets_429_until_the_minute_is_over() -> None:
    guess_often()
    refused = guess()
    assert (refused.status_code, refused.json()["code"]) == (429, "rate_limited")
    assert 1 <= int(refused["Retry-After"]) <= 60
    assert "unknown tokens" in refused.json()["detail"]
    assert guess(address=ELSEWHERE).status_code == 401
    FailedAttempt.objects.update(window_at=Now() - timedelta(seconds=61))
    assert guess().status_code == 401


def test_known_tokens_of_the_same_address_are_answered() -> None:
    guess_often()
    api = ApiClient("read")
    assert Client(REMOTE_ADDR=HERE).get("/api/jobs", headers=api.headers).status_code == 200


def test_a_refused_guess_writes_nothing() -> None:
    guess_often()
    with CaptureQueriesContext(connection) as queries:
        assert guess().status_code == 429
    assert {statement["sql"].split()[0] for statement in queries} == {"SELECT"}


def test_without_a_rate_limit_unknown_tokens_are_not_counted(settings: Any) -> None:
    settings.JOBSCHEDULER = {"API_RATE_LIMIT": None}
    guess_often()
    assert guess().status_code == 401
    assert not FailedAttempt.objects.exists()


def test_a_request_without_a_token_touches_no_database(django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(0):
        assert Client().get("/api/jobs").status_code == 401


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer js_guess"}], ids=["without a token", "unknown"])
def test_a_401_is_a_log_line_with_the_address_and_without_the_token(
    headers: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "jobs.api")
    Client(REMOTE_ADDR=HERE).get("/api/jobs", headers=headers)
    messages = [record.getMessage() for record in caplog.records if record.name == "jobs.api"]
    assert messages == [f"401 for GET /api/jobs from {HERE}"]
    assert "js_guess" not in caplog.text


@pytest.mark.parametrize(
    ("proxies", "forwarded", "address"),
    [
        (0, "198.51.100.1", "127.0.0.1"),
        (1, "198.51.100.1", "198.51.100.1"),
        (1, "203.0.113.9, 198.51.100.1", "198.51.100.1"),
        (2, "203.0.113.9, 198.51.100.1", "203.0.113.9"),
        (2, "198.51.100.1", "198.51.100.1"),
        (1, "2001:DB8::1", "2001:db8::1"),
        (1, "", "127.0.0.1"),
        (1, "unknown", "127.0.0.1"),
        (1, "198.51.100.1\nforged", "127.0.0.1"),
    ],
)
def test_the_address_is_that_of_the_connection_or_what_the_proxies_have_seen(
    settings: Any, caplog: pytest.LogCaptureFixture, proxies: int, forwarded: str, address: str
) -> None:
    settings.JOBSCHEDULER = {"NUM_PROXIES": proxies}
    Client().get("/api/jobs", HTTP_X_FORWARDED_FOR=forwarded)
    assert f"401 for GET /api/jobs from {address}" in [record.getMessage() for record in caplog.records]
