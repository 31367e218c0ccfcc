"""Other apps hear of every move inside its transaction; a guest that fails is a guest, our own outbox is not."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from django.db import DatabaseError, connection, transaction

from jobs import hooks, services
from jobs.engine import ending
from jobs.engine.ending import End
from jobs.hooks import Event, Moved
from jobs.models import Job, JobTemplate
from jobs.outcomes import Completed, Failed
from jobs.states import EventKind, Status
from tests import executor, sample_jobs
from tests.factories import JobFactory, JobTemplateFactory
from tests.snapshots import everything

pytestmark = pytest.mark.django_db

TYPE = sample_jobs.anything.name
Listen = Callable[..., list[Event]]


@pytest.fixture
def listen() -> Iterator[Listen]:
    """Registers a hook for one test; returns what it hears. `then` is what it does with the events."""
    registered: list[hooks.Hook] = []

    def register(then: Callable[[Sequence[Event]], Any] | None = None, *, required: bool = False) -> list[Event]:
        heard: list[Event] = []

        def hook(events: Sequence[Event]) -> None:
            heard.extend(events)
            if then is not None:
                then(events)

        registered.append(hooks.listen(hook, required=required))
        return heard

    yield register
    for hook in registered:
        hooks.forget(hook)


@pytest.fixture(autouse=True)
def _fresh_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hooks, "failures", {})


def _boom(events: Sequence[Event]) -> None:
    raise RuntimeError("the guest fell over")


def _bad_sql(events: Sequence[Event]) -> None:
    JobTemplateFactory.create(name="left by a failing guest")
    with connection.cursor() as cursor:
        cursor.execute("SELECT no_such_column FROM jobscheduler_job")


def test_a_hook_hears_of_every_move_of_a_job(listen: Listen) -> None:
    heard = listen()
    job = services.enqueue(TYPE, hold=True, reason="r0")
    services.release(job.pk, reason="r1")
    running = executor.take(job)
    services.pause(job.pk, reason="r2")
    assert running.lease_token is not None
    ending.stop(job.pk, running.lease_token, actor=executor.WORKER)
    services.resume(job.pk, reason="r3")
    executor.complete(executor.take(job))
    moves = [event for event in heard if isinstance(event, Moved)]
    assert {move.job_id for move in moves} == {job.pk}
    assert {move.tenant for move in moves} == {"default"}
    assert [(str(move.kind), move.source and str(move.source), str(move.target)) for move in moves] == [
        ("SUBMITTED", None, "PENDING"),
        ("RELEASED", "PENDING", "QUEUED"),
        ("RUNNING", "QUEUED", "RUNNING"),
        ("PAUSE_REQUESTED", "RUNNING", "RUNNING"),
        ("PAUSED", "RUNNING", "PAUSED"),
        ("RESUMED", "PAUSED", "QUEUED"),
        ("RUNNING", "QUEUED", "RUNNING"),
        ("COMPLETED", "RUNNING", "COMPLETED"),
    ]
    assert [move.reason for move in moves][:2] == ["r0", "r1"]


def test_a_hook_gets_all_moves_of_one_step_at_once(listen: Listen) -> None:
    sizes: list[int] = []
    listen(lambda events: sizes.append(len(events)))
    services.enqueue_many([{"job_type": TYPE}] * 50)
    running = [executor.take_next() for _ in range(3)]
    del sizes[1:]
    ends = [End(job.pk, job.lease_token, Completed()) for job in running if job and job.lease_token]
    ending.finish(ends, actor=executor.WORKER)
    assert sizes == [50, 3]


def test_several_steps_that_are_gathered_are_told_at_once_and_in_their_order(listen: Listen) -> None:
    sizes: list[int] = []
    heard = listen(lambda events: sizes.append(len(events)), required=True)
    job = executor.take(services.enqueue(TYPE))
    del sizes[:], heard[:]
    with transaction.atomic(), hooks.gathered():
        executor.finish(job, Completed())
        services.enqueue(TYPE)
        executor.take_next()
        assert sizes == []
    assert sizes == [3]
    assert [str(event.kind) for event in heard if isinstance(event, Moved)] == ["COMPLETED", "SUBMITTED", "RUNNING"]
    services.enqueue(TYPE)
    assert sizes == [3, 1]


def test_what_was_gathered_and_is_taken_back_is_told_to_nobody(listen: Listen) -> None:
    heard = listen()

    def fail() -> None:
        with transaction.atomic(), hooks.gathered():
            services.enqueue(TYPE)
            raise RuntimeError("taken back")

    with pytest.raises(RuntimeError, match="taken back"):
        fail()
    assert heard == []
    services.enqueue(TYPE)
    assert len(heard) == 1


def test_a_hook_learns_of_the_retry_that_a_failure_made(listen: Listen) -> None:
    heard = listen()
    job = executor.fail(JobFactory.create(running=True), retry_in=10)
    failed = next(event for event in heard if isinstance(event, Moved) and event.kind == EventKind.FAILED)
    assert failed.retried_by == job.retried_by.pk


def test_a_hook_hears_of_the_birth_of_every_job_automatic_retries_too(listen: Listen) -> None:
    heard = listen()
    job = executor.fail(JobFactory.create(running=True), retry_in=10)
    manual = services.retry(executor.fail(JobFactory.create(running=True)).pk)
    born = [event.job_id for event in heard if isinstance(event, Moved) and event.kind == EventKind.SUBMITTED]
    assert born == [job.retried_by.pk, manual.pk]


def test_a_replay_or_a_lost_finish_is_not_told_again(listen: Listen) -> None:
    job = JobFactory.create(running=True)
    executor.finish(job, Completed())
    heard = listen()
    executor.finish(job, Completed())
    assert heard == []


def test_a_hook_runs_inside_the_transaction_of_the_move(listen: Listen) -> None:
    seen: list[tuple[bool, str]] = []

    def look(events: Sequence[Event]) -> None:
        for event in events:
            assert isinstance(event, Moved)
            seen.append((connection.in_atomic_block, Job.objects.get(pk=event.job_id).status))

    listen(look, required=True)
    job = services.enqueue(TYPE)
    services.cancel(job.pk)
    executor.complete(JobFactory.create(running=True))
    assert seen == [(True, "QUEUED"), (True, "CANCELLED"), (True, "COMPLETED")]


def _moves() -> dict[str, Callable[[], Any]]:
    """One move of each way in which moves are made."""
    return {
        "enqueue": lambda: services.enqueue(TYPE),
        "enqueue many": lambda: services.enqueue_many([{"job_type": TYPE}] * 3),
        "claim": executor.take_next,
        "verb": lambda: services.cancel(Job.objects.queued()[0].pk),
        "stop request": lambda: services.cancel(Job.objects.running()[0].pk),
        "finish": lambda: executor.finish(Job.objects.running()[0], Completed()),
        "finish with a retry": lambda: executor.finish(Job.objects.running()[0], Failed("e", "r", retry_in=9)),
        "retry": lambda: services.retry(Job.objects.get(status=Status.FAILED).pk),
    }


def _world() -> None:
    JobFactory.create()
    JobFactory.create(running=True)
    JobFactory.create(failed=True)


@pytest.mark.parametrize("move", _moves())
@pytest.mark.parametrize("fail", [_boom, _bad_sql], ids=["raises", "breaks its SQL"])
def test_a_failing_guest_is_logged_and_counted_and_the_move_stands(
    move: str, fail: Callable[..., Any], listen: Listen, caplog: pytest.LogCaptureFixture
) -> None:
    _world()
    heard, other = listen(fail), listen()
    before = everything()
    with caplog.at_level(logging.ERROR, logger="jobs.hooks"):
        _moves()[move]()
    assert everything() != before
    assert heard == other != []
    assert not JobTemplate.objects.exists(), "what the failing guest wrote is undone"
    assert list(hooks.failures.values()) == [1]
    assert [record.name for record in caplog.records] == ["jobs.hooks"]
    assert "test_hooks" in caplog.records[0].getMessage()


@pytest.mark.parametrize("move", _moves())
def test_a_failing_required_hook_takes_the_move_back(move: str, listen: Listen) -> None:
    _world()
    guests = listen(lambda events: JobTemplateFactory.create(name="written by a guest"))
    listen(_boom, required=True)
    before = everything()
    with pytest.raises(RuntimeError, match="fell over"):
        _moves()[move]()
    assert everything() == before
    assert guests != []


def test_a_required_hook_that_breaks_its_sql_takes_the_move_back(listen: Listen) -> None:
    job = JobFactory.create(running=True)
    listen(_bad_sql, required=True)
    before = everything()
    with pytest.raises(DatabaseError):
        executor.finish(job, Completed())
    assert everything() == before


def test_a_transaction_that_is_rolled_back_leaves_nothing(listen: Listen) -> None:
    heard = listen(lambda events: JobTemplateFactory.create(name="outbox"), required=True)
    before = everything()
    with transaction.atomic():
        services.enqueue(TYPE)
        assert len(heard) == 1
        transaction.set_rollback(True)
    assert everything() == before


def test_a_callers_own_failure_takes_its_jobs_with_it() -> None:
    before = everything()

    def checkout() -> None:
        with transaction.atomic():
            services.enqueue(TYPE, target="book-1", idempotency_key="order-1")
            raise LookupError("out of stock")

    with pytest.raises(LookupError):
        checkout()
    assert everything() == before


def test_listening_twice_is_listening_once() -> None:
    heard: list[Event] = []

    def hook(events: Sequence[Event]) -> None:
        heard.extend(events)

    hooks.listen(hook)
    hooks.listen(hook)
    try:
        services.enqueue(TYPE)
        assert len(heard) == 1
    finally:
        hooks.forget(hook)
    services.enqueue(TYPE)
    assert len(heard) == 1
