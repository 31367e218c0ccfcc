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
DUE_AFTER_START = timedelta(seconds=5)  # on a slow machine, too


def submit(due: timedelta = DUE) -> Job:
    return job_services.enqueue("sample.noop", deadline_at=due)


def submit_many() -> Job:
    entries: list[dict[str, Any]] = [{"job_type": "sample.noop"}, {"job_type": "sample.noop", "deadline_at": DUE}]
    return Job.objects.get(pk=job_services.enqueue_many(entries)[1])


def edit() -> Job:
    return job_services.update(job_services.enqueue("sample.noop").pk, {"deadline_at": DUE})


def resume() -> Job:
    return job_services.resume(job_services.pause(submit().pk).pk)


def release() -> Job:
    job = job_services.enqueue("sample.noop", hold=True, deadline_at=DUE)
    return job_services.release(job.pk)


def retry() -> Job:
    return job_services.retry(executor.fail(executor.claim(submit(DUE_AFTER_START))).pk)


def retry_automatically() -> Job:
    job = submit(DUE_AFTER_START)
    executor.fail(executor.claim(job), retry_in=0.1)
    return Job.objects.get(retry_of=job)


def retry_automatically_after_a_hand_back() -> Job:
    """It has begun: while it waits again, its deadline does not matter, and that of its retry does."""
    job = executor.claim(submit(DUE_AFTER_START))
    assert job.lease_token is not None
    finish.hand_back(job.pk, job.lease_token, actor=executor.WORKER, reason="shut down")
    executor.fail(executor.claim(job), retry_in=0.1)
    return Job.objects.get(retry_of=job)


@pytest.fixture
def resting(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
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
    wait_until(lambda: check.next_sec == math.inf)
    yield
    for thread in (maintenance, listener):
        thread.end()
        if thread.is_alive():
            thread.join()


@pytest.mark.usefixtures("resting")
@pytest.mark.parametrize(
    "make",
    [submit, submit_many, edit, resume, release, retry, retry_automatically, retry_automatically_after_a_hand_back],
)
def test_a_new_deadline_ends_the_rest(make: Callable[[], Job]) -> None:
    assert wait_for_status(make().pk, Status.SKIPPED).status_reason == DEADLINE_PASSED_REASON
