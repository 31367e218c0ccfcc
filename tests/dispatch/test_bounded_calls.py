"""Direct calls through the API: few at a time, answered in time, listed, and ended by an operator.

Tests in which heartbeats renew a lease commit it: the heartbeat has a connection of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.contrib.auth.models import User
from django.db import connections
from django.test import override_settings
from django.utils import timezone, translation

from jobs import actors
from jobs.direct import bounded
from jobs.engine.selection import limits
from jobs.engine.slots import leases, reservations
from jobs.errors import CallEnded, HandlerFailed, HandlerTimedOut, InvalidInput, NoSlot, NotDirect, NotFound, WrongState
from jobs.models import Lease
from jobs.policies.admission import Candidate
from jobs.services import direct_calls, tokens
from jobs.services import jobs as job_services
from jobs.states import LEASE_EXPIRED_REASON
from tests.dispatch import handlers
from tests.dispatch.handlers import Gate
from tests.factories import LeaseFactory
from tests.sample_app import job_types
from tests.support import executor
from tests.support.worker_processes import wait_until

TYPE = job_types.anything.name
QUICK = {"HEARTBEAT_SEC": 0.1, "LEASE_SEC": 2, "POLL_SEC": 0.05}
SHORT = {**QUICK, "DIRECT_MAX_RUNTIME_SEC": 0.2}


@pytest.fixture(autouse=True)
def heartbeats_end_with_the_test() -> Iterator[None]:
    yield
    wait_until(lambda: all(thread.name != "lease-heartbeat" for thread in threading.enumerate()))


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Return a gate of this test under the name "gate". Its handler has ended when the test has."""
    handlers.gates["gate"] = gate = Gate()
    yield gate
    gate.is_open.set()
    wait_until(lambda: bounded.process_calls.count == 0)


@contextmanager
def calling(*args: Any, **kwargs: Any) -> Iterator[list[Any]]:
    """Make a bounded call in a thread, as a request does; its result or error is there when the block has ended."""
    answers: list[Any] = []

    def call() -> None:
        try:
            answers.append(bounded.execute(*args, **kwargs))
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


def reserve(api_token: UUID | None, tenant: str = "default") -> Lease:
    return reservations.reserve_slot(Candidate(tenant=tenant, job_type=TYPE), "tests", api_token)


# ---------------------------------------------------------------------- in time


@pytest.mark.django_db(transaction=True)
@override_settings(JOBSCHEDULER=SHORT)
def test_a_handler_past_the_limit_is_asked_to_stop_and_loses_its_slot_and_its_result(gate: Gate) -> None:
    limits.sync_limits()
    with pytest.raises(HandlerTimedOut, match=r"0\.2 s"):
        bounded.execute("direct.deaf", {"gate": "gate"})
    assert gate.ctx.cancelled
    assert Lease.objects.get().outcome == "exceeded 0.2 s"
    executor.claim(job_services.enqueue(TYPE))
    gate.is_open.set()
    wait_until(lambda: bounded.process_calls.count == 0)
    assert Lease.objects.get().outcome == "exceeded 0.2 s", "what the handler does later is not recorded"


@pytest.mark.django_db
def test_the_shorter_limit_of_the_handler_bounds_the_call() -> None:
    with pytest.raises(HandlerTimedOut, match=r"0\.2 s"):
        bounded.execute("direct.patient")


@pytest.mark.django_db(transaction=True)
@override_settings(JOBSCHEDULER=SHORT)
def test_an_async_handler_past_the_limit_is_cancelled(gate: Gate) -> None:
    with pytest.raises(HandlerTimedOut):
        bounded.execute("direct.endless", {"gate": "gate"})
    wait_until(gate.is_open.is_set)


@pytest.mark.django_db(transaction=True)
@override_settings(JOBSCHEDULER=SHORT)
def test_an_abandoned_handler_closes_its_database_connection_when_it_ends(gate: Gate) -> None:
    with pytest.raises(HandlerTimedOut):
        bounded.execute("direct.deaf", {"gate": "gate"})
    assert not is_closed(gate.connection)
    gate.is_open.set()
    wait_until(lambda: is_closed(gate.connection))


