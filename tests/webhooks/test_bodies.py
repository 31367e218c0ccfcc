"""A body is the job or group as the API shows it at fan-out, with the status and time of the event."""

from __future__ import annotations

import json
import re
import tracemalloc
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs.api import serializers
from jobs.models import Job, JobEvent
from jobs.outcomes import Completed
from jobs.services import groups
from jobs.services import jobs as jobs
from jobs.time_text import format_time
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
VOLATILE_FIELDS = {"webhooks"}  # the counts of deliveries change between fan-out and the request


def fan_out_and_read_data(event: str) -> dict[str, Any]:
    """Return `data` of the only message of this event."""
    fan_out_all()
    (message,) = WebhookMessage.objects.filter(event=event)
    document: dict[str, Any] = json.loads(bytes(message.body or b""))
    assert (document["type"], list(document)) == (event, ["type", "timestamp", "data"])
    assert document["timestamp"].endswith("Z")
    data: dict[str, Any] = document["data"]
    return data


def get_document(path: str) -> dict[str, Any]:
    document: dict[str, Any] = ApiClient().get(path).json()
    return document


def drop_volatile_fields(document: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in document.items() if name not in VOLATILE_FIELDS}


ACTIONS: dict[str, Any] = {
    "job.queued": lambda: enqueue_job(target="book", tags=["a"], deadline_at="2030-01-01T00:00:00Z"),
    "job.started": lambda: executor.claim(enqueue_job(target="book", params={"n": 2**53 + 1})),
    "job.paused": lambda: jobs.pause(enqueue_job(target="book").pk, reason="wait"),
    "job.completed": lambda: complete_job(target="book"),
    "job.failed": lambda: fail_job(target="book"),
    "job.cancelled": lambda: jobs.cancel(enqueue_job(target="book").pk, reason="why not"),
}


@pytest.mark.parametrize("event", ACTIONS)
def test_dec_009_unit_data_is_what_the_api_shows(event: str) -> None:
    create_endpoint()
    JobTemplateFactory.create(name="preset", job_type=TYPE)
    job = ACTIONS[event]()
    assert drop_volatile_fields(fan_out_and_read_data(event)) == drop_volatile_fields(get_document(f"/jobs/{job.pk}"))


def test_data_of_a_group_is_what_the_api_shows() -> None:
    create_endpoint()
    group = groups.create([{"job_type": TYPE}, {"job_type": TYPE}], name="both")
    while (claimed_job := executor.claim_next()) is not None:
        executor.complete(claimed_job)
    actual, expected = fan_out_and_read_data("group.finished"), get_document(f"/job-groups/{group.pk}")
    for document in (actual, expected):
        document["jobs"] = [drop_volatile_fields(job) for job in document["jobs"]]
    assert actual == expected


def test_the_template_is_named() -> None:
    create_endpoint()
    JobTemplateFactory.create(name="preset", job_type=TYPE)
    jobs.enqueue(template="preset")
    assert fan_out_and_read_data("job.queued")["template"] == "preset"


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
    assert fan_out_and_read_data("job.failed")["retried_by"] is None


def test_a_group_that_was_opened_again_is_reported_as_it_had_ended() -> None:
    create_endpoint("https://example.org/", "group.finished")
    group = groups.create([{"job_type": TYPE}])
    claimed_job = executor.claim_next()
    assert claimed_job is not None
    executor.fail(claimed_job)
    groups.retry(group.pk)
    data = fan_out_and_read_data("group.finished")
    assert (data["status"], data["round"], len(data["jobs"])) == ("FAILED", 1, 1)
    assert data["finished_at"] is not None


def test_a_failure_that_is_retried_names_its_retry() -> None:
    create_endpoint()
    job = executor.fail(executor.claim(enqueue_job(target="book")), retry_in=10)
    data = fan_out_and_read_data("job.failed")
    assert (data["retried_by"], data["permanently_failed"]) == (str(job.retried_by.pk), False)
    assert data["blocks_target"] is False


def test_secrets_are_masked() -> None:
    create_endpoint()
    job = executor.claim(enqueue_job(params={"login": {"Password": "hunter2"}}))
    executor.finish(job, Completed({"result": {"token": "hunter2"}}))
    for event in ("job.queued", "job.started", "job.completed"):
        assert "hunter2" not in json.dumps(fan_out_and_read_data(event))


def test_neither_checkpoint_nor_lease_token_is_sent() -> None:
    create_endpoint()
    job = executor.claim(enqueue_job())
    Job.objects.filter(pk=job.pk).update(checkpoint={"where": "half way"})
    jobs.pause(job.pk)
    body = json.dumps(fan_out_and_read_data("job.started"))
    assert ("half way" in body, str(job.lease_token) in body) == (False, False)


def test_params_and_artifacts_of_a_large_body_become_null() -> None:
    create_endpoint()
    job = executor.claim(enqueue_job(params={"text": "x" * 200_000}))
    executor.finish(job, Completed({"result": "y" * 100_000}))
    data = fan_out_and_read_data("job.completed")
    assert (data["params"], data["run"]["artifacts"], data["truncated"]) == (None, None, True)


