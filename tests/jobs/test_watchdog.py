"""The watchdog stops handlers before their leases run out, and leaves results alone that wait to be written."""

from __future__ import annotations

import logging
import time

import pytest

from jobs import services
from jobs.engine.claim import Claimer, Serves
from jobs.engine.context import Context
from jobs.engine.heartbeat import Watchdog
from jobs.engine.leases import Held, Leases
from jobs.engine.worker import Options, Worker
from jobs.models import ConcurrencyLimit
from jobs.outcomes import Completed

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_limits")]


@pytest.fixture
def no_limits() -> None:
    ConcurrencyLimit.objects.all().delete()


@pytest.mark.parametrize("returned", [False, True])
def test_only_a_handler_that_still_runs_is_stopped_when_its_lease_cannot_be_renewed(returned: bool) -> None:
    """The database was away when it returned: the end is still said, with its token, when it is back."""
    [held] = overdue(1, returned=returned)
    watch(held)
    assert held.lost is not returned


def test_an_outage_that_costs_many_leases_is_told_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    held = overdue(12)
    watch(*held)
    assert all(each.lost for each in held)
    [line] = caplog.messages
    assert line.startswith(f"the leases of 12 jobs ({held[0].id}, ")
    assert " and 2 more)" in line


def test_ends_that_come_after_it_are_told_together(caplog: pytest.LogCaptureFixture) -> None:
    worker = Worker(Options(serves=Serves(("sample.noop",))))
    late = overdue(3)
    watch(*late)
    caplog.clear()
    for held in late:
        worker.leases.add(held)
        worker._done(held, Completed())
    worker._gather()
    worker._turn()
    worker._speak_of_the_forgotten()
    [line] = [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]
    assert all(str(held.id) in line for held in late)
    assert (len(worker.leases), worker._ended) == (0, [])


def overdue(jobs: int, *, returned: bool = False) -> list[Held]:
    """Held jobs whose leases nobody has renewed."""
    services.enqueue_many([{"job_type": "sample.noop"}] * jobs)
    claims = Claimer("one", Serves(("sample.noop",)), "one").claim(range(jobs), lease_sec=30)
    past = time.monotonic() - 1
    return [Held(each, Context(job_id=each.id, params={}), deadline=past, returned=returned) for each in claims]


def watch(*held: Held) -> None:
    leases = Leases()
    for each in held:
        leases.add(each)
    Watchdog(leases, on_timeout=lambda held: None)._fence(time.monotonic())
