"""Workers snooze and retry as handlers say, in threads and in processes."""

from __future__ import annotations

import pytest

from jobs.models import Job
from jobs.services import jobs as job_services
from jobs.states import Status
from tests.support.snapshots import list_event_kinds
from tests.support.worker_processes import LONG_LEASE_SETTINGS, Fleet, list_attempts, wait_for_status

PATIENT = {**LONG_LEASE_SETTINGS, "RETRY_BASE_SEC": 3600, "SNOOZE_MAX": 3}


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_snoozed_job_starts_again_in_the_same_run(fleet: Fleet, executor: str) -> None:
    fleet.start(f"--executor={executor}", settings=PATIENT)
    job = job_services.enqueue("sample.snooze", {"times": 2, "seconds": 0.1, "lane": "book-1"}, target="book-1")
    behind = job_services.enqueue("sample.work", {"lane": "book-1"}, target="book-1")

    wait_for_status(behind.pk, Status.COMPLETED, fleet=fleet)

    done = Job.objects.get(pk=job.pk)
    assert (done.status, done.snooze_count, done.run.artifacts) == (Status.COMPLETED, 2, {"result": 2})
    assert list_event_kinds(job) == ["SUBMITTED", *["RUNNING", "SNOOZED"] * 2, "RUNNING", "COMPLETED"]
    assert len(list_attempts(job.pk)) == 1


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_job_that_snoozes_for_ever_fails(fleet: Fleet, executor: str) -> None:
    fleet.start(f"--executor={executor}", settings=PATIENT)
    job = job_services.enqueue("sample.snooze", {"times": 100}, max_retries=0)
    failed = wait_for_status(job.pk, Status.FAILED, fleet=fleet)
    assert (failed.status_reason, failed.snooze_count) == ("snoozed too often", 3)


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_handler_names_the_delay_of_its_retry(fleet: Fleet, executor: str) -> None:
    fleet.start(f"--executor={executor}", settings=PATIENT)  # whose own delay is an hour
    job = job_services.enqueue("sample.retry", {"seconds": 0.2, "times": 1})
    wait_for_status(job.pk, Status.FAILED, fleet=fleet)
    wait_for_status(list_attempts(job.pk)[-1].pk, Status.COMPLETED, fleet=fleet)
