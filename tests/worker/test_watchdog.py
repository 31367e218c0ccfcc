"""The watchdog stops handlers before their leases run out, and leaves results alone that wait to be written."""

from __future__ import annotations

import logging
import time

import pytest

from jobs.engine.claim import Claimer, ServedJobs
from jobs.engine.executors.run import Context
from jobs.engine.worker import WorkerLoop, WorkerOptions
from jobs.engine.worker.heartbeat import Watchdog
from jobs.engine.worker.registration import Registration
from jobs.engine.worker.running_jobs import RunningJob, RunningJobs
from jobs.models import ConcurrencyLimit
from jobs.outcomes import Completed
from jobs.services import jobs as job_services

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("no_limits")]


@pytest.fixture
def no_limits() -> None:
    ConcurrencyLimit.objects.all().delete()


@pytest.mark.parametrize("returned", [False, True])
def test_only_a_handler_that_still_runs_is_stopped_when_its_lease_cannot_be_renewed(returned: bool) -> None:
    """The database was away when it returned: the end is still said, with its token, when it is back."""
    [job] = overdue(1, returned=returned)
    watch(job)
    assert job.lost is not returned


def test_an_outage_that_costs_many_leases_is_told_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    jobs = overdue(12)
    watch(*jobs)
    assert all(job.lost for job in jobs)
    [line] = caplog.messages
    assert line.startswith(f"the leases of 12 jobs ({jobs[0].id}, ")
    assert " and 2 more)" in line


def test_ends_that_come_after_it_are_told_together(caplog: pytest.LogCaptureFixture) -> None:
    worker = WorkerLoop(Registration(WorkerOptions(serves=ServedJobs(("sample.noop",)))))
    late = overdue(3)
    watch(*late)
    caplog.clear()
    for job in late:
        worker.running.add(job)
        worker._on_return(job, Completed())
    worker._drain_events()
    worker.turn_runner.run(may_claim=True)
    worker.recorder.log_lost_jobs()
    [line] = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert all(str(job.id) in line for job in late)
    assert (len(worker.running), len(worker.recorder.returned)) == (0, 0)


def overdue(count: int, *, returned: bool = False) -> list[RunningJob]:
    """Return running jobs whose leases were not renewed."""
    job_services.enqueue_many([{"job_type": "sample.noop"}] * count)
    claims = Claimer("one", ServedJobs(("sample.noop",)), "one").claim(range(count), lease_sec=30)
    past = time.monotonic() - 1
    return [
        RunningJob(claim, Context(job_id=claim.id, params={}), deadline=past, returned=returned) for claim in claims
    ]


def watch(*jobs: RunningJob) -> None:
    running = RunningJobs()
    for job in jobs:
        running.add(job)
    Watchdog(running, on_timeout=lambda job: None)._stop_overdue(time.monotonic())
