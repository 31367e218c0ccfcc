"""A body is the job or group as the API shows it when its message is fanned out, with what the event itself says."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs.api import serializers
from jobs.models import Job, JobEvent
from jobs.outcomes import Completed
from jobs.serializers import format_time
from jobs.services import groups
from jobs.services import jobs as jobs
from tests.factories import JobTemplateFactory
from tests.support import executor
from tests.support.api_client import ApiClient
from tests.support.webhooks import (
    TYPE,
    complete_job,
    create_endpoint,
    enqueue_job,
    fail_job,
    fan_out_all,
    list_deliveries,
)
from webhooks import fanout, payloads
from webhooks.models import WebhookMessage

pytestmark = pytest.mark.django_db
AS_IT_GOES = {"webhooks"}  # how its deliveries stand has changed by the time that anybody asks


def read_body(event: str) -> dict[str, Any]:
    """The one document of this event."""
    fan_out_all()
    (message,) = WebhookMessage.objects.filter(event=event)
    document: dict[str, Any] = json.loads(bytes(message.body or b""))
    assert (document["type"], list(document)) == (event, ["type", "timestamp", "data"])
    assert document["timestamp"].endswith("Z")
    data: dict[str, Any] = document["data"]
    return data


def get_document(path: str) -> dict[str, Any]:
    answer: dict[str, Any] = ApiClient().get(path).json()
    return answer


def plain(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in AS_IT_GOES}


LIVES: dict[str, Any] = {
    "job.queued": lambda: enqueue_job(target="book", tags=["a"], deadline_at="2030-01-01T00:00:00Z"),
    "job.started": lambda: executor.claim(enqueue_job(target="book", params={"n": 2**53 + 1})),
    "job.paused": lambda: jobs.pause(enqueue_job(target="book").pk, reason="wait"),
    "job.completed": lambda: complete_job(target="book"),
    "job.failed": lambda: fail_job(target="book"),
    "job.cancelled": lambda: jobs.cancel(enqueue_job(target="book").pk, reason="why not"),
}


@pytest.mark.parametrize("event", LIVES)
def test_data_is_what_the_api_shows(event: str) -> None:
    create_endpoint()
    JobTemplateFactory.create(name="preset", job_type=TYPE)
    job = LIVES[event]()
    assert plain(read_body(event)) == plain(get_document(f"/jobs/{job.pk}"))


def test_data_of_a_group_is_what_the_api_shows() -> None:
    create_endpoint()
    made = groups.create([{"job_type": TYPE}, {"job_type": TYPE}], name="both")
    while (taken := executor.claim_next()) is not None:
        executor.complete(taken)
    found, expected = read_body("group.finished"), get_document(f"/job-groups/{made.pk}")
    for document in (found, expected):
        document["jobs"] = [plain(job) for job in document["jobs"]]
    assert found == expected


def test_the_template_is_named() -> None:
    create_endpoint()
    JobTemplateFactory.create(name="preset", job_type=TYPE)
    jobs.enqueue(template="preset")
    assert read_body("job.queued")["template"] == "preset"


def test_a_late_body_shows_the_job_as_it_is_now_with_the_status_of_the_event() -> None:
    create_endpoint()
    job = executor.claim(enqueue_job(tags=["before"]))
    executor.fail(job, retry_in=10)
    jobs.update(job.pk, {"tags": ["after"]})
    fan_out_all()
    for event, status in (("job.queued", "QUEUED"), ("job.started", "RUNNING"), ("job.failed", "FAILED")):
        (message,) = WebhookMessage.objects.filter(event=event, job_id=job.pk)
        document = json.loads(bytes(message.body or b""))
        kind = {"job.queued": "SUBMITTED", "job.started": "RUNNING", "job.failed": "FAILED"}[event]
        at = JobEvent.objects.get(job_id=job.pk, kind=kind).at
        assert (document["type"], document["timestamp"]) == (event, format_time(at))
        data = document["data"]
        assert (data["status"], data["tags"], data["run"]["status"]) == (status, ["after"], "FAILED")
        assert (data["retried_by"] is not None) is (event == "job.failed")


def test_a_retry_by_a_person_is_no_fact_of_the_failure() -> None:
    create_endpoint()
    job = fail_job(target="book")
    jobs.retry(job.pk)
    assert read_body("job.failed")["retried_by"] is None


def test_a_group_that_was_opened_again_is_reported_as_it_had_ended() -> None:
    create_endpoint("https://example.org/", "group.finished")
    made = groups.create([{"job_type": TYPE}])
    taken = executor.claim_next()
    assert taken is not None
    executor.fail(taken)
    groups.retry(made.pk)
    data = read_body("group.finished")
    assert (data["status"], data["round"], len(data["jobs"])) == ("FAILED", 1, 1)
    assert data["finished_at"] is not None


def test_a_failure_that_is_retried_says_by_what() -> None:
    create_endpoint()
    job = executor.fail(executor.claim(enqueue_job(target="book")), retry_in=10)
    data = read_body("job.failed")
    assert (data["retried_by"], data["permanently_failed"]) == (str(job.retried_by.pk), False)
    assert data["blocks_target"] is False


def test_secrets_are_masked() -> None:
    create_endpoint()
    job = executor.claim(enqueue_job(params={"login": {"Password": "hunter2"}}))
    executor.finish(job, Completed({"result": {"token": "hunter2"}}))
    for event in ("job.queued", "job.started", "job.completed"):
        assert "hunter2" not in json.dumps(read_body(event))


def test_neither_checkpoint_nor_lease_token_leaves_the_house() -> None:
    create_endpoint()
    job = executor.claim(enqueue_job())
    Job.objects.filter(pk=job.pk).update(checkpoint={"where": "half way"})
    jobs.pause(job.pk)
    body = json.dumps(read_body("job.started"))
    assert ("half way" in body, str(job.lease_token) in body) == (False, False)


def test_params_and_artifacts_of_a_large_body_become_null() -> None:
    create_endpoint()
    job = executor.claim(enqueue_job(params={"text": "x" * 200_000}))
    executor.finish(job, Completed({"result": "y" * 100_000}))
    data = read_body("job.completed")
    assert (data["params"], data["run"]["artifacts"], data["truncated"]) == (None, None, True)


def test_a_payload_that_is_too_large_for_a_body_is_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither that of a job nor those of a group's members."""
    create_endpoint("https://example.org/", "job.completed", "group.finished")
    groups.create([{"job_type": TYPE, "params": {"text": "x" * 300_000}}])
    taken = executor.claim_next()
    assert taken is not None
    executor.finish(taken, Completed({"result": "y" * 10}))
    with CaptureQueriesContext(connection) as queries:
        data, group = read_body("job.completed"), read_body("group.finished")
    for found in (data, group["jobs"][0]):
        assert (found["params"], found["run"]["artifacts"]) == (None, None)
    assert data["truncated"] is group["truncated"] is True
    read = [statement["sql"] for statement in queries if re.search(r'"(params|artifacts)"[,\s]', statement["sql"])]
    assert all("LENGTH(" in sql for sql in read), read


