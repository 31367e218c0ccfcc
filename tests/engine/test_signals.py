"""Signals report every start and end of a job after its commit; a receiver that fails changes nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.db import connection, transaction

from jobs import signals
from jobs.engine import finish
from jobs.models import Job
from jobs.outcomes import Completed, Failed
from jobs.services import jobs as job_services
from jobs.states import Status
from tests.factories import JobFactory
from tests.sample_app import job_types
from tests.support import executor
from tests.support.signals import SignalRecorder, run_commit_hooks
from tests.support.snapshots import dump_tables

pytestmark = pytest.mark.django_db

TYPE = job_types.anything.name
Receive = Callable[..., SignalRecorder]


@pytest.fixture
def receive() -> Iterator[Receive]:
    """Connects receivers for one test."""
    connected: list[SignalRecorder] = []

    def connect(*wanted: Any) -> SignalRecorder:
        connected.append(SignalRecorder(*wanted))
        return connected[-1]

    yield connect
    for received in connected:
        received.disconnect()


def test_a_job_sends_one_signal_for_each_start_and_its_end(receive: Receive) -> None:
    enqueued, started, finished = map(receive, (signals.job_enqueued, signals.job_started, signals.job_finished))
    job = job_services.enqueue(TYPE, hold=True)
    job_services.release(job.pk)
    running = executor.claim(job)
    job_services.pause(job.pk)
    assert running.lease_token is not None
    finish.stop(job.pk, running.lease_token, actor=executor.WORKER)
    job_services.resume(job.pk)
    assert finished() == []
    executor.complete(executor.claim(job))
    facts = {"job_id": job.pk, "job_type": TYPE, "tenant": "default"}
    assert enqueued() == [facts | {"status": "PENDING"}]
    assert started() == [facts, facts]
    assert finished() == [facts | {"status": "COMPLETED", "reason": "", "retried_by": None}]


@pytest.mark.parametrize("end", ["cancel", "skip"])
def test_a_job_that_ends_without_a_run_is_finished_too(end: str, receive: Receive) -> None:
    from jobs.actors import SCHEDULER
    from jobs.engine import lifecycle

    finished = receive(signals.job_finished)
    job = job_services.enqueue(TYPE)
    {"cancel": lambda: job_services.cancel(job.pk, reason="why"),
     "skip": lambda: lifecycle.skip(job.pk, actor=SCHEDULER, reason="why")}[end]()  # fmt: skip
    assert finished("job_id", "reason") == [(job.pk, "why")]


def test_a_failure_names_its_retry_and_the_retry_is_enqueued(receive: Receive) -> None:
    enqueued, finished, failed = map(receive, (signals.job_enqueued, signals.job_finished, signals.job_failed))
    job = executor.fail(JobFactory.create(running=True), retry_in=10)
    manual = job_services.retry(executor.fail(JobFactory.create(running=True)).pk)
    assert finished("retried_by") == failed("retried_by") == [job.retried_by.pk, None]
    assert enqueued("job_id") == [job.retried_by.pk, manual.pk]


def test_only_failures_send_job_failed(receive: Receive) -> None:
    failed = receive(signals.job_failed)
    executor.complete(JobFactory.create(running=True))
    assert failed() == []


def test_a_replay_or_a_lost_finish_sends_nothing(receive: Receive) -> None:
    job = JobFactory.create(running=True)
    executor.finish(job, Completed())
    run_commit_hooks()
    received = receive(signals.job_finished, signals.events_committed)
    executor.finish(job, Completed())
    assert received() == []


@pytest.mark.django_db(transaction=True)
def test_a_receiver_is_called_after_the_commit() -> None:
    seen: list[tuple[bool, str]] = []

    def look(*, job_id: Any, **_facts: Any) -> None:
        seen.append((connection.in_atomic_block, Job.objects.get(pk=job_id).status))

    signals.job_finished.connect(look)
    try:
        with transaction.atomic():
            job_services.cancel(job_services.enqueue(TYPE).pk)
            assert seen == []
        executor.complete(JobFactory.create(running=True))
    finally:
        signals.job_finished.disconnect(look)
    assert seen == [(False, "CANCELLED"), (False, "COMPLETED")]


@pytest.mark.django_db(transaction=True)
def test_a_transaction_that_is_rolled_back_sends_nothing(receive: Receive) -> None:
    received = receive(signals.job_enqueued, signals.events_committed)
    with transaction.atomic():
        job_services.enqueue(TYPE)
        transaction.set_rollback(True)
    assert received() == []


def _transitions() -> dict[str, Callable[[], Any]]:
    """One transition of each way in which they are made."""
    return {
        "enqueue": lambda: job_services.enqueue(TYPE),
        "enqueue many": lambda: job_services.enqueue_many([{"job_type": TYPE}] * 3),
        "claim": executor.claim_next,
        "verb": lambda: job_services.cancel(Job.objects.queued()[0].pk),
        "stop request": lambda: job_services.cancel(Job.objects.running()[0].pk),
        "finish": lambda: executor.finish(Job.objects.running()[0], Completed()),
        "finish with a retry": lambda: executor.finish(Job.objects.running()[0], Failed("e", "r", retry_in=9)),
        "retry": lambda: job_services.retry(Job.objects.get(status=Status.FAILED).pk),
    }


ALL = (signals.job_enqueued, signals.job_started, signals.job_finished, signals.job_failed, signals.events_committed)


@pytest.mark.parametrize("transition", _transitions())
def test_a_receiver_that_fails_is_logged_and_the_transition_stands(
    transition: str, receive: Receive, caplog: pytest.LogCaptureFixture
) -> None:
    for status in ("queued", "running", "failed"):
        JobFactory.create(**{status: True})
    before = dump_tables()

    def fail(**_facts: Any) -> None:
        raise RuntimeError("the receiver fell over")

    for signal in ALL:
        signal.connect(fail)
    other = receive(signals.events_committed)
    try:
        with caplog.at_level(logging.ERROR, logger="django.dispatch"):
            _transitions()[transition]()
            assert other() != [], "events were written"
    finally:
        for signal in ALL:
            signal.disconnect(fail)
    assert dump_tables() != before
    assert "the receiver fell over" in caplog.text


def test_a_slow_receiver_is_logged(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(signals, "SLOW_SEC", -1.0)

    def look(**_facts: Any) -> None:
        """Take some time."""

    signals.job_enqueued.connect(look)
    try:
        with caplog.at_level(logging.WARNING, logger="jobs.signals"):
            job_services.enqueue(TYPE)
            run_commit_hooks()
    finally:
        signals.job_enqueued.disconnect(look)
    assert "receivers of job_enqueued took" in caplog.text


def test_a_callers_own_failure_takes_its_jobs_with_it() -> None:
    before = dump_tables()

    def checkout() -> None:
        with transaction.atomic():
            job_services.enqueue(TYPE, target="book-1", idempotency_key="order-1")
            raise LookupError("out of stock")

    with pytest.raises(LookupError):
        checkout()
    assert dump_tables() == before
