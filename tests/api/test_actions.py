"""Actions on a job over HTTP: the resulting state, and 409 with the allowed actions."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from jobs.engine.facts import gather_facts
from jobs.models import Job
from jobs.services import jobs as job_services
from jobs.states import Status, allowed_actions
from tests.factories import SAMPLE_TYPE, JobFactory, job_in
from tests.sample_app import job_types
from tests.support.api_client import ApiClient
from tests.support.snapshots import dump_tables, list_events

pytestmark = pytest.mark.django_db
assert job_types.note.name == SAMPLE_TYPE  # the import registers its job types


@pytest.fixture
def api() -> ApiClient:
    return ApiClient("operate", "read")


@pytest.mark.parametrize(
    ("verb", "source", "target"),
    [
        ("cancel", Status.PENDING, "CANCELLED"),
        ("cancel", Status.QUEUED, "CANCELLED"),
        ("cancel", Status.DISPATCHING, "CANCELLED"),
        ("cancel", Status.PAUSED, "CANCELLED"),
        ("cancel", Status.RUNNING, "RUNNING"),
        ("pause", Status.QUEUED, "PAUSED"),
        ("pause", Status.DISPATCHING, "PAUSED"),
        ("pause", Status.RUNNING, "RUNNING"),
        ("resume", Status.PAUSED, "QUEUED"),
        ("release", Status.PENDING, "QUEUED"),
        ("resolve", Status.FAILED, "FAILED"),
    ],
)
def test_an_action_leads_to_the_documented_status(api: ApiClient, verb: str, source: Status, target: str) -> None:
    job = job_in(source, target="book-1")
    response = api.post(f"/jobs/{job.pk}/{verb}", {"reason": "why not"})
    assert response.status_code == 200, response.content
    document = response.json()
    assert (document["id"], document["status"]) == (str(job.pk), target)
    assert list_events(job)[-1].reason == "why not"
    assert document["cancel_requested"] == (source == Status.RUNNING)
    assert document["blocks_target"] == (target == "PAUSED")


def test_an_action_needs_no_body(api: ApiClient) -> None:
    for content in (
        {},
        {"data": "", "content_type": "application/json"},
        {"data": "{}", "content_type": "application/json"},
    ):
        job = JobFactory.create()
        response = api.client.post(f"/api/jobs/{job.pk}/cancel", headers=api.headers, **content)  # type: ignore[arg-type]
        assert response.status_code == 200, response.content


def test_a_repeated_request_changes_nothing(api: ApiClient) -> None:
    job = job_in(Status.RUNNING)
    first = api.post(f"/jobs/{job.pk}/cancel").json()
    before = dump_tables()
    assert api.post(f"/jobs/{job.pk}/cancel").json() == first
    assert dump_tables() == before
    assert api.post(f"/jobs/{job.pk}/pause").status_code == 409


def test_a_wrong_state_is_named_with_the_allowed_actions(api: ApiClient) -> None:
    for status in (Status.COMPLETED, Status.FAILED, Status.CANCELLED, Status.SKIPPED):
        job = job_in(status)
        document = api.post(f"/jobs/{job.pk}/cancel").json()
        assert (document["status"], document["code"], document["state"]) == (409, "wrong_state", status)
        assert document["allowed"] == allowed_actions(gather_facts(job)) != []
        allowed = ", ".join(document["allowed"])
        assert document["detail"] == f"Job {job.pk} is {status} and cannot be cancelled; allowed: {allowed}."


@pytest.mark.parametrize("verb", ["retry", "resume"])
def test_after_a_failure_a_new_job_is_created_and_returned(api: ApiClient, verb: str) -> None:
    job = job_in(Status.FAILED, target="book-1")
    response = api.post(f"/jobs/{job.pk}/{verb}")
    assert response.status_code == 201
    document = response.json()
    assert (document["retry_of"], document["attempt"], document["status"]) == (str(job.pk), 2, "QUEUED")


def test_dec_007_a_retry_follows_the_tail_of_the_chain_for_any_job_in_it(api: ApiClient) -> None:
    first = job_in(Status.FAILED)
    tail = job_in(Status.FAILED, retry_of=first, attempt=2)
    document = api.post(f"/jobs/{first.pk}/retry").json()
    assert document["retry_of"] == str(tail.pk)
    refused = api.post(f"/jobs/{first.pk}/retry").json()
    assert (refused["code"], refused["tail_id"], refused["state"]) == ("live_tail", document["id"], "QUEUED")


def test_a_retry_in_backoff_is_run_now_with_200(api: ApiClient) -> None:
    first = job_in(Status.FAILED)
    waiting = JobFactory.create(retry_of=first, attempt=2, not_before=timezone.now() + timedelta(hours=1))
    response = api.post(f"/jobs/{first.pk}/retry")
    assert (response.status_code, response.json()["id"]) == (200, str(waiting.pk))
    assert response.json()["not_before"] is None


def test_fresh_drops_the_checkpoint(api: ApiClient) -> None:
    for fresh, checkpoint in ((True, None), (False, {"page": 3}), (None, {"page": 3})):
        job = job_in(Status.FAILED, checkpoint={"page": 3})
        document = api.post(f"/jobs/{job.pk}/retry", {"fresh": fresh}).json()
        assert Job.objects.get(pk=document["id"]).checkpoint == checkpoint


def test_a_run_is_retried_through_its_own_path(api: ApiClient) -> None:
    job = job_in(Status.COMPLETED)
    response = api.post(f"/job-runs/{job.pk}/retry", {"reason": "again"})
    assert (response.status_code, response.json()["retry_of"]) == (201, str(job.pk))
    never_ran = job_in(Status.CANCELLED)
    assert api.post(f"/job-runs/{never_ran.pk}/retry").status_code == 404
    assert api.get(f"/job-runs/{never_ran.pk}").status_code == 404


def test_jobs_are_moved_within_their_priority(api: ApiClient) -> None:
    one, two, three = (JobFactory.create(position=n * 10_000) for n in range(3))

    def list_queue() -> list[Any]:
        return [job["id"] for job in api.get("/jobs?order=queue").json()["items"]]

    assert api.post(f"/jobs/{three.pk}/move", {"to": "top"}).status_code == 200
    assert list_queue() == [str(job.pk) for job in (three, one, two)]
    api.post(f"/jobs/{three.pk}/move", {"after": str(one.pk)})
    assert list_queue() == [str(job.pk) for job in (one, three, two)]
    api.post(f"/jobs/{two.pk}/move", {"before": str(three.pk), "after": None, "to": None, "reason": "urgent"})
    assert list_queue() == [str(job.pk) for job in (one, two, three)]
    api.post(f"/jobs/{one.pk}/move", {"to": "bottom"})
    assert list_queue() == [str(job.pk) for job in (two, three, one)]
    assert api.post(f"/jobs/{one.pk}/move", {"before": str(JobFactory.create(priority=1).pk)}).status_code == 409


def test_moving_beside_a_job_of_another_tenant_is_answered_like_an_absent_one(api: ApiClient) -> None:
    job, theirs = JobFactory.create(), JobFactory.create(tenant="acme")
    foreign = api.post(f"/jobs/{job.pk}/move", {"before": str(theirs.pk)})
    absent = api.post(f"/jobs/{job.pk}/move", {"before": str(JobFactory.build().pk)})
    assert (foreign.status_code, foreign.content) == (404, absent.content)


def test_a_held_job_is_released(api: ApiClient) -> None:
    held = job_services.enqueue("tests.note", {"text": "x"}, hold=True)
    assert api.post(f"/jobs/{held.pk}/release").json()["status"] == "QUEUED"
    assert api.post(f"/jobs/{held.pk}/release").status_code == 409