def test_a_batch_is_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fanout, "MAX_PAYLOAD_BYTES", 250_000)
    create_endpoint("https://example.org/", "job.queued")
    for _ in range(5):
        enqueue_job(params={"text": "x" * 100_000})
    assert [fanout.fan_out() for _ in range(3)] == [3, 2, 0]
    assert len(list_deliveries()) == 5


LARGE = {"id": "1", "params": {"a": "x" * 400_000}, "run": {"artifacts": {"b": "y" * 400_000}, "error": "z" * 400_000}}
MANY = {"id": "1", "jobs": [{**LARGE, "name": "n" * 10_000}] * 200}


@pytest.mark.parametrize("data", [LARGE, {**LARGE, "run": None}, MANY, {"id": "1", "jobs": []}])
def test_no_body_is_larger_than_256_kib(data: dict[str, Any]) -> None:
    from django.utils import timezone

    body = payloads.build_body("job.failed", timezone.now(), data)
    assert len(body) <= 256 * 1024
    assert json.loads(body)["data"]["id"] == "1"


def test_a_body_of_just_256_kib_is_left_alone() -> None:
    from django.utils import timezone

    now = timezone.now()
    spare = 256 * 1024 - len(payloads.build_body("job.failed", now, {"params": ""}))
    whole = payloads.build_body("job.failed", now, {"params": "x" * spare})
    assert (len(whole), b"truncated" in whole) == (256 * 1024, False)
    assert b'"truncated":true' in payloads.build_body("job.failed", now, {"params": "x" * (spare + 1), "run": None})


