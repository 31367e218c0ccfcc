"""Retry chains: linear, made exactly once, and the hold on the lane is handed on along them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from jobs.engine.job_spec import COLUMNS
from jobs.engine.sql.columns import INITIAL_VALUES, SUBMISSION_COLUMNS
from jobs.errors import LiveTail, Superseded, WrongState
from jobs.models import Gate, Job
from jobs.services import jobs as job_services
from jobs.states import TERMINAL, Status
from tests.factories import JobFactory, JobGroupFactory, JobTemplateFactory, ScheduleFactory, job_in
from tests.sample_app import job_types
from tests.support import executor
from tests.support.snapshots import dump_tables, list_event_kinds, list_events

pytestmark = pytest.mark.django_db

NEVER_COPIED = ("idempotency_key", "not_before", "hold")
TYPE = job_types.anything.name


def _fully_described() -> dict[str, Any]:
    now = timezone.now()
    return {
        "job_type": TYPE,
        "params": {"a": [1, {"b": "ü"}]},
        "template": JobTemplateFactory.create(),
        "tags": ["red", "blue"],
        "tenant": "acme",
        "target": "book-1",
        "addon_id": "addon-1",
        "resource": "ollama",
        "priority": 90,
        "base_priority": 75,
        "deadline_at": now + timedelta(days=1),
        "time_sensitive": True,
        "expected_duration_sec": 12.5,
        "max_runtime_sec": 600.0,
        "cost_units": 7,
        "constraints": {"cpu_heavy": True},
        "token_limit": 1000,
        "max_retries": 5,
        "retry_policy": {"base_sec": 3},
        "group": JobGroupFactory.create(tenant="acme"),
        "group_index": 2,
        "schedule": ScheduleFactory.create(),
        "fire_time": now,
        "idempotency_key": "once",
        "idempotency_hash": "f" * 64,
        "not_before": now - timedelta(hours=1),
        "checkpoint": {"page": 7},
        "tokens_used": 55,
        "progress": 0.5,
    }


def _assert_follows(retry: Job, job: Job) -> None:
    for column in SUBMISSION_COLUMNS:
        assert getattr(retry, column) == getattr(job, column), column
    assert (retry.retry_of_id, retry.attempt) == (job.pk, job.attempt + 1)
    assert (retry.idempotency_key, retry.idempotency_hash, retry.hold) == (None, "", False)
    assert (retry.priority, retry.tokens_used, retry.progress) == (job.base_priority, 0, None)
    assert (retry.cancel_requested, retry.dispatched_at, retry.resolved_at) == (False, None, None)
    assert retry.status == Status.QUEUED


def test_the_columns_of_a_job_are_either_submitted_or_born_or_state() -> None:
    """A new column must be given its place, or retries would lose it unseen."""
    made = {*COLUMNS, *INITIAL_VALUES, "priority", "created_at", "gate"}
    nullable_state = {field.column for field in Job._meta.concrete_fields if field.null} - made
    assert made | nullable_state == {field.column for field in Job._meta.concrete_fields}


def test_an_automatic_retry_copies_every_submission_field() -> None:
    job = JobFactory.create(running=True, **_fully_described())
    executor.fail(job, retry_in=10)
    _assert_follows(job.retried_by, job)
    assert job.retried_by.checkpoint == {"page": 7}
    assert job.retried_by.gate == Gate.TIME


@pytest.mark.parametrize("fresh", [False, True])
def test_a_manual_retry_copies_every_submission_field(fresh: bool) -> None:
    job = JobFactory.create(failed=True, **_fully_described())
    retry = job_services.retry(job.pk, fresh=fresh)
    _assert_follows(retry, job)
    assert retry.checkpoint == (None if fresh else {"page": 7})
    assert (retry.not_before, retry.gate) == (None, Gate.LANE)


def test_a_resume_of_a_failed_job_copies_every_submission_field() -> None:
    job = JobFactory.create(failed=True, **_fully_described())
    retry = job_services.resume(job.pk)
    _assert_follows(retry, job)
    assert retry.checkpoint == {"page": 7}


@pytest.mark.parametrize("status", sorted(TERMINAL))
def test_any_ended_job_can_be_retried(status: Status) -> None:
    job = job_in(status)
    retry, made = job_services.submit_retry(job.pk, reason="once more")
    assert (made, retry.retry_of_id, retry.status) == (True, job.pk, Status.QUEUED)
    assert list_event_kinds(job) == ["RETRY_CREATED"]
    assert list_events(job)[0].data == {"retried_by": str(retry.pk)}
    assert [event.reason for event in (*list_events(job), *list_events(retry))] == ["once more", "once more"]


def test_a_chain_stays_linear_whichever_job_is_named() -> None:
    first = JobFactory.create(failed=True)
    chain = [first]
    for turn in range(5):
        named = chain[turn // 2]
        retry = job_services.retry(named.pk)
        assert retry.retry_of_id == chain[-1].pk
        chain.append(executor.fail(executor.claim(retry)))
    assert [job.attempt for job in chain] == [1, 2, 3, 4, 5, 6]
    assert [job.pk for job in Job.objects.latest_attempts()] == [chain[-1].pk]


@pytest.mark.parametrize("status", [Status.QUEUED, Status.DISPATCHING, Status.RUNNING, Status.PAUSED, Status.PENDING])
def test_a_chain_with_a_live_tail_is_not_retried(status: Status) -> None:
    first = JobFactory.create(failed=True)
    tail = job_in(status, retry_of=first, attempt=2)
    before = dump_tables()
    for named in (first, tail):
        with pytest.raises(LiveTail) as refusal:
            job_services.retry(named.pk)
        assert (refusal.value.tail_id, refusal.value.status) == (tail.pk, status)
    assert dump_tables() == before


def test_a_retry_in_backoff_is_sent_off_at_once() -> None:
    job = executor.fail(JobFactory.create(running=True, in_lane=True), retry_in=3600)
    waiting = job.retried_by
    assert waiting.gate == Gate.TIME
    sent, made = job_services.submit_retry(job.pk, reason="now")
    assert (sent.pk, made, sent.not_before, sent.gate) == (waiting.pk, False, None, Gate.LANE)
    assert list_events(sent)[-1].kind == "UPDATED"
    assert (list_events(sent)[-1].reason, list_events(sent)[-1].data["new"]) == ("now", {"not_before": None})
    assert executor.claim_next() == sent


def test_a_job_that_was_asked_to_wait_is_no_retry_in_backoff() -> None:
    job = JobFactory.create(not_before=timezone.now() + timedelta(hours=1))
    before = dump_tables()
    with pytest.raises(WrongState):
        job_services.retry(job.pk)
    assert dump_tables() == before


def test_a_failed_job_is_resumed_at_the_head_of_its_target() -> None:
    failed = executor.fail(executor.claim(job_services.enqueue(TYPE, target="book-1")))
    waiting = [job_services.enqueue(TYPE, target="book-1") for _ in range(3)]
    early = job_services.move(waiting[2].pk, to="top")
    resumed = job_services.resume(failed.pk)
    assert resumed.position < early.position
    for expected in (resumed, early, waiting[0], waiting[1]):
        executor.complete(executor.claim(expected))


def test_a_resolved_failure_is_resumed_at_the_head_too() -> None:
    failed = executor.fail(executor.claim(job_services.enqueue(TYPE, target="book-1")))
    job_services.resolve(failed.pk)
    job_services.enqueue(TYPE, target="book-1")
    resumed = job_services.resume(failed.pk)
    executor.claim(resumed)


def test_a_failed_job_that_was_retried_is_not_resumed() -> None:
    """The answer names the end of the chain, not just the next job."""
    first = JobFactory.create(failed=True)
    second = JobFactory.create(failed=True, retry_of=first, attempt=2)
    third = JobFactory.create(queued=True, retry_of=second, attempt=3)
    before = dump_tables()
    with pytest.raises(Superseded) as refusal:
        job_services.resume(first.pk)
    assert refusal.value.tail_id == third.pk
    assert dump_tables() == before


def test_the_hold_on_a_lane_is_handed_on_along_the_chain() -> None:
    job = executor.claim(job_services.enqueue(TYPE, target="book-1"))
    other = job_services.enqueue(TYPE, target="book-1", priority="URGENT")
    executor.fail(job, retry_in=3600)
    assert executor.claim_next() is None, "the chain in backoff holds the lane"
    retry = job_services.retry(job.pk)
    again = executor.fail(executor.claim(retry))
    assert executor.claim_next() is None, "a failed tail holds the lane"
    manual = job_services.retry(again.pk)
    assert [job.pk for job in Job.objects.filter(holds_lane=True)] == [manual.pk]
    executor.complete(executor.claim(manual))
    executor.claim(other)


def test_a_cancelled_tail_lets_the_lane_go() -> None:
    job = executor.fail(executor.claim(job_services.enqueue(TYPE, target="book-1")), retry_in=3600)
    other = job_services.enqueue(TYPE, target="book-1")
    job_services.cancel(job.retried_by.pk)
    executor.claim(other)


def test_a_resolved_failure_lets_the_lane_go() -> None:
    job = executor.fail(executor.claim(job_services.enqueue(TYPE, target="book-1")))
    other = job_services.enqueue(TYPE, target="book-1")
    assert job.blocks_target
    resolved = job_services.resolve(job.pk, reason="known")
    assert (resolved.status_reason, list_events(resolved)[-1].reason) == ("boom", "known")
    assert (resolved.status, resolved.blocks_target, resolved.resolved_at is not None) == ("FAILED", False, True)
    executor.claim(other)


def test_a_failure_is_resolved_once() -> None:
    job = JobFactory.create(failed=True, in_lane=True)
    job_services.resolve(job.pk)
    before = dump_tables()
    with pytest.raises(WrongState) as refusal:
        job_services.resolve(job.pk)
    assert refusal.value.status == Status.FAILED
    assert "resolve" not in refusal.value.allowed
    assert dump_tables() == before


def test_only_the_end_of_a_chain_is_resolved() -> None:
    job = executor.fail(JobFactory.create(running=True), retry_in=10)
    before = dump_tables()
    with pytest.raises(WrongState):
        job_services.resolve(job.pk)
    assert dump_tables() == before


def test_a_retry_after_a_resolution_starts_without_the_hold() -> None:
    job = executor.fail(executor.claim(job_services.enqueue(TYPE, target="book-1")))
    job_services.resolve(job.pk)
    retry = job_services.retry(job.pk)
    assert retry.holds_lane is False
    assert job_services.resume(job_services.pause(retry.pk).pk).holds_lane is False


def test_a_paused_retry_keeps_the_lane_when_it_is_resumed() -> None:
    job = executor.fail(executor.claim(job_services.enqueue(TYPE, target="book-1")), retry_in=3600)
    assert job_services.resume(job_services.pause(job.retried_by.pk).pk).holds_lane is True
