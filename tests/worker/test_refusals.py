"""What the database refuses in the middle of a turn leaves no job without somebody who runs it."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from django.db import DataError

from jobs import services
from jobs.engine import ending
from jobs.engine.claim import Serves
from jobs.engine.worker import Options, Worker
from jobs.models import ConcurrencyLimit, Job
from jobs.outcomes import Completed
from jobs.states import Status
from tests.factories import WebhookEndpointFactory
from tests.snapshots import kinds_of
from webhooks.interest import listening

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.pg_only]
TYPE = "sample.noop"


@pytest.fixture
def worker() -> Iterator[Worker]:
    """One whose jobs end when the test says so, and who looks for nothing but what it is told of."""
    ConcurrencyLimit.objects.all().delete()
    listening.forget()
    made = Worker(Options(name="one", serves=Serves((TYPE,)), housekeeping=False))
    made.executor = SimpleNamespace(start=lambda held: None)
    made._end.set()  # no pauses
    yield made
    listening.forget()


def settle(worker: Worker) -> None:
    """Nothing but an end and the next claim is due."""
    worker._lanes_changed = False
    worker._poll_at = worker._due_at = worker._foreign_at = float("inf")


def test_jobs_claimed_by_a_turn_that_was_refused_later_are_not_left_behind(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = services.enqueue(TYPE)
    worker._try_a_turn()
    [held] = worker.leases
    assert held.id == first.pk

    second = services.enqueue(TYPE)
    WebhookEndpointFactory.create(events=["job.completed"])  # unknown to the worker: the end has to be told by a call
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
