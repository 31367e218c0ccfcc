"""Maintenance at rest skips a job at its deadline, whichever way the job got it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from jobs.engine import finish
from jobs.engine.maintenance import runner
from jobs.engine.maintenance.deadlines import PAUSE_SEC, DeadlineCheck
from jobs.models import Job
from jobs.notifications import Listener
from jobs.services import jobs as job_services
from jobs.states import DEADLINE_PASSED_REASON, Status
from tests.support import executor
from tests.support.worker_processes import wait_for_status, wait_until

pytestmark = pytest.mark.django_db(transaction=True)
DUE = timedelta(seconds=2 * PAUSE_SEC)
DUE_AFTER_START = timedelta(seconds=8)  # on a slow machine, too


def submit(check: DeadlineCheck) -> Job:
    return job_services.enqueue("sample.noop", deadline_at=DUE)


def submit_many(check: DeadlineCheck) -> Job:
    entries: list[dict[str, Any]] = [{"job_type": "sample.noop"}, {"job_type": "sample.noop", "deadline_at": DUE}]
    return Job.objects.get(pk=job_services.enqueue_many(entries)[1])


def edit(check: DeadlineCheck) -> Job:
    return job_services.update(job_services.enqueue("sample.noop").pk, {"deadline_at": DUE})


def resume(check: DeadlineCheck) -> Job:
    paused = job_services.pause(submit(check).pk)
    wait_for_rest(check)
    return job_services.resume(paused.pk)


def release(check: DeadlineCheck) -> Job:
    return job_services.release(job_services.enqueue("sample.noop", hold=True, deadline_at=DUE).pk)


def retry(check: DeadlineCheck) -> Job:
    failed = executor.fail(start(check))
    return job_services.retry(failed.pk)


def retry_automatically(check: DeadlineCheck) -> Job:
    failed = executor.fail(start(check), retry_in=0.1)
    return Job.objects.get(retry_of=failed)


def retry_automatically_after_a_hand_back(check: DeadlineCheck) -> Job:
    """It has begun: while it waits again, its deadline does not matter, and that of its retry does."""
    job = start(check)
    assert job.lease_token is not None
    finish.hand_back(job.pk, job.lease_token, actor=executor.WORKER, reason="shut down")
    wait_for_rest(check)
    failed = executor.fail(executor.claim(job), retry_in=0.1)
    return Job.objects.get(retry_of=failed)


def start(check: DeadlineCheck) -> Job:
    """Start a job with a deadline; the check knows of none then."""
    job = executor.claim(job_services.enqueue("sample.noop", deadline_at=DUE_AFTER_START))
    wait_for_rest(check)
    return job


def wait_for_rest(check: DeadlineCheck) -> None:
    """Wait until a round that began after this call has found no deadline."""
    runner.request_task("deadlines")
    wait_until(lambda: not runner._requested_tasks and check.next_sec == math.inf)


@pytest.fixture
def resting(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[DeadlineCheck]:
    """Run the maintenance and the listener of a worker until no deadline is known."""
    # With notifications the next unrequested round is 20 minutes away.
    settings.JOBSCHEDULER = {"POLL_SEC": 0.1 if connection.vendor == "sqlite" else 60}
    check = DeadlineCheck()
    tasks = {"deadlines": runner.MaintenanceTask("deadlines", check.run_round, check.pause_sec)}
    monkeypatch.setattr(runner, "_tasks", tasks)
    maintenance = runner.MaintenanceThread()
    listener = Listener(on_ready=lambda targets_changed: None, on_stop=lambda: None)
    maintenance.start()
    if Listener.can_listen():
        listener.start()
        wait_until(lambda: listener.is_listening)
    wait_for_rest(check)
    yield check
    for thread in (maintenance, listener):
        thread.end()
        if thread.is_alive():
            thread.join()


@pytest.mark.parametrize(
    "make",
    [submit, submit_many, edit, resume, release, retry, retry_automatically, retry_automatically_after_a_hand_back],
)
def test_a_new_deadline_ends_the_rest(make: Callable[[DeadlineCheck], Job], resting: DeadlineCheck) -> None:
    assert wait_for_status(make(resting).pk, Status.SKIPPED).status_reason == DEADLINE_PASSED_REASON
