"""A statement that the database rejects in the middle of a turn leaves no job without a worker."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from fractions import Fraction
from typing import Any

import pytest
from django.db import DatabaseError, DataError, OperationalError, connection

from jobs.db import set_short_timeouts
from jobs.engine.claim import ServedJobs
from jobs.engine.executors.run import Context
from jobs.engine.worker import WorkerLoop, WorkerOptions, turn
from jobs.engine.worker.registration import Registration
from jobs.engine.worker.turn import TurnResult, take_turn
from jobs.models import ConcurrencyLimit, Job
from jobs.outcomes import Completed, Failed
from jobs.services import groups
from jobs.services import jobs as job_services
from jobs.states import Status
from tests.support.snapshots import list_event_kinds
from tests.support.worker_processes import LONG_LEASE_SETTINGS, Fleet, wait_for_status

pytestmark = pytest.mark.django_db(transaction=True)
TYPE = "sample.noop"


@pytest.fixture
def worker() -> WorkerLoop:
    """One whose jobs end when the test says so."""
    ConcurrencyLimit.objects.all().delete()
    made = WorkerLoop(Registration(WorkerOptions(name="one", serves=ServedJobs((TYPE,)), maintenance=False)))
    made.turn_runner.start = lambda job: None
    made._end.set()  # no pauses
    return made


@pytest.mark.parametrize("error", [DataError("refused"), OperationalError("the wire was cut at COMMIT")], ids=repr)
def test_a_turn_whose_commit_was_not_answered_leaves_no_job_behind(
    worker: WorkerLoop, monkeypatch: pytest.MonkeyPatch, error: DatabaseError
) -> None:
    """Its results are replayed by their tokens; what it claimed is handed back, and claimed again."""
    first = job_services.enqueue(TYPE)
    worker._try_turn()
    [job] = worker.running
    assert job.id == first.pk
    second = job_services.enqueue(TYPE)
    errors = [error]

    def unanswered_once(*args: Any, **options: Any) -> TurnResult:
        result = take_turn(*args, **options)
        if errors:
            raise errors.pop()
        return result

    monkeypatch.setattr(turn, "take_turn", unanswered_once)
    worker._on_return(job, Completed())
    worker._drain_events()
    worker._try_turn()
    assert not errors
    assert status_of(first) == Status.COMPLETED
    assert status_of(second) == Status.RUNNING
    assert [item.id for item in worker.running] == [first.pk]

    worker._try_turn()
    assert len(worker.recorder.returned) == 0
    held_by_it = Job.objects.running().filter(lease_owner__startswith=f"{worker.identity.process_key}#")
    assert {job.pk for job in held_by_it} == {item.id for item in worker.running} == {second.pk}
    assert list_event_kinds(first) == ["SUBMITTED", "RUNNING", "COMPLETED"]
    assert list_event_kinds(second) == ["SUBMITTED", "RUNNING", "HANDED_BACK", "RUNNING"]
    assert Job.objects.get(pk=second.pk).attempt == 1


@pytest.mark.parametrize("sqlstate", ["40001", "40P01", "55P03"])
def test_a_turn_rolled_back_for_another_transaction_is_repeated_at_once_and_is_no_outage(
    worker: WorkerLoop, monkeypatch: pytest.MonkeyPatch, sqlstate: str
) -> None:
    made = job_services.enqueue(TYPE)
    error = OperationalError("rolled back")
    error.__cause__ = RolledBack(sqlstate)
    errors = [error]

    def rolled_back_once(*args: Any, **options: Any) -> TurnResult:
        if errors:
            raise errors.pop()
        return take_turn(*args, **options)

    monkeypatch.setattr(turn, "take_turn", rolled_back_once)
    worker._try_turn()
    assert not worker._outage.is_active
    assert worker._next_wait() == 0
    worker._try_turn()
    assert [job.id for job in worker.running] == [made.pk]


@pytest.mark.pg_only
def test_a_turn_that_waited_too_long_for_a_lock_is_repeated_and_is_no_outage(worker: WorkerLoop) -> None:
    ConcurrencyLimit.objects.create(scope="global", key="", max=1)
    made = job_services.enqueue(TYPE)
    worker._configure_connection()
    set_short_timeouts(0.5)
    with hold_lock("SELECT 1 FROM jobscheduler_concurrencylimit FOR UPDATE"):
        worker._try_turn()
        assert not worker._outage.is_active
        assert not len(worker.running)
    worker._try_turn()
    assert [job.id for job in worker.running] == [made.pk]
    connection.close()  # with its timeouts


@pytest.mark.pg_only
def test_a_turn_that_fails_after_its_claim_hands_the_claim_back(worker: WorkerLoop) -> None:
    """Claiming the first member of a group commits, then waits for the group; no slot knows of the claim."""
    group = groups.create([{"job_type": TYPE}], mode="parallel")
    made = Job.objects.get(group=group)
    worker._configure_connection()
    set_short_timeouts(0.5)
    with hold_lock("LOCK TABLE jobscheduler_jobgroup IN EXCLUSIVE MODE"):
        worker._try_turn()
        assert status_of(made) == Status.RUNNING
        assert not len(worker.running)
    worker._try_turn()
    assert [job.id for job in worker.running] == [made.pk]
    assert list_event_kinds(made) == ["SUBMITTED", "RUNNING", "HANDED_BACK", "RUNNING"]
    connection.close()  # with its timeouts


ODD_REPORTS: dict[str, Callable[[Context], object]] = {
    "progress that is not a number": lambda ctx: ctx.progress(float("nan")),
    "progress of infinity": lambda ctx: ctx.progress(float("inf"), float("inf")),
    "progress as a fraction": lambda ctx: ctx.progress(Fraction(1, 3)),
    "more tokens than a column has": lambda ctx: [ctx.use_tokens(10**19) for _ in range(2)],
    "a value that the database rejects": lambda ctx: setattr(ctx.writes, "progress", (5.0, "")),
}


@pytest.mark.parametrize("report", ODD_REPORTS)
def test_no_report_of_a_handler_keeps_its_result_or_another_job_waiting(worker: WorkerLoop, report: str) -> None:
    first = job_services.enqueue(TYPE)
    worker._try_turn()
    [job] = worker.running
    second = job_services.enqueue(TYPE)
    ODD_REPORTS[report](job.ctx)
    worker._on_return(job, Completed())
    worker._drain_events()
    worker._try_turn()
    assert status_of(first) == Status.COMPLETED
    assert [item.id for item in worker.running] == [second.pk]


@contextmanager
def hold_lock(statement: str) -> Iterator[None]:
    """Hold the lock of a statement in another transaction."""
    with closing(connection.copy()) as host:
        host.set_autocommit(False)
        with host.cursor() as cursor:
            cursor.execute(statement)
        yield


class RolledBack(Exception):
    def __init__(self, sqlstate: str) -> None:
        self.sqlstate = sqlstate


@pytest.mark.parametrize(("jobs", "lines"), [(4, 8), (6, 2)])
def test_a_few_claims_and_ends_have_a_line_each_and_many_share_one(
    worker: WorkerLoop, caplog: pytest.LogCaptureFixture, jobs: int, lines: int
) -> None:
    caplog.set_level(logging.INFO, "jobs.engine.worker")
    worker.running.slots = jobs
    job_services.enqueue_many([{"job_type": TYPE}] * jobs)
    worker._try_turn()
    for job in worker.running:
        worker._on_return(job, Completed())
    worker._drain_events()
    worker._try_turn()
    fields = [line for line in caplog.messages if "claimed" in line or "finished: completed" in line]
    assert len(fields) == lines
    assert all(sum(str(job.pk) in line for line in fields) == 2 for job in Job.objects.all())


def test_each_failure_has_its_own_line(worker: WorkerLoop, caplog: pytest.LogCaptureFixture) -> None:
    worker.running.slots = 6
    job_services.enqueue_many([{"job_type": TYPE}] * 6)
    worker._try_turn()
    for job in worker.running:
        worker._on_return(job, Failed("boom", "boom"))
    worker._drain_events()
    worker._try_turn()
    assert len([line for line in caplog.messages if line.endswith("failed, not retried: boom")]) == 6


def status_of(made: Job) -> str:
    return Job.objects.get(pk=made.pk).status


REFUSE = {
    "postgresql": [
        "CREATE FUNCTION refuse_devils() RETURNS trigger LANGUAGE plpgsql AS"
        " $$ BEGIN RAISE EXCEPTION 'no devils here'; END $$",
        "CREATE TRIGGER no_devils BEFORE UPDATE ON jobscheduler_jobrun FOR EACH ROW"
        " WHEN (NEW.artifacts->>'result' = '666') EXECUTE FUNCTION refuse_devils()",
    ],
    "sqlite": [
        "CREATE TRIGGER no_devils BEFORE UPDATE ON jobscheduler_jobrun"
        " WHEN json_extract(NEW.artifacts, '$.result') = 666 BEGIN SELECT RAISE(ABORT, 'no devils here'); END"
    ],
}
ALLOW = {
    "postgresql": ["DROP TRIGGER no_devils ON jobscheduler_jobrun", "DROP FUNCTION refuse_devils()"],
    "sqlite": ["DROP TRIGGER no_devils"],
}


@pytest.fixture
def no_devils() -> Iterator[None]:
    """Make the database reject one result for an unforeseen reason."""
    for statements in (REFUSE, ALLOW):
        with connection.cursor() as cursor:
            for statement in statements[connection.vendor]:
                cursor.execute(statement)
        if statements is REFUSE:
            yield


def test_an_end_that_the_database_refuses_costs_no_other_job_its_own(fleet: Fleet, no_devils: None) -> None:
    devil = job_services.enqueue("sample.add", {"a": 665, "b": 1}, max_retries=3)
    others = [job_services.enqueue("sample.add", {"a": number, "b": 1}) for number in range(20)]
    fleet.start("--concurrency=4", settings=LONG_LEASE_SETTINGS)
    for other in others:
        wait_for_status(other.pk, Status.COMPLETED, fleet=fleet)
    failed = wait_for_status(devil.pk, Status.FAILED, fleet=fleet)
    assert "no devils here" in failed.run.error
    assert failed.run.artifacts == {}
    assert not Job.objects.filter(retry_of=devil.pk).exists()
