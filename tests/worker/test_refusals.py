"""What the database refuses in the middle of a turn leaves no job without somebody who runs it."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import DataError, connection

from jobs import hooks, services
from jobs.engine import ending
from jobs.engine.claim import Serves
from jobs.engine.worker import Options, Worker
from jobs.models import ConcurrencyLimit, Job
from jobs.outcomes import Completed
from jobs.states import Status
from tests.snapshots import kinds_of
from tests.worker.harness import STEADY, Fleet, await_status

pytestmark = pytest.mark.django_db(transaction=True)
TYPE = "sample.noop"


@pytest.fixture
def worker() -> Worker:
    """One whose jobs end when the test says so, and who looks for nothing but what it is told of."""
    ConcurrencyLimit.objects.all().delete()
    made = Worker(Options(name="one", serves=Serves((TYPE,)), housekeeping=False))
    made.executor = SimpleNamespace(start=lambda held: None)
    made._end.set()  # no pauses
    return made


def settle(worker: Worker) -> None:
    """Nothing but an end and the next claim is due."""
    worker._lanes_changed = False
    worker._poll_at = worker._due_at = worker._foreign_at = float("inf")


def _hook(events: Any) -> None:
    pass


class _InCompletions:
    """Of a hook that wants completions, which the worker finds out from its statement: it has to be called."""

    def expected(self, *kinds: Any) -> bool:
        return False

    def look(self, *kinds: Any) -> bool:
        return "COMPLETED" in kinds

    def unwanted(self, *kinds: Any) -> str:
        return "false" if "COMPLETED" in kinds else ""

    def along_ends(self) -> None:
        return None

    def along_claims(self) -> None:
        return None


@pytest.fixture
def hooked() -> Iterator[None]:
    yield
    hooks.forget(_hook)


@pytest.mark.pg_only
@pytest.mark.usefixtures("hooked")
def test_jobs_claimed_by_a_turn_that_was_refused_later_are_not_left_behind(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = services.enqueue(TYPE)
    worker._try_a_turn()
    [held] = worker.leases
    assert held.id == first.pk

    second = services.enqueue(TYPE)
    hooks.listen(_hook, required=True, interest=_InCompletions())
    record, refusals = ending._record_told, [DataError("refused")]

    def refused_once(*said: Any) -> Any:
        if refusals:
            raise refusals.pop()
        return record(*said)

    monkeypatch.setattr(ending, "_record_told", refused_once)
    worker._ended = [(held, Completed())]
    settle(worker)
    worker._try_a_turn()
    assert not refusals
    assert Job.objects.get(pk=second.pk).status == Status.RUNNING  # it shared the statement that was not refused
    assert [each.id for each in worker.leases] == [first.pk]

    worker._try_a_turn()
    assert Job.objects.get(pk=first.pk).status == Status.COMPLETED
    held_by_it = Job.objects.running().filter(lease_owner__startswith=f"{worker.me.incarnation}#")
    assert {job.pk for job in held_by_it} == {each.id for each in worker.leases}
    assert kinds_of(second)[:3] == ["SUBMITTED", "RUNNING", "HANDED_BACK"]
    assert Job.objects.get(pk=second.pk).attempt == 1


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
    """A database that refuses one result, for reasons that nobody of ours has foreseen."""
    for statements in (REFUSE, ALLOW):
        with connection.cursor() as cursor:
            for each in statements[connection.vendor]:
                cursor.execute(each)
        if statements is REFUSE:
            yield


def test_an_end_that_the_database_refuses_costs_no_other_job_its_own(fleet: Fleet, no_devils: None) -> None:
    devil = services.enqueue("sample.add", {"a": 665, "b": 1}, max_retries=3)
    others = [services.enqueue("sample.add", {"a": number, "b": 1}) for number in range(20)]
    fleet.start("--concurrency=4", settings=STEADY)
    for other in others:
        await_status(other.pk, Status.COMPLETED, fleet=fleet)
    failed = await_status(devil.pk, Status.FAILED, fleet=fleet)
    assert "no devils here" in failed.run.error
    assert failed.run.artifacts == {}
    assert not Job.objects.filter(retry_of=devil.pk).exists()