def test_a_payload_that_is_too_large_for_a_body_is_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Applies to the params and artifacts of a job and of the members of a group."""
    create_endpoint("https://example.org/", "job.completed", "group.finished")
    groups.create([{"job_type": TYPE, "params": {"text": "x" * 300_000}}])
    claimed_job = executor.claim_next()
    assert claimed_job is not None
    executor.finish(claimed_job, Completed({"result": "y" * 10}))
    with CaptureQueriesContext(connection) as queries:
        data, group = fan_out_and_read_data("job.completed"), fan_out_and_read_data("group.finished")
    for document in (data, group["jobs"][0]):
        assert (document["params"], document["run"]["artifacts"]) == (None, None)
    assert data["truncated"] is group["truncated"] is True
    payload_queries = [
        statement["sql"] for statement in queries if re.search(r'"(params|artifacts)"', statement["sql"])
    ]
    assert payload_queries
    unmeasured = [re.sub(r'LENGTH\([^"]*"\w+"\."(params|artifacts)"', "", sql) for sql in payload_queries]
    assert not [sql for sql in unmeasured if re.search(r'"(params|artifacts)"', sql)]


def test_the_payload_of_a_batch_is_read_in_slices() -> None:
    create_endpoint("https://example.org/", "job.queued")
    for _ in range(17):
        enqueue_job(params={"text": "x"})
    assert fanout.fan_out(1) == 1  # the first batch imports and caches
    Job.objects.update(params={"x": [{}] * 50_000})  # 200 KB of JSON, 9 MB with its masked copy
    tracemalloc.start()
    assert fanout.fan_out() == 16
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 * 9 * 10**6 / 2


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
    body = payloads.build_body("job.failed", now, {"params": "x" * spare})
    assert (len(body), b"truncated" in body) == (256 * 1024, False)
    assert b'"truncated":true' in payloads.build_body("job.failed", now, {"params": "x" * (spare + 1), "run": None})


def test_a_body_is_stored_once_for_all_endpoints() -> None:
    for _ in range(3):
        create_endpoint("https://example.org/", "job.completed")
    complete_job()
    fan_out_all()
    assert WebhookMessage.objects.count() == 1
    assert len({bytes(delivery.message.body or b"") for delivery in list_deliveries()}) == 1
    assert WebhookMessage.objects.filter(fanned_out_at__isnull=True).count() == 0


def test_a_job_that_has_vanished_is_still_reported_by_its_id() -> None:
    create_endpoint("https://example.org/", "job.completed")
    job = complete_job()
    WebhookMessage.objects.update(job_id="018f0000-0000-7000-8000-000000000000")
    expected = {"id": "018f0000-0000-7000-8000-000000000000", "status": "COMPLETED", "truncated": True}
    assert fan_out_and_read_data("job.completed") == expected
    assert job


def test_the_document_of_a_job_counts_its_deliveries() -> None:
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


def test_a_group_that_has_vanished_is_still_reported_by_its_id() -> None:
    create_endpoint("https://example.org/", "group.finished")
    group = groups.create([{"job_type": TYPE}])
    claimed_job = executor.claim_next()
    assert claimed_job is not None
    executor.complete(claimed_job)
    WebhookMessage.objects.update(group_id="018f0000-0000-7000-8000-000000000000")
    data = fan_out_and_read_data("group.finished")
    assert data == {
        "id": "018f0000-0000-7000-8000-000000000000",
        "status": "COMPLETED",
        "round": group.round,
        "truncated": True,
    }


def test_a_body_that_cannot_be_built_does_not_hold_back_the_others(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    create_endpoint("https://example.org/", "job.queued")
    bad_job, good_job = enqueue_job(), enqueue_job()
    serialize = serializers.serialize_jobs

    def refuse(rows: Any, caller: Any) -> Any:
        job_rows = list(rows)
        if bad_job.pk in [row.pk for row in job_rows]:
            raise ValueError("no JSON at all")
        return serialize(job_rows, caller)

    monkeypatch.setattr(serializers, "serialize_jobs", refuse)
    fan_out_all()
    data_by_job = {
        delivery.job_id: json.loads(bytes(delivery.message.body or b""))["data"] for delivery in list_deliveries()
    }
    assert data_by_job[bad_job.pk] == {"id": str(bad_job.pk), "status": "QUEUED", "truncated": True}
    assert data_by_job[good_job.pk]["tags"] == []
    assert "could not be built" in caplog.text


def test_a_group_whose_body_cannot_be_built_is_reported_by_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    create_endpoint("https://example.org/", "group.finished", "job.queued")
    group = groups.create([{"job_type": TYPE}])
    executor.finish(executor.claim(Job.objects.get(group=group)), Completed())
    after_it = enqueue_job()

    def refuse(*_: Any) -> Any:
        raise ValueError("no JSON at all")

    monkeypatch.setattr(payloads.serializers, "serialize_group", refuse)
    data = fan_out_and_read_data("group.finished")
    assert data == {"id": str(group.pk), "truncated": True, "status": "COMPLETED", "round": group.round}
    assert after_it.pk in {delivery.job_id for delivery in list_deliveries()}
