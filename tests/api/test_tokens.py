"""Tokens: kept as digests, used up to the minute, limited over all processes."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, connections
from django.db.models.functions import Now
from django.test import Client
from django.test.utils import CaptureQueriesContext

from jobs.errors import InvalidInput, NotFound
from jobs.models import ApiToken
from jobs.services import tokens
from tests.factories import JobFactory
from tests.support.api_client import ApiClient


@pytest.mark.django_db
def test_only_a_digest_and_a_prefix_are_kept() -> None:
    token, written = tokens.create("robot")
    assert token.digest == hashlib.sha256(written.encode()).hexdigest()
    assert written.startswith(token.prefix)
    assert len(written) > len(token.prefix) + 30
    assert written not in str(ApiToken.objects.values()) + repr(token) + str(token)
    assert tokens.create("robot")[1] != written


@pytest.mark.django_db
def test_a_token_is_found_by_an_index_in_one_statement() -> None:
    _, written = tokens.create("robot")
    with CaptureQueriesContext(connection) as asked:
        assert tokens.find(written) is not None
    (statement,) = asked
    assert "digest" in statement["sql"]


@pytest.mark.django_db
def test_the_last_use_is_written_at_most_once_a_minute() -> None:
    api = ApiClient("read")
    assert api.get("/jobs").status_code == 200
    used = ApiToken.objects.get().last_used_at
    assert used is not None
    api.get("/jobs")
    assert ApiToken.objects.get().last_used_at == used
    ApiToken.objects.update(last_used_at=Now() - timedelta(seconds=61))
    with CaptureQueriesContext(connection) as asked:
        api.get("/jobs")
    assert [statement["sql"].split()[0] for statement in asked].count("UPDATE") == 1
    assert ApiToken.objects.get().last_used_at >= used  # type: ignore[operator]


@pytest.mark.django_db
def test_expiry_is_judged_by_the_database() -> None:
    api = ApiClient("read")
    for ahead, status in ((timedelta(minutes=1), 200), (timedelta(0), 401), (timedelta(days=-1), 401)):
        ApiToken.objects.update(expires_at=Now() + ahead)
        assert api.get("/jobs").status_code == status


@pytest.mark.django_db
def test_revoking_is_for_good_and_may_be_repeated() -> None:
    api = ApiClient("read")
    token = ApiToken.objects.get()
    when = tokens.revoke(token.pk).revoked_at
    assert tokens.revoke(token.pk).revoked_at == when is not None
    assert api.get("/jobs").status_code == 401
    with pytest.raises(NotFound):
        tokens.revoke(JobFactory.build().pk)


@pytest.mark.django_db
@pytest.mark.parametrize("given", [[], ["all"], ["read", "x"], "everything"])
def test_scopes_are_known_words(given: Any) -> None:
    with pytest.raises(InvalidInput):
        tokens.create("robot", scopes=given)


@pytest.mark.django_db
def test_a_token_in_a_query_string_is_no_credential() -> None:
    _, written = tokens.create("robot")
    for query in (f"token={written}", f"access_token={written}", f"api_key={written}"):
        assert Client().get(f"/api/jobs?{query}").status_code == 401


@pytest.mark.django_db
def test_without_a_rate_limit_nothing_is_counted() -> None:
    api = ApiClient("read")
    api.get("/jobs")
    assert ApiToken.objects.get().window_count is None


@pytest.mark.django_db
def test_the_rate_limit_is_per_token_and_minute(settings: Any) -> None:
    settings.JOBSCHEDULER = {"API_RATE_LIMIT": 3}
    api, other = ApiClient("read"), ApiClient("read")
    token = ApiToken.objects.order_by("pk")[0]
    assert [api.get("/jobs").status_code for _ in range(4)] == [200, 200, 200, 429]
    refused = api.get("/jobs")
    assert refused.json()["code"] == "rate_limited"
    assert 1 <= int(refused["Retry-After"]) <= 60
    assert other.get("/jobs").status_code == 200
    ApiToken.objects.filter(pk=token.pk).update(window_at=Now() - timedelta(seconds=61))
    assert [api.get("/jobs").status_code for _ in range(4)] == [200, 200, 200, 429]


@pytest.mark.django_db
def test_refused_requests_count_against_the_rate_limit_too(settings: Any) -> None:
    settings.JOBSCHEDULER = {"API_RATE_LIMIT": 2}
    api = ApiClient("read")
    assert [api.post("/jobs", {}).status_code for _ in range(3)] == [403, 403, 429]


@pytest.mark.django_db(transaction=True)
def test_the_rate_limit_holds_over_connections(settings: Any) -> None:
    settings.JOBSCHEDULER = {"API_RATE_LIMIT": 10}
    token, _ = tokens.create("robot")

    def use(_: int) -> bool:
        try:
            return tokens.count_request(token) is None
        finally:
            connections.close_all()

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(use, range(40))) == 10