def is_closed(connection: Any) -> bool:
    if hasattr(connection, "closed"):  # psycopg
        return bool(connection.closed)
    try:
        connection.total_changes  # noqa: B018 — sqlite3 has no other question that any thread may ask
    except Exception as error:  # noqa: BLE001
        return "closed" in str(error)
    return False


@pytest.mark.django_db
def test_a_handler_has_the_language_time_zone_and_context_of_its_caller() -> None:
    token = handlers.request_id.set("r-7")
    try:
        with translation.override("de"), timezone.override("Asia/Tokyo"):
            found = bounded.execute("direct.surroundings").result
    finally:
        handlers.request_id.reset(token)
    assert found.pop("thread") != threading.get_ident()
    assert found == {"language": "de", "time_zone": "Asia/Tokyo", "request_id": "r-7"}


# ---------------------------------------------------------------------- few at a time


@pytest.mark.django_db(transaction=True)
@override_settings(JOBSCHEDULER={**SHORT, "DIRECT_MAX": 1, "LIMITS": {"global": None}})
def test_an_abandoned_handler_counts_in_its_process_until_it_ends(gate: Gate) -> None:
    limits.sync_limits()
    with pytest.raises(HandlerTimedOut):
        bounded.execute("direct.deaf", {"gate": "gate"})
    with pytest.raises(NoSlot, match="DIRECT_MAX "):
        bounded.execute("direct.echo")
    gate.is_open.set()
    wait_until(lambda: bounded.process_calls.count == 0)
    bounded.execute("direct.echo")


@pytest.mark.django_db(transaction=True)
@override_settings(JOBSCHEDULER={**QUICK, "DIRECT_MAX": 1})
def test_a_call_that_waits_counts_in_its_process_and_one_that_gave_up_does_not() -> None:
    limits.sync_limits()
    running = executor.claim(job_services.enqueue(TYPE))
    with calling("direct.echo") as answers:
        wait_until(lambda: Lease.objects.filter(granted_at=None).exists())
        with pytest.raises(NoSlot, match="DIRECT_MAX "):
            bounded.execute("direct.echo")
        executor.complete(running)
    assert answers[0].result["word"] == "hello"
    executor.claim(job_services.enqueue(TYPE))
    for _ in range(2):
        with pytest.raises(NoSlot, match="within 0 s"):
            bounded.execute("direct.echo", wait=0)


@pytest.mark.django_db
@pytest.mark.parametrize("job_type", ["direct.echo", "direct.boom", "direct.skip", "direct.private", "direct.nowhere"])
def test_whatever_comes_of_a_call_it_counts_no_longer(job_type: str) -> None:
    for _ in range(2):
        with override_settings(JOBSCHEDULER={"DIRECT_MAX": 1}), suppress(HandlerFailed, InvalidInput):
            bounded.execute(job_type)
    assert bounded.process_calls.count == 0


@pytest.mark.django_db
@override_settings(JOBSCHEDULER={"LIMITS": {"global": None}})
def test_a_token_has_so_many_calls_at_once_that_wait_or_run_in_any_process() -> None:
    limits.sync_limits()
    mine, theirs = (tokens.create(name)[0].pk for name in ("mine", "theirs"))
    first, _second = reserve(mine), reserve(mine)
    with pytest.raises(NoSlot, match="DIRECT_PER_TOKEN"):
        bounded.execute("direct.echo", api_token=mine)
    assert Lease.objects.count() == 2, "nothing is reserved"
    reserve(theirs)
    reserve(None)
    leases.end_lease(first.pk, "completed")
    bounded.execute("direct.echo", api_token=mine)


@pytest.mark.django_db
@override_settings(JOBSCHEDULER={"LIMITS": {"global": None}, "DIRECT_PER_TOKEN": 1})
def test_a_call_of_a_dead_process_does_not_count_for_its_token() -> None:
    limits.sync_limits()
    token = tokens.create("mine")[0].pk
    dead = reserve(token)
    Lease.objects.filter(pk=dead.pk).update(expires_at=timezone.now() - timedelta(days=1), beat_clock=None)
    bounded.execute("direct.echo", api_token=token)
    assert Lease.objects.get(pk=dead.pk).outcome == LEASE_EXPIRED_REASON


