"""One key makes one job: over real HTTP, with concurrent requests, and if the first is rolled back."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import Any
from urllib.request import Request, urlopen

import pytest
from django.db import connections

from jobs import db
from jobs.models import Job, JobEvent
from jobs.services import jobs as job_services
from jobs.services import tokens
from tests.factories import SAMPLE_TYPE
from tests.sample_app import job_types
from tests.support.api_client import ApiClient, find_free_name, read_error_locations

assert job_types.note.name == SAMPLE_TYPE  # the import registers its job types

CALLERS = 20
NOTE = {"job_type": "tests.note", "params": {"text": "x"}}


class RolledBack(Exception):
    pass


@pytest.mark.django_db
def test_the_header_is_the_field() -> None:
    api = ApiClient("submit", "read")
    first = api.post("/jobs", NOTE, **{"Idempotency-Key": "k"})
    assert (first.status_code, "Idempotent-Replayed" in first.headers) == (201, False)
    assert first.json()["idempotency_key"] == "k"
    for replay in (
        api.post("/jobs", NOTE, **{"Idempotency-Key": "k"}),
        api.post("/jobs", {**NOTE, "idempotency_key": "k"}),
        api.post("/jobs", {**NOTE, "idempotency_key": "k"}, **{"Idempotency-Key": "k"}),
    ):
        assert (replay.status_code, replay["Idempotent-Replayed"], replay.json()) == (201, "true", first.json())
    assert Job.objects.count() == 1


@pytest.mark.django_db
def test_a_replay_returns_the_job_as_it_is_now() -> None:
    api = ApiClient("submit", "read")
    job_id = api.post("/jobs", NOTE, **{"Idempotency-Key": "k"}).json()["id"]
    job_services.cancel(job_id)
    assert api.post("/jobs", NOTE, **{"Idempotency-Key": "k"}).json()["status"] == "CANCELLED"


@pytest.mark.django_db
def test_another_body_is_refused_and_another_tenant_has_its_own_keys() -> None:
    api, other = ApiClient("submit", "read"), ApiClient("submit", "read", tenant="acme")
    api.post("/jobs", NOTE, **{"Idempotency-Key": "k"})
    refused = api.post("/jobs", {**NOTE, "priority": 1}, **{"Idempotency-Key": "k"})
    assert (refused.status_code, refused.json()["code"]) == (409, "idempotency_key_reused")
    assert "Idempotent-Replayed" not in other.post("/jobs", {**NOTE, "priority": 1}, **{"Idempotency-Key": "k"}).headers
    assert read_error_locations(api.post("/jobs", {**NOTE, "idempotency_key": "a"}, **{"Idempotency-Key": "b"}))


@pytest.mark.django_db(transaction=True)
def test_twenty_at_once_make_one_job_and_get_equal_responses(live_server: Any) -> None:
    responses = submit_concurrently(live_server, create_token(), lambda: None)
    assert {status for status, _body, _replayed in responses} == {201}
    assert len({body for _status, body, _replayed in responses}) == 1
    assert sorted(replayed for _status, _body, replayed in responses) == [False] + [True] * (CALLERS - 1)
    assert Job.objects.count() == JobEvent.objects.count() == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("outcome", ["committed", "rolled back"])
def test_while_a_first_submission_is_open_all_others_wait_for_its_outcome(live_server: Any, outcome: str) -> None:
    ready, token_text = Barrier(2), create_token()

    def hold_key() -> None:
        """Hold the key in an open transaction until the other requests are sent."""
        try:
            with db.atomic():
                job_services.enqueue(**NOTE, tenant="default", idempotency_key="k")  # type: ignore[arg-type]
                ready.wait()
                ready.wait()
                if outcome == "rolled back":
                    raise RolledBack
        except RolledBack:
            pass
        finally:
            connections.close_all()

    with ThreadPoolExecutor(1) as pool:
        holder = pool.submit(hold_key)
        ready.wait()
        responses = submit_concurrently(live_server, token_text, ready.wait)
        holder.result()
    assert {status for status, _body, _replayed in responses} == {201}
    assert len({body for _status, body, _replayed in responses}) == 1
    assert sum(not replayed for _status, _body, replayed in responses) == (1 if outcome == "rolled back" else 0)
    assert Job.objects.count() == 1


def create_token() -> str:
    return tokens.create(find_free_name("default"), scopes=["submit", "read"])[1]


def submit_concurrently(
    live_server: Any, token_text: str, when_all_are_sent: Callable[[], Any]
) -> list[tuple[int, bytes, bool]]:
    """Submit with one key from many threads at once; return status, body and whether replayed."""
    barrier = Barrier(CALLERS + 1)

    def submit(_: int) -> tuple[int, bytes, bool]:
        headers = {"Authorization": f"Bearer {token_text}", "Content-Type": "application/json", "Idempotency-Key": "k"}
        request = Request(f"{live_server.url}/api/jobs", json.dumps(NOTE).encode(), headers, method="POST")
        barrier.wait()
        with urlopen(request, timeout=60) as response:
            return response.status, response.read(), response.headers.get("Idempotent-Replayed") == "true"

    with ThreadPoolExecutor(CALLERS) as threads:
        futures = [threads.submit(submit, number) for number in range(CALLERS)]
        barrier.wait()
        when_all_are_sent()
        return [future.result() for future in futures]
