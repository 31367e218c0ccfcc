"""A body is the job or group as the API showed it at that moment, masked, bounded, and made once."""

from __future__ import annotations

import json
from typing import Any

import pytest

from jobs import groups
from jobs import services as jobs
from jobs.models import Job
from jobs.outcomes import Completed
from tests import executor
from tests.api.calling import Api
from tests.factories import JobTemplateFactory
from tests.webhooks.scenes import TYPE, completed, deliveries, endpoint, enqueued, failed_job, handed_out
from webhooks import bodies
from webhooks.models import WebhookMessage

pytestmark = pytest.mark.django_db
AS_IT_GOES = {"webhooks"}  # how its deliveries stand has changed by the time that anybody asks


def told(event: str) -> dict[str, Any]:
    """The one document of this event."""
    handed_out()
    (message,) = WebhookMessage.objects.filter(event=event)
    document: dict[str, Any] = json.loads(bytes(message.body or b""))
    assert (document["type"], list(document)) == (event, ["type", "timestamp", "data"])
    assert document["timestamp"].endswith("Z")
    data: dict[str, Any] = document["data"]
    return data


def shown(path: str) -> dict[str, Any]:
    answer: dict[str, Any] = Api().get(path).json()
    return answer


def plain(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in AS_IT_GOES}


LIVES: dict[str, Any] = {
    "job.queued": lambda: enqueued(target="book", tags=["a"], deadline_at="2030-01-01T00:00:00Z"),
    "job.started": lambda: executor.take(enqueued(target="book", params={"n": 2**53 + 1})),
    "job.paused": lambda: jobs.pause(enqueued(target="book").pk, reason="wait"),
    "job.completed": lambda: completed(target="book"),
    "job.failed": lambda: failed_job(target="book"),
    "job.cancelled": lambda: jobs.cancel(enqueued(target="book").pk, reason="why not"),
}


@pytest.mark.parametrize("event", LIVES)
def test_data_is_what_the_api_shows(event: str) -> None:
    endpoint()
    JobTemplateFactory.create(name="preset", job_type=TYPE)
    job = LIVES[event]()
    assert plain(told(event)) == plain(shown(f"/jobs/{job.pk}"))


def test_data_of_a_group_is_what_the_api_shows() -> None:
    endpoint()
    made = groups.create([{"job_type": TYPE}, {"job_type": TYPE}], name="both")
    while (taken := executor.take_next()) is not None:
        executor.complete(taken)
    found, expected = told("group.finished"), shown(f"/job-groups/{made.pk}")
    for document in (found, expected):
        document["jobs"] = [plain(each) for each in document["jobs"]]
    assert found == expected


def test_the_template_is_named() -> None:
    endpoint()
    JobTemplateFactory.create(name="preset", job_type=TYPE)
    jobs.enqueue(template="preset")
    assert told("job.queued")["template"] == "preset"


def test_a_start_is_told_as_it_was_however_late_it_is_handed_out() -> None:
    endpoint()
    job = executor.take(enqueued(tags=["before"]))
    executor.finish(job, Completed({"result": "secret plans"}))
    jobs.update(job.pk, {"tags": ["after"]})
    data = told("job.started")
    assert (data["status"], data["tags"], data["run"]["status"]) == ("RUNNING", ["before"], "RUNNING")
    assert data["lease"]["owner"] == job.lease_owner
    assert "secret plans" not in json.dumps(data)


def test_a_failure_is_told_as_it_was_whatever_people_made_of_it_since() -> None:
    endpoint()
    job = failed_job(target="book")
    jobs.resolve(job.pk)
    jobs.retry(job.pk)
    data = told("job.failed")
    assert (data["resolved_at"], data["retried_by"]) == (None, None)
    assert (data["permanently_failed"], data["blocks_target"]) == (True, True)


def test_a_failure_that_is_retried_says_by_what() -> None:
    endpoint()
    job = executor.fail(executor.take(enqueued(target="book")), retry_in=10)
    data = told("job.failed")
    assert (data["retried_by"], data["permanently_failed"]) == (str(job.retried_by.pk), False)
    assert data["blocks_target"] is False


def test_secrets_are_masked_in_snapshots_and_in_ends() -> None:
    endpoint()
    job = executor.take(enqueued(params={"login": {"Password": "hunter2"}}))
    executor.finish(job, Completed({"result": {"token": "hunter2"}}))
    for event in ("job.queued", "job.started", "job.completed"):
        assert "hunter2" not in json.dumps(told(event))


