"""One job per tenant and idempotency key: the same body gives the same job, another one is refused."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs.errors import IdempotencyKeyReused
from jobs.models import Job
from jobs.services import jobs as job_services
from jobs.states import Status
from tests.factories import JobTemplateFactory
from tests.sample_app import job_types
from tests.support import executor
from tests.support.snapshots import dump_tables, list_event_kinds, list_events

pytestmark = pytest.mark.django_db

TYPE = job_types.anything.name


def test_the_same_key_and_body_give_the_same_job() -> None:
    job = job_services.enqueue(TYPE, {"a": 1}, idempotency_key="k", tags=["t"])
    before = dump_tables()
    again = job_services.enqueue(TYPE, {"a": 1}, idempotency_key="k", tags=["t"])
    assert again.pk == job.pk
    assert dump_tables() == before


def test_a_submission_says_whether_it_created_the_job() -> None:
    item = {"job_type": TYPE, "idempotency_key": "k"}
    first, second = job_services.submit(item), job_services.submit(item)
    assert (first.created, second.created, second.job.pk) == (True, False, first.job.pk)


def test_the_same_key_gives_the_job_as_it_is_now() -> None:
    job = job_services.enqueue(TYPE, idempotency_key="k")
    job_services.cancel(job.pk)
    assert job_services.enqueue(TYPE, idempotency_key="k").status == Status.CANCELLED


@pytest.mark.parametrize(
    "other",
    [
        {"params": {"a": 2}},
        {"params": {}},
        {"priority": 51},
        {"target": "book-1"},
        {"not_before": "2031-01-01T12:00:00Z"},
        {"job_type": "tests.nothing", "params": None},
    ],
    ids=str,
)
def test_the_same_key_with_another_body_is_refused(other: dict[str, Any]) -> None:
    job_services.enqueue(TYPE, {"a": 1}, idempotency_key="k")
    before = dump_tables()
    fields: dict[str, Any] = {"job_type": TYPE, "params": {"a": 1}, "idempotency_key": "k", **other}
    with pytest.raises(IdempotencyKeyReused, match="“k”"):
        job_services.enqueue(**fields)
    assert dump_tables() == before


def test_the_order_of_keys_does_not_make_another_body() -> None:
    first = job_services.enqueue(TYPE, {"a": 1, "b": {"c": 1, "d": 2}}, idempotency_key="k")
    assert job_services.enqueue(TYPE, {"b": {"d": 2, "c": 1}, "a": 1}, idempotency_key="k").pk == first.pk


def test_the_same_key_and_template_give_the_same_job_though_the_template_was_edited() -> None:
    template = JobTemplateFactory.create(name="daily", job_type=TYPE, params={"a": 1})
    first = job_services.enqueue(template="daily", idempotency_key="k")
    template.params = {"a": 2}
    template.save()
    assert job_services.enqueue(template="daily", idempotency_key="k").pk == first.pk
    with pytest.raises(IdempotencyKeyReused):
        job_services.enqueue(TYPE, {"a": 1}, idempotency_key="k")


def test_a_key_belongs_to_its_tenant() -> None:
    ours = job_services.enqueue(TYPE, idempotency_key="k")
    assert job_services.enqueue(TYPE, idempotency_key="k", tenant="acme").pk != ours.pk


def test_a_retry_does_not_take_the_key() -> None:
    job = executor.fail(executor.claim(job_services.enqueue(TYPE, idempotency_key="k")), retry_in=10)
    assert job.retried_by.idempotency_key is None
    assert job_services.enqueue(TYPE, idempotency_key="k").pk == job.pk


def test_one_key_within_one_bulk_is_one_job() -> None:
    item = {"job_type": TYPE, "params": {"a": 1}, "idempotency_key": "k"}
    ids = job_services.enqueue_many([item, {"job_type": TYPE}, item])
    assert ids[0] == ids[2] != ids[1]
    assert Job.objects.count() == 2
    assert [list_event_kinds(job) for job in Job.objects.all()] == [["SUBMITTED"], ["SUBMITTED"]]


def test_one_key_with_two_bodies_within_one_bulk_writes_nothing() -> None:
    items: list[dict[str, Any]] = [
        {"job_type": TYPE},
        {"job_type": TYPE, "idempotency_key": "k"},
        {"job_type": TYPE, "idempotency_key": "k", "priority": 1},
    ]
    with pytest.raises(IdempotencyKeyReused):
        job_services.enqueue_many(items)
    assert not Job.objects.exists()


def test_a_bulk_with_keys_that_are_taken_makes_only_the_others() -> None:
    taken = job_services.enqueue(TYPE, idempotency_key="b")
    ids = job_services.enqueue_many([{"job_type": TYPE, "idempotency_key": key} for key in "abcba"])
    assert (ids[1], ids[3]) == (taken.pk, taken.pk)
    assert ids[0] == ids[4]
    assert Job.objects.count() == 3
    assert len(list_events(taken)) == 1


def test_a_large_bulk_that_is_sent_again_is_answered_with_the_same_jobs() -> None:
    """Its keys are looked up in batches, not one by one; another tenant's equal keys are not ours."""
    items = [{"job_type": TYPE, "idempotency_key": f"k{n}"} for n in range(1200)]
    job_services.enqueue_many([{**item, "tenant": "acme", "priority": 1} for item in items])
    ids = job_services.enqueue_many(items)
    before = Job.objects.count()
    with CaptureQueriesContext(connection) as captured:
        again = job_services.enqueue_many([*items, {"job_type": TYPE, "idempotency_key": "k0", "tenant": "other"}])
    assert again[:-1] == ids
    assert again[-1] not in ids
    assert Job.objects.count() == before + 1
    assert len(captured) < 20


def test_a_bulk_with_a_taken_key_and_another_body_writes_nothing() -> None:
    job_services.enqueue(TYPE, idempotency_key="b")
    before = dump_tables()
    with pytest.raises(IdempotencyKeyReused):
        job_services.enqueue_many([{"job_type": TYPE}, {"job_type": TYPE, "idempotency_key": "b", "priority": 1}])
    assert dump_tables() == before
