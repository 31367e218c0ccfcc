"""Tokens are stored as digests, record their last use once a minute, and share a rate limit over processes."""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, connection, connections, transaction
from django.db.models.functions import Now
from django.test import Client
from django.test.utils import CaptureQueriesContext

from jobs.errors import InvalidInput, NotFound
from jobs.models import ApiToken, JobEvent
from jobs.services import tokens
from jobs.services.templates import NameTaken
from tests.factories import JobFactory
from tests.support.api_client import ApiClient


@pytest.mark.django_db
def test_only_a_digest_and_a_prefix_are_stored() -> None:
    token, token_text = tokens.create("robot")
    assert token.digest == hashlib.sha256(token_text.encode()).hexdigest()
    assert token_text.startswith(token.prefix)
    assert len(token_text) > len(token.prefix) + 30
    assert token_text not in str(ApiToken.objects.values()) + repr(token) + str(token)
    assert tokens.create("another")[1] != token_text


@pytest.mark.django_db
def test_a_token_is_found_by_an_index_in_one_statement() -> None:
    _, token_text = tokens.create("robot")
    with CaptureQueriesContext(connection) as queries:
        assert tokens.find(token_text) is not None
    (statement,) = queries
    assert "digest" in statement["sql"]


@pytest.mark.django_db
def test_the_last_use_is_written_at_most_once_a_minute() -> None:
    api = ApiClient("read")
    assert api.get("/jobs").status_code == 200
    last_used_at = ApiToken.objects.get().last_used_at
    assert last_used_at is not None
    api.get("/jobs")
    assert ApiToken.objects.get().last_used_at == last_used_at
    ApiToken.objects.update(last_used_at=Now() - timedelta(seconds=61))
    with CaptureQueriesContext(connection) as queries:
        api.get("/jobs")
    assert [statement["sql"].split()[0] for statement in queries].count("UPDATE") == 1
    assert ApiToken.objects.get().last_used_at >= last_used_at  # type: ignore[operator]


@pytest.mark.django_db
def test_expiry_is_decided_by_the_clock_of_the_database() -> None:
    api = ApiClient("read")
    for ahead, status in ((timedelta(minutes=1), 200), (timedelta(milliseconds=-5), 401), (timedelta(days=-1), 401)):
        ApiToken.objects.update(expires_at=Now() + ahead)
        assert api.get("/jobs").status_code == status


@pytest.mark.django_db
def test_revoking_is_for_good_and_may_be_repeated() -> None:
    api = ApiClient("read")
    token = ApiToken.objects.get()
    revoked_at = tokens.revoke(token.pk).revoked_at
    assert tokens.revoke(token.pk).revoked_at == revoked_at is not None
    assert api.get("/jobs").status_code == 401
    with pytest.raises(NotFound):
        tokens.revoke(JobFactory.build().pk)


@pytest.mark.django_db
@pytest.mark.parametrize("scopes", [[], ["all"], ["read", "x"], "everything"])
def test_unknown_scopes_are_refused(scopes: Any) -> None:
    with pytest.raises(InvalidInput):
        tokens.create("robot", scopes=scopes)


@pytest.mark.django_db
@pytest.mark.parametrize("tenant", ["acme", None])
def test_a_name_identifies_one_usable_token_of_a_tenant(tenant: str | None) -> None:
    token, _ = tokens.create("robot", tenant=tenant)
    with pytest.raises(NameTaken):
        tokens.create("robot", tenant=tenant)
    tokens.create("robot", tenant="another")
    tokens.revoke(token.pk)
    tokens.create("robot", tenant=tenant)
    with pytest.raises(IntegrityError), transaction.atomic():
        ApiToken.objects.filter(pk=token.pk).update(revoked_at=None)


@pytest.mark.django_db
def test_events_tell_two_tokens_of_one_name_apart() -> None:
    first = ApiClient("submit")
    body = {"job_type": "tests.note", "params": {"text": "x"}}
    job_ids = [first.post("/jobs", body).json()["id"]]
    tokens.revoke(first.token.pk)
    second = ApiClient("submit")
    job_ids.append(second.post("/jobs", body).json()["id"])
    assert first.token.name == second.token.name
    names = [JobEvent.objects.get(job_id=job_id).actor_name for job_id in job_ids]
    assert names == [f"tests ({client.token.prefix}…)" for client in (first, second)]
    assert len(set(names)) == 2


@pytest.mark.django_db
def test_the_prefix_is_in_the_event_whatever_the_length_of_the_name() -> None:
    token, token_text = tokens.create("x" * 200, scopes=["submit"])
    body = {"job_type": "tests.note", "params": {"text": "x"}}
    headers = {"Authorization": f"Bearer {token_text}"}
    assert Client().post("/api/jobs", body, content_type="application/json", headers=headers).status_code == 201
    name = JobEvent.objects.get().actor_name
    assert (len(name), name[-14:]) == (200, f" ({token.prefix}…)"[-14:])


@pytest.mark.django_db
def test_a_token_in_a_query_string_is_no_credential() -> None:
    _, token_text = tokens.create("robot")
    for query in (f"token={token_text}", f"access_token={token_text}", f"api_key={token_text}"):
        assert Client().get(f"/api/jobs?{query}").status_code == 401


@pytest.mark.django_db
def test_without_a_rate_limit_nothing_is_counted(settings: Any) -> None:
    settings.JOBSCHEDULER = {"API_RATE_LIMIT": None}
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


@pytest.mark.django_db
def test_a_high_limit_is_on_by_default_and_written_once_per_hundredth() -> None:
    api = ApiClient("read")
    api.get("/jobs")
    with CaptureQueriesContext(connection) as queries:
        for _ in range(59):
            api.get("/jobs")
    assert [statement for statement in queries if statement["sql"].startswith("UPDATE")] == []
    assert ApiToken.objects.get().window_count == 60
    api.get("/jobs")
    assert ApiToken.objects.get().window_count == 120


@pytest.mark.django_db
def test_requests_counted_ahead_are_part_of_the_limit(settings: Any) -> None:
    settings.JOBSCHEDULER = {"API_RATE_LIMIT": 450}  # counted by fours
    token, _ = tokens.create("robot")
    assert [tokens.count_request(token) is None for _ in range(460)].count(True) == 448


@pytest.mark.django_db(transaction=True)
def test_the_rate_limit_holds_over_connections(settings: Any) -> None:
    settings.JOBSCHEDULER = {"API_RATE_LIMIT": 10}
    token, _ = tokens.create("robot")

    def count_request(_: int) -> bool:
        try:
            return tokens.count_request(token) is None
        finally:
            connections.close_all()

    with ThreadPoolExecutor(8) as threads:
        assert sum(threads.map(count_request, range(40))) == 10
