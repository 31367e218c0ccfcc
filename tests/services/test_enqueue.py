"""Submitting: one job or ten thousand, in the caller's transaction, typed by the handler."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

import jobs
from jobs import services
from jobs.actors import Actor, ActorKind
from jobs.errors import InvalidInput
from jobs.models import Gate, Job, JobEvent, LaneMark
from jobs.services import jobs as job_services
from jobs.signals import events_committed, job_enqueued
from jobs.states import Status
from tests.factories import JobTemplateFactory
from tests.sample_app import job_types
from tests.support import executor
from tests.support.snapshots import dump_tables, list_event_kinds

pytestmark = pytest.mark.django_db

TYPE = job_types.anything.name
ADA = Actor(ActorKind.USER, "ada")


def test_what_enqueue_returns_is_what_was_stored() -> None:
    fields: dict[str, Any] = {
        "tenant": "acme",
        "target": "book-1",
        "addon_id": "addon-1",
        "priority": "HIGH",
        "position": 12,
        "not_before": timezone.now() + timedelta(hours=1),
        "deadline_at": timezone.now() + timedelta(hours=2),
        "time_sensitive": True,
        "expected_duration_sec": 1.5,
        "max_runtime_sec": 60,
        "cost_units": 3,
        "constraints": {"cpu_heavy": True},
        "resource": "ollama",
        "token_limit": 100,
        "max_retries": 7,
        "tags": ["a", "b"],
        "idempotency_key": "k",
    }
    job = job_services.enqueue(TYPE, {"a": [1, None, "ü"]}, **fields)
    stored = Job.objects.get(pk=job.pk)
    for column in (field.attname for field in Job._meta.concrete_fields):
        assert getattr(job, column) == getattr(stored, column), column
    assert (stored.priority, stored.base_priority, stored.gate) == (75, 75, Gate.TIME)


def test_the_job_that_enqueue_returns_is_saved() -> None:
    job = job_services.enqueue(TYPE)
    assert job._state.adding is False
    job.refresh_from_db()
    assert (job.status, job.attempt, job.tenant) == (Status.QUEUED, 1, "default")


def test_the_three_ways_to_submit_make_the_same_job() -> None:
    made = [
        jobs.enqueue("tests.note", {"text": "a"}, target="book-1"),
        job_types.note.using(target="book-1").enqueue(text="a"),
        job_services.enqueue("tests.note", {"text": "a"}, target="book-1"),
    ]
    for name in ("job_type", "params", "lane_id", "flow_id", "priority", "max_retries", "resource"):
        assert len({str(getattr(job, name)) for job in made}) == 1, name


def test_what_is_not_said_comes_from_the_handler_and_then_from_the_settings() -> None:
    quiet = job_types.nothing.enqueue()
    assert (quiet.priority, quiet.max_retries, quiet.resource, quiet.cost_units) == (25, 1, "attic", 2)
    assert quiet.tags == ["quiet"]
    plain = job_services.enqueue(TYPE)
    assert (plain.priority, plain.max_retries, plain.resource, plain.token_limit) == (50, 3, "default", None)
    with override_settings(JOBSCHEDULER={"RETRY_MAX_RETRIES": 9, "TOKEN_LIMIT": 5}):
        job = job_services.enqueue(TYPE)
    assert (job.max_retries, job.token_limit) == (9, 5)


def test_a_template_wins_over_the_handler_and_the_submission_over_both() -> None:
    template = JobTemplateFactory.create(
        job_type="tests.note",
        params={"text": "preset", "times": 2},
        priority=80,
        target="book-9",
        retry_policy={"max_attempts": 6, "base_sec": 2},
        tags=["t"],
    )
    job = job_services.enqueue(template=template.name, params={"times": 3}, priority=90)
    assert (job.job_type, job.template_id, job.params) == ("tests.note", template.pk, {"text": "preset", "times": 3})
    assert (job.priority, job.target, job.max_retries, job.tags) == (90, "book-9", 6, ["t"])
    assert job.retry_policy == {"max_attempts": 6, "base_sec": 2}


def test_submissions_stand_in_the_order_they_came() -> None:
    submitted = [job_services.enqueue(TYPE).pk for _ in range(20)]
    assert list(Job.objects.in_dispatch_order().values_list("pk", flat=True)) == submitted


def test_there_is_room_between_any_two_submissions() -> None:
    first, second = job_services.enqueue(TYPE), job_services.enqueue(TYPE)
    assert second.position - first.position >= 1024


def test_a_job_for_later_waits_behind_its_time_and_a_past_one_does_not() -> None:
    assert job_services.enqueue(TYPE, not_before=timezone.now() + timedelta(hours=1)).gate == Gate.TIME
    assert job_services.enqueue(TYPE, not_before=timezone.now() - timedelta(hours=1)).gate == Gate.READY
    assert job_services.enqueue(TYPE, target="book-1").gate == Gate.LANE


def test_a_held_job_is_pending_until_a_person_releases_it() -> None:
    job = job_services.enqueue(TYPE, target="book-1", hold=True)
    assert (job.status, job.hold, job.gate) == (Status.PENDING, True, Gate.CLOSED)
    assert list_event_kinds(job) == ["SUBMITTED", "HELD"]
    assert executor.claim_next() is None
    released = job_services.release(job.pk)
    assert (released.status, released.hold) == (Status.QUEUED, False)
    executor.claim(released)


def test_a_submission_in_a_lane_leaves_a_mark() -> None:
    job = job_services.enqueue(TYPE, target="book-1")
    assert [mark.lane_id for mark in LaneMark.objects.all()] == [job.lane_id]


def test_a_job_is_only_there_if_the_callers_transaction_is() -> None:
    with transaction.atomic():
        job_services.enqueue(TYPE)
        transaction.set_rollback(True)
    assert not Job.objects.exists()
    assert not JobEvent.objects.exists()


def test_params_are_stored_as_they_were_said_without_defaults() -> None:
    assert Job.objects.get(pk=job_types.note.enqueue(text="a").pk).params == {"text": "a"}


def test_times_are_stored_in_utc() -> None:
    job = job_services.enqueue(TYPE, not_before="2031-01-01T12:00:00+02:00")
    assert Job.objects.get(pk=job.pk).not_before == datetime(2031, 1, 1, 10, tzinfo=UTC)


# many at once


def test_a_bulk_submission_keeps_its_order_and_says_who_made_it() -> None:
    ids = job_services.enqueue_many(
        [{"job_type": TYPE, "params": {"n": n}} for n in range(250)], actor=ADA, reason="bulk"
    )
    assert list(Job.objects.in_dispatch_order().values_list("pk", flat=True)) == ids
    assert [Job.objects.get(pk=job_id).params["n"] for job_id in ids[:3]] == [0, 1, 2]
    assert set(JobEvent.objects.values_list("kind", "reason", "actor_name")) == {("SUBMITTED", "bulk", "ada")}
    assert JobEvent.objects.count() == 250


def test_a_bulk_submission_may_mix_everything() -> None:
    later = timezone.now() + timedelta(hours=1)
    ids = job_services.enqueue_many(
        [
            {"job_type": TYPE, "target": "book-1", "priority": "LOW"},
            {"job_type": "tests.note", "params": {"text": "a"}, "not_before": later},
            {"job_type": TYPE, "hold": True, "tenant": "acme", "tags": ["x"]},
        ]
    )
    found = [Job.objects.get(pk=job_id) for job_id in ids]
    assert [job.gate for job in found] == [Gate.LANE, Gate.TIME, Gate.CLOSED]
    assert [list_event_kinds(job) for job in found] == [["SUBMITTED"], ["SUBMITTED"], ["SUBMITTED", "HELD"]]


def test_a_bulk_submission_with_one_mistake_writes_nothing_and_names_the_place() -> None:
    items: list[dict[str, Any]] = [{"job_type": TYPE}, {"job_type": TYPE}, {"job_type": TYPE, "priority": 101}]
    before = dump_tables()
    with pytest.raises(InvalidInput) as refusal:
        job_services.enqueue_many(items)
    assert refusal.value.errors[0]["loc"] == ["jobs", 2, "priority"]
    assert dump_tables() == before


def test_an_empty_bulk_submission_is_no_submission() -> None:
    assert job_services.enqueue_many([]) == []


def test_a_bulk_submission_larger_than_the_caller_allows_is_refused() -> None:
    with pytest.raises(InvalidInput) as refusal:
        job_services.enqueue_many([{"job_type": TYPE}] * 3, limit=2)
    assert refusal.value.errors[0]["loc"] == ["jobs"]
    assert not Job.objects.exists()


@pytest.mark.parametrize("fields", [{}, {"target": "book-1"}, {"hold": True}], ids=["plain", "in a lane", "held"])
def test_ten_thousand_jobs_are_one_call_and_no_more_statements_than_a_hundred(fields: dict[str, Any]) -> None:
    def statements(count: int) -> int:
        items = [{"job_type": TYPE, "params": {"n": n}, **fields} for n in range(count)]
        with CaptureQueriesContext(connection) as captured:
            assert len(job_services.enqueue_many(items)) == count
        return len(captured)

    baseline, many = statements(100), statements(10_000)
    assert Job.objects.count() == 10_100
    assert baseline < 12
    assert many == baseline


VARIED: list[dict[str, Any]] = [
    {"job_type": TYPE, "params": {"text": "two\nlines, a \u2028 and \\"}},
    {"job_type": TYPE, "hold": True, "tenant": "acme", "tags": ["x", "ü"], "target": "book-1"},
    {"job_type": TYPE, "target": "book-1", "priority": "LOW", "position": -7},
    {"job_type": TYPE, "not_before": "2199-01-01T12:00:00.000001+02:00", "target": "book-2", "addon_id": "addon"},
    {"job_type": TYPE, "deadline_at": "2199-01-01T12:00:00Z", "time_sensitive": True, "token_limit": 2**62},
    {
        "job_type": "tests.nothing",
        "max_runtime_sec": 1.5,
        "expected_duration_sec": 3,
        "constraints": {"cpu_heavy": True},
    },
    {"job_type": TYPE, "idempotency_key": "k", "resource": "ollama", "cost_units": 0, "max_retries": 0},
]
DECIDED_BY_THE_INSERT = {"id", "created_at", "position", "idempotency_key", "job_id", "at"}


def test_one_by_one_and_all_at_once_write_the_same_rows() -> None:
    """The statement for one job and the one for many keep the same rules."""

    def rows_of(ids: list[Any]) -> list[Any]:
        rows = [Job.objects.filter(pk=job_id).values().get() for job_id in ids]
        events = [list(JobEvent.objects.filter(job_id=item).order_by("pk").values()) for item in ids]
        for row in (*rows, *(event for item in events for event in item)):
            for name in DECIDED_BY_THE_INSERT & row.keys():
                row[name] = row[name] is None
        return [*zip(rows, events, strict=True), sorted(LaneMark.objects.values_list("lane_id", flat=True))]

    single = rows_of([job_services.submit(item, actor=ADA, reason="why").job.pk for item in VARIED])
    LaneMark.objects.all().delete()
    Job.objects.filter(idempotency_key="k").update(idempotency_key="k before")
    assert rows_of(job_services.enqueue_many(VARIED, actor=ADA, reason="why")) == [
        *single[:-1],
        sorted(set(single[-1])),  # a mark for each submission, or one for all of a call
    ]


SEPARATORS = ("a\nb", "\\N", "NULL", "{1,2}", "a\tb", "a\x01b", "%s %(id)s {0}", "\\", "'; --", '","x":"')


def test_separators_and_placeholders_in_a_bulk_are_stored_as_they_are() -> None:
    """The statement for many jobs sends them as one parameter."""
    items = [
        {"job_type": TYPE, "params": {"text": text, text: 1}, "idempotency_key": f"k{number}"}
        for number, text in enumerate(SEPARATORS)
    ]
    names = [text for text in SEPARATORS if text.isprintable()]
    items += [{"job_type": TYPE, "target": name, "tags": [name], "resource": name} for name in names]
    jobs = [Job.objects.get(pk=job_id) for job_id in job_services.enqueue_many(items)]
    assert [job.params for job in jobs[: len(SEPARATORS)]] == [item["params"] for item in items[: len(SEPARATORS)]]
    assert [(job.target, job.tags, job.resource) for job in jobs[len(SEPARATORS) :]] == [(n, [n], n) for n in names]


def test_a_bulk_submission_with_keys_keeps_its_order() -> None:
    """Rows are inserted in the order of their keys, and stand in the order of the call."""
    ids = job_services.enqueue_many([{"job_type": TYPE, "idempotency_key": key} for key in "dbca"])
    assert list(Job.objects.in_dispatch_order().values_list("pk", flat=True)) == ids


# signals


@pytest.fixture
def enqueued() -> Iterator[list[dict[str, Any]]]:
    heard: list[dict[str, Any]] = []

    def receive(signal: Any, **facts: Any) -> None:
        heard.append(facts)

    job_enqueued.connect(receive)
    yield heard
    job_enqueued.disconnect(receive)


@pytest.mark.django_db(transaction=True)
def test_each_created_job_sends_a_signal_after_the_commit(enqueued: list[dict[str, Any]]) -> None:
    with transaction.atomic():
        job = job_services.enqueue(TYPE, idempotency_key="k", tenant="acme")
        assert enqueued == []
    facts = {"job_id": job.pk, "job_type": TYPE, "tenant": "acme", "status": Status.QUEUED}
    assert enqueued == [{"sender": Job, **facts}]
    item = {"job_type": TYPE, "idempotency_key": "k", "tenant": "acme"}
    assert not job_services.submit(item).created
    ids = job_services.enqueue_many([item, {"job_type": TYPE, "hold": True}])
    assert [(item["job_id"], item["status"]) for item in enqueued[1:]] == [(ids[1], Status.PENDING)]


@pytest.mark.django_db(transaction=True)
def test_a_submission_that_is_rolled_back_sends_no_signal(enqueued: list[dict[str, Any]]) -> None:
    with transaction.atomic():
        job_services.enqueue(TYPE)
        transaction.set_rollback(True)
    assert enqueued == []


@pytest.mark.django_db(transaction=True)
def test_a_receiver_that_raises_changes_nothing() -> None:
    def fail(**facts: Any) -> None:
        raise RuntimeError("a receiver failed")

    job_enqueued.connect(fail)
    try:
        job = job_services.enqueue(TYPE)
    finally:
        job_enqueued.disconnect(fail)
    assert Job.objects.filter(pk=job.pk).exists()


@pytest.mark.django_db(transaction=True)
def test_pollers_are_told_once_for_each_insert() -> None:
    heard: list[Any] = []

    def receive(**facts: Any) -> None:
        heard.append(facts)

    events_committed.connect(receive)
    try:
        job_services.enqueue_many([{"job_type": TYPE}] * 3)
    finally:
        events_committed.disconnect(receive)
    assert len(heard) == 1


def test_job_actions_are_also_under_the_package() -> None:
    job = services.enqueue(TYPE)
    assert services.pause(job.pk, reason="later", actor=ADA).status == Status.PAUSED
    assert services.resume(job.pk).status == Status.QUEUED
    assert services.cancel(job.pk, reason="enough", actor=ADA).status == Status.CANCELLED
    assert services.retry(job.pk).retry_of_id == job.pk