def test_a_body_is_stored_once_for_all_endpoints() -> None:
    for _ in range(3):
        create_endpoint("https://example.org/", "job.completed")
    complete_job()
    fan_out_all()
    assert WebhookMessage.objects.count() == 1
    assert len({bytes(delivery.message.body or b"") for delivery in list_deliveries()}) == 1
    assert WebhookMessage.objects.filter(fanned_out_at__isnull=True).count() == 0


def test_a_job_that_has_vanished_is_still_told_by_its_id() -> None:
    create_endpoint("https://example.org/", "job.completed")
    job = complete_job()
    WebhookMessage.objects.update(job_id="018f0000-0000-7000-8000-000000000000")
    expected = {"id": "018f0000-0000-7000-8000-000000000000", "status": "COMPLETED", "truncated": True}
    assert read_body("job.completed") == expected
    assert job


def test_how_a_jobs_deliveries_stand_is_part_of_its_shape() -> None:
    create_endpoint("https://example.org/", "job.completed", "job.queued")
    create_endpoint("https://example.org/", "job.completed")
    job, other = complete_job(), complete_job(tenant="acme")
    assert get_document(f"/jobs/{job.pk}")["webhooks"] == {"pending": 3, "delivered": 0, "failed": 0}
    fan_out_all()
    first, second, _ = list_deliveries()
    type(first).objects.filter(pk=first.pk).update(status="DELIVERED", next_try_at=None)
    type(first).objects.filter(pk=second.pk).update(status="FAILED", next_try_at=None)
    assert get_document(f"/jobs/{job.pk}")["webhooks"] == {"pending": 1, "delivered": 1, "failed": 1}
    assert ApiClient(tenant=None).get(f"/jobs/{other.pk}").json()["webhooks"] == {
        "pending": 0,
        "delivered": 0,
        "failed": 0,
    }


def test_a_group_that_has_vanished_is_still_told_by_its_id() -> None:
    create_endpoint("https://example.org/", "group.finished")
    made = groups.create([{"job_type": TYPE}])
    taken = executor.claim_next()
    assert taken is not None
    executor.complete(taken)
    WebhookMessage.objects.update(group_id="018f0000-0000-7000-8000-000000000000")
    data = read_body("group.finished")
    assert data == {
        "id": "018f0000-0000-7000-8000-000000000000",
        "status": "COMPLETED",
        "round": made.round,
        "truncated": True,
    }


def test_a_body_that_cannot_be_made_does_not_hold_back_the_others(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_endpoint("https://example.org/", "job.queued")
    spoilt, whole = enqueue_job(), enqueue_job()
    shape = serializers.serialize_jobs

    def refuse(rows: Any, caller: Any) -> Any:
        found = list(rows)
        if spoilt.pk in [row.pk for row in found]:
            raise ValueError("no JSON at all")
        return shape(found, caller)

    monkeypatch.setattr(serializers, "serialize_jobs", refuse)
    fan_out_all()
    found = {delivery.job_id: json.loads(bytes(delivery.message.body or b""))["data"] for delivery in list_deliveries()}
    assert found[spoilt.pk] == {"id": str(spoilt.pk), "status": "QUEUED", "truncated": True}
    assert found[whole.pk]["tags"] == []
    assert "could not be built" in caplog.text