@pytest.mark.django_db(transaction=True)
@override_settings(JOBSCHEDULER={"LIMITS": {"global": None}})
def test_calls_of_one_token_that_come_together_are_counted_one_after_the_other() -> None:
    limits.sync_limits()
    token = tokens.create("mine")[0].pk
    together, outcomes = threading.Barrier(8), []

    def call() -> None:
        together.wait(30)
        try:
            outcomes.append(reserve(token).pk)
        except NoSlot:
            outcomes.append(None)
        finally:
            connections.close_all()

    run_in_threads(8, call)
    assert len(outcomes) == 8
    assert Lease.objects.filter(ended_at=None).count() == sum(pk is not None for pk in outcomes) == 2


def run_in_threads(count: int, work: Callable[[], None]) -> None:
    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)


@pytest.mark.django_db
def test_a_type_that_is_not_registered_for_it_is_refused_and_reserves_nothing() -> None:
    for job_type in ("direct.private", "system.sleep", "system.noop"):
        with pytest.raises(NotDirect, match=r"direct=True"):
            bounded.execute(job_type)
    assert not Lease.objects.exists()


# ---------------------------------------------------------------------- ended by an operator

ANN = actors.make_user_actor(User(username="ann"))


@pytest.mark.django_db(transaction=True)
@override_settings(JOBSCHEDULER=QUICK)
def test_a_call_that_an_operator_ends_loses_its_slot_at_once_and_its_caller_learns_by_whom(gate: Gate) -> None:
    limits.sync_limits()
    queued = job_services.enqueue(TYPE)
    with calling("direct.deaf", {"gate": "gate"}) as answers:
        wait_until(gate.is_reached.is_set)
        direct_calls.end(Lease.objects.get().pk, reason="too slow", actor=ANN)
        executor.claim(queued)
        wait_until(lambda: answers)
    assert isinstance(answers[0], CallEnded)
    assert "ended by ann: too slow" in str(answers[0])
    assert gate.ctx.cancelled
    assert Lease.objects.get().outcome == "ended by ann: too slow"


@pytest.mark.django_db(transaction=True)
@override_settings(JOBSCHEDULER=QUICK)
def test_a_call_that_waits_can_be_ended_too() -> None:
    limits.sync_limits()
    executor.claim(job_services.enqueue(TYPE))
    with calling("direct.echo") as answers:
        wait_until(lambda: Lease.objects.filter(granted_at=None).exists())
        direct_calls.end(Lease.objects.get().pk, actor=ANN)
    assert isinstance(answers[0], CallEnded)
    assert bounded.process_calls.count == 0


@pytest.mark.django_db(transaction=True)
@override_settings(JOBSCHEDULER={"HEARTBEAT_SEC": 60, "LEASE_SEC": 600})
def test_a_result_that_comes_after_the_end_is_no_success(gate: Gate) -> None:
    """The handler returns before a heartbeat has noticed that its lease is over."""
    with calling("direct.deaf", {"gate": "gate"}) as answers:
        wait_until(gate.is_reached.is_set)
        direct_calls.end(Lease.objects.get().pk, actor=ANN)
        gate.is_open.set()
    assert isinstance(answers[0], CallEnded)
    assert Lease.objects.get().outcome == "ended by ann"


@pytest.mark.django_db
def test_only_live_direct_calls_of_the_tenant_are_listed_and_can_be_ended() -> None:
    ours = LeaseFactory.create(kind="DIRECT", tenant="ours")
    theirs = LeaseFactory.create(kind="DIRECT", tenant="theirs")
    admission = LeaseFactory.create(tenant="ours")
    assert set(direct_calls.list_live_calls("ours")) == {ours}
    assert set(direct_calls.list_live_calls()) == {ours, theirs}
    for hidden in (theirs, admission):
        with pytest.raises(NotFound):
            direct_calls.end(hidden.pk, tenant="ours", actor=ANN)
    direct_calls.end(ours.pk, tenant="ours", actor=ANN)
    with pytest.raises(WrongState, match="ended by ann"):
        direct_calls.end(ours.pk, tenant="ours", actor=ANN)
    assert set(direct_calls.list_live_calls()) == {theirs}
