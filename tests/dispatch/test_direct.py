"""`jobs.direct`: a handler runs here and now; its lease tells who, when, and how it ended."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connections, transaction
from django.test import override_settings

import jobs
from jobs import actors, direct
from jobs.direct import bounded
from jobs.engine.selection import limits
from jobs.engine.slots import leases
from jobs.errors import (
    HandlerFailed,
    InvalidInput,
    InvalidOperationError,
    JobCancelled,
    NoSlot,
    Skip,
    TokenLimitExceeded,
)
from jobs.models import Job, JobEvent, Lease
from jobs.services import jobs as job_services
from jobs.states import LEASE_EXPIRED_REASON
from tests.dispatch import handlers
from tests.sample_app import job_types
from tests.support import executor
from tests.support.worker_processes import wait_until

TYPE = job_types.anything.name
QUICK = {"HEARTBEAT_SEC": 0.1, "LEASE_SEC": 2, "POLL_SEC": 0.05}


def lease() -> Lease:
    (found,) = Lease.objects.all()
    return found


@pytest.mark.django_db
def test_dec_004_unit_it_returns_what_the_handler_returned_and_makes_no_job() -> None:
    limits.sync_limits()
    fields = direct.run("direct.echo", {"word": "sea"}, actor=actors.make_cli_actor("ann"), tenant="acme")
    assert fields == {"word": "sea", "job_id": None, "secret": "s3cret"}
    assert not Job.objects.exists()
    assert not JobEvent.objects.exists()
    row = lease()
    assert (row.kind, row.owner, row.tenant, row.job_type, row.resource) == (
        *("DIRECT", "ann", "acme", "direct.echo", "ollama"),
    )
    assert row.granted_at is not None
    assert row.ended_at is not None
    assert row.outcome == "completed"


@pytest.mark.django_db
def test_the_limits_of_the_settings_hold_where_no_worker_has_ever_started() -> None:
    with jobs.direct.slot("direct.echo", wait=0), pytest.raises(NoSlot):
        jobs.direct.run("direct.echo", wait=0)


@pytest.mark.django_db
@override_settings(JOBSCHEDULER={"LIMITS": {"global": None}})
def test_without_a_limit_it_runs_at_once() -> None:
    limits.sync_limits()
    executor.claim(job_services.enqueue(TYPE))
    assert direct.run("direct.echo", wait=0)["word"] == "hello"


@pytest.mark.django_db
def test_async_handlers_run_too() -> None:
    assert direct.run("direct.later", {"word": "sea"}) == "SEA"


@pytest.mark.django_db
def test_python_code_may_call_any_local_type() -> None:
    assert direct.run("direct.private") == "for Python code only"


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("job_type", "raised", "outcome"),
    [
        ("direct.boom", RuntimeError, "failed: RuntimeError: first line"),
        ("direct.leave", SystemExit, "failed: SystemExit: 3"),
        ("direct.skip", Skip, "skipped: nothing new"),
    ],
)
def test_what_the_handler_raises_is_raised_and_the_slot_is_free(
    job_type: str, raised: type[BaseException], outcome: str
) -> None:
    limits.sync_limits()
    with pytest.raises(raised):
        direct.run(job_type)
    assert lease().outcome == outcome
    executor.claim(job_services.enqueue(TYPE))


@pytest.mark.django_db
def test_as_a_document_a_skip_is_an_answer_and_a_failure_has_one_name() -> None:
    answer = bounded.execute("direct.skip")
    assert (answer.result, answer.skipped) == (None, "nothing new")
    for job_type in ("direct.boom", "direct.leave"):
        with pytest.raises(HandlerFailed):
            bounded.execute(job_type)


@pytest.mark.django_db
def test_a_handler_past_its_budget_fails_even_if_it_does_not_notice() -> None:
    assert direct.run("direct.spend", {"tokens": 10}) == 10
    with pytest.raises(TokenLimitExceeded):
        direct.run("direct.spend", {"tokens": 11})


@pytest.mark.django_db
def test_a_handler_past_its_time_is_asked_to_stop() -> None:
    with pytest.raises(JobCancelled):
        direct.run("direct.patient")
    with pytest.raises(asyncio.CancelledError):
        direct.run("direct.patient_task")


@pytest.mark.django_db
def test_nothing_is_reserved_for_what_cannot_run() -> None:
    wrong: list[tuple[str, Any]] = [
        ("direct.nowhere", {}),
        ("direct.elsewhere", {}),
        ("direct.echo", {"word": 3}),
        ("direct.echo", []),
        ("", {}),
    ]
    for job_type, params in wrong:
        with pytest.raises(InvalidInput):
            direct.run(job_type, params)
    for wait in (-1, "soon", float("nan")):
        with pytest.raises(InvalidInput), direct.slot("direct.echo", wait=wait):  # type: ignore[arg-type]
            pass
    assert not Lease.objects.exists()


@pytest.mark.django_db
def test_dec_004_error_the_wait_is_bounded_and_leaves_nothing_shut() -> None:
    limits.sync_limits()
    running = executor.claim(job_services.enqueue(TYPE))
    with pytest.raises(NoSlot, match="within 0 s"):
        direct.run("direct.echo", wait=0)
    with override_settings(JOBSCHEDULER={"DIRECT_WAIT_SEC": 0.1}), pytest.raises(NoSlot, match=r"within 0\.1 s"):
        direct.run("direct.echo")
    assert {row.outcome for row in Lease.objects.all()} == {"gave up waiting"}
    executor.complete(running)
    executor.claim(job_services.enqueue(TYPE))


@pytest.mark.django_db
def test_a_slot_is_held_for_as_long_as_its_block_runs() -> None:
    limits.sync_limits()
    job = job_services.enqueue(TYPE)
    with direct.slot("direct.echo", wait=0) as slot:
        assert (slot.lost, slot.waited_ms >= 0) == (False, True)
        assert executor.claim_next() is None
    executor.complete(executor.claim(job))
    with pytest.raises(KeyError), direct.slot("direct.elsewhere", wait=0):
        raise KeyError("x")
    assert {row.outcome for row in Lease.objects.all()} == {"completed", "failed: KeyError: 'x'"}


@pytest.mark.django_db(transaction=True)
def test_inside_a_transaction_of_the_caller_it_is_refused() -> None:
    """No other transaction would see the reservation, and the limits would stay locked until the caller commits."""
    with transaction.atomic(), pytest.raises(InvalidOperationError):
        direct.run("direct.echo")
    assert not Lease.objects.exists()


@pytest.mark.django_db(transaction=True)
@override_settings(JOBSCHEDULER=QUICK)
def test_a_waiting_call_is_woken_and_its_heart_beats_meanwhile() -> None:
    limits.sync_limits()
    running = executor.claim(job_services.enqueue(TYPE))
    with calling("direct.echo", {"word": "sea"}) as answers:
        wait_until(lambda: Lease.objects.filter(granted_at=None).exists())
        first = lease().expires_at
        wait_until(lambda: lease().expires_at > first)
        assert not answers
        executor.complete(running)
    assert answers[0]["word"] == "sea"
    assert lease().outcome == "completed"


@pytest.mark.django_db(transaction=True)
@override_settings(JOBSCHEDULER=QUICK)
def test_a_handler_whose_lease_is_lost_is_told_to_stop() -> None:
    limits.sync_limits()
    with calling("direct.until_lost") as answers:
        wait_until(lambda: Lease.objects.filter(granted_at__isnull=False).exists())
        leases.end_lease(lease().pk, LEASE_EXPIRED_REASON)
    assert answers == [True]
    assert lease().outcome == LEASE_EXPIRED_REASON, "what was recorded stands"


@contextmanager
def calling(job_type: str, params: dict[str, Any] | None = None) -> Iterator[list[Any]]:
    """A direct call on a thread of its own, as in another request; done when the block has ended."""
    answers: list[Any] = []

    def call() -> None:
        try:
            answers.append(direct.run(job_type, params))
        except BaseException as error:  # noqa: BLE001
            answers.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=call)
    thread.start()
    try:
        yield answers
    finally:
        thread.join(30)
    assert not thread.is_alive()


assert handlers  # registers them