def test_neither_checkpoint_nor_lease_token_leaves_the_house() -> None:
    endpoint()
    job = executor.take(enqueued())
    Job.objects.filter(pk=job.pk).update(checkpoint={"where": "half way"})
    jobs.pause(job.pk)
    body = json.dumps(told("job.started"))
    assert ("half way" in body, str(job.lease_token) in body) == (False, False)


def test_params_and_artifacts_of_a_large_body_become_null() -> None:
    endpoint()
    job = executor.take(enqueued(params={"text": "x" * 200_000}))
    executor.finish(job, Completed({"result": "y" * 100_000}))
    data = told("job.completed")
    assert (data["params"], data["run"]["artifacts"], data["truncated"]) == (None, None, True)
    assert told("job.queued")["params"] == {"text": "x" * 200_000}


LARGE = {"id": "1", "params": {"a": "x" * 400_000}, "run": {"artifacts": {"b": "y" * 400_000}, "error": "z" * 400_000}}
MANY = {"id": "1", "jobs": [{**LARGE, "name": "n" * 10_000}] * 200}


@pytest.mark.parametrize("data", [LARGE, {**LARGE, "run": None}, MANY, {"id": "1", "jobs": []}])
def test_no_body_is_larger_than_256_kib(data: dict[str, Any]) -> None:
    from django.utils import timezone

    body = bodies.body("job.failed", timezone.now(), data)
    assert len(body) <= 256 * 1024
    assert json.loads(body)["data"]["id"] == "1"


def test_a_body_of_just_256_kib_is_left_alone() -> None:
    from django.utils import timezone

    now = timezone.now()
    spare = 256 * 1024 - len(bodies.body("job.failed", now, {"params": ""}))
    whole = bodies.body("job.failed", now, {"params": "x" * spare})
    assert (len(whole), b"truncated" in whole) == (256 * 1024, False)
    assert b'"truncated":true' in bodies.body("job.failed", now, {"params": "x" * (spare + 1), "run": None})


def test_a_body_is_stored_once_for_all_endpoints() -> None:
    for _ in range(3):
        endpoint("https://example.org/", "job.completed")
    completed()
    handed_out()
    assert WebhookMessage.objects.count() == 1
    assert len({bytes(each.message.body or b"") for each in deliveries()}) == 1
    assert WebhookMessage.objects.filter(audience__isnull=False).count() == 0
    assert WebhookMessage.objects.filter(snapshot__isnull=False).count() == 0


def test_a_job_that_has_vanished_is_still_told_by_its_id() -> None:
    endpoint("https://example.org/", "job.completed")
    job = completed()
    WebhookMessage.objects.update(job_id="018f0000-0000-7000-8000-000000000000")
    assert told("job.completed") == {"id": "018f0000-0000-7000-8000-000000000000"}
    assert job


def test_how_a_jobs_deliveries_stand_is_part_of_its_shape() -> None:
    endpoint("https://example.org/", "job.completed", "job.queued")
    endpoint("https://example.org/", "job.completed")
    job, other = completed(), completed(tenant="acme")
    assert shown(f"/jobs/{job.pk}")["webhooks"] == {"pending": 3, "delivered": 0, "failed": 0}
    handed_out()
    first, second, _ = deliveries()
    type(first).objects.filter(pk=first.pk).update(status="DELIVERED", next_try_at=None)
    type(first).objects.filter(pk=second.pk).update(status="FAILED", next_try_at=None)
    assert shown(f"/jobs/{job.pk}")["webhooks"] == {"pending": 1, "delivered": 1, "failed": 1}
    assert Api(tenant=None).get(f"/jobs/{other.pk}").json()["webhooks"] == {"pending": 0, "delivered": 0, "failed": 0}


def test_a_body_that_cannot_be_made_does_not_keep_the_others(caplog: pytest.LogCaptureFixture) -> None:
    endpoint("https://example.org/", "job.queued")
    spoilt, whole = enqueued(), enqueued()
    WebhookMessage.objects.filter(job_id=spoilt.pk).update(snapshot="no JSON at all")
    handed_out()
    found = {each.job_id: json.loads(bytes(each.message.body or b""))["data"] for each in deliveries()}
    assert found[spoilt.pk] == {"id": str(spoilt.pk), "truncated": True}
    assert found[whole.pk]["status"] == "QUEUED"
    assert "cannot be made" in caplog.text
