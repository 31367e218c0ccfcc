"""`task_finished` is sent once for every end of a task, also for those that no handler lives to see."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import transaction

from jobs import actors, db
from jobs.contrib.tasks import JobsBackend
from jobs.contrib.tasks.compat import TaskResultStatus, task_finished
from jobs.engine import finish, lifecycle
from jobs.engine.executors.run import Context, run
from jobs.errors import LeaseLost
from jobs.models import Job
from jobs.outcomes import Failed
from jobs.services import jobs as job_services
from jobs.states import Cause, Status, StopMode
from jobs.testing import drain
from tests.sample_app import tasks
from tests.support import executor

pytestmark = pytest.mark.django_db


def test_a_task_cancelled_before_it_starts_is_told_when_that_is_committed(on_commit: Any) -> None:
    result = tasks.add.enqueue(1)
    with record_finishes() as received, on_commit():
        job_services.cancel(result.id, reason="no longer wanted")
        assert received == []
    assert received == [(result.id, "FAILED", "jobs.errors.JobCancelled")]


def test_a_cancel_that_is_taken_back_is_not_told(on_commit: Any) -> None:
    result = tasks.add.enqueue(1)
    with record_finishes() as received, on_commit(), transaction.atomic(using=db.alias()):
        job_services.cancel(result.id)
        transaction.set_rollback(True, using=db.alias())
    assert received == []


def test_a_retry_cancelled_in_its_backoff_ends_the_task(on_commit: Any) -> None:
    result = tasks.fail.enqueue(2)
    with record_finishes() as received, on_commit():
        drain()
        job_services.cancel(Job.objects.get(status=Status.QUEUED).pk)
    assert received == [(result.id, "FAILED", "jobs.errors.JobCancelled")]


def test_a_task_skipped_by_the_scheduler_is_told(on_commit: Any) -> None:
    result = tasks.add.enqueue(1)
    with record_finishes() as received, on_commit():
        lifecycle.skip(Job.objects.get().pk, actor=actors.SCHEDULER, reason="too late")
    assert received == [(result.id, "SUCCESSFUL", "")]


@pytest.mark.parametrize("cause", [Cause.LEASE_EXPIRED, Cause.CRASH_RECOVERY])
def test_a_worker_that_vanished_is_told_and_reads_as_a_lost_lease(on_commit: Any, cause: Cause) -> None:
    result = tasks.add.enqueue(1)
    with record_finishes() as received, on_commit():
        lose(executor.claim(Job.objects.get()), cause, retry_in=None)
    assert received == [(result.id, "FAILED", "jobs.errors.LeaseLost")]
    result.refresh()
    assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 1)
    assert result.errors[0].exception_class is LeaseLost
    assert result.errors[0].traceback == "gone"


def test_a_worker_that_vanished_before_a_retry_is_not_the_end(on_commit: Any) -> None:
    result = tasks.add.enqueue(1)
    with record_finishes() as received, on_commit():
        lose(executor.claim(Job.objects.get()), Cause.LEASE_EXPIRED, retry_in=0)
        assert tasks.add.get_result(result.id).errors[0].exception_class is LeaseLost
        drain()
    assert received == [(result.id, "SUCCESSFUL", "jobs.errors.LeaseLost")]


def test_a_task_out_of_time_is_told_and_reads_as_a_timeout(on_commit: Any) -> None:
    result = tasks.add.enqueue(1)
    with record_finishes() as received, on_commit():
        job = executor.claim(Job.objects.get())
        executor.finish(job, Failed(error="timeout: ran longer than 1 s", reason="timeout", cause=Cause.TIMEOUT))
    assert received == [(result.id, "FAILED", "builtins.TimeoutError")]
    result.refresh()
    assert result.errors[0].exception_class is TimeoutError


def test_a_running_task_that_a_person_cancels_is_told_once(on_commit: Any) -> None:
    result = tasks.stoppable.enqueue()
    job = executor.claim(Job.objects.get())
    with record_finishes() as received, on_commit():
        stop(job, StopMode.CANCEL)
        job_services.cancel(job.pk)
        finish.stop(job.pk, job.lease_token, actor=executor.WORKER, artifacts={"exception": "jobs.errors.JobCancelled"})
    assert received == [(result.id, "FAILED", "jobs.errors.JobCancelled")]


@pytest.mark.parametrize("mode", [None, StopMode.PAUSE], ids=["handed back", "paused"])
def test_a_task_that_stops_for_another_day_is_not_at_its_end(on_commit: Any, mode: StopMode | None) -> None:
    tasks.stoppable.enqueue()
    with record_finishes() as received, on_commit():
        stop(executor.claim(Job.objects.get()), mode)
    assert received == []


def test_a_handler_that_returns_after_its_end_was_recorded_is_not_heard(on_commit: Any) -> None:
    result = tasks.add.enqueue(1)
    job = executor.claim(Job.objects.get())
    with record_finishes() as received, on_commit():
        lose(job, Cause.LEASE_EXPIRED, retry_in=None)
        stop(job, None)
    assert received == [(result.id, "FAILED", "jobs.errors.LeaseLost")]


def test_a_task_beyond_its_tokens_has_failed_though_it_returned(on_commit: Any) -> None:
    result = tasks.spend.using(token_limit=1).enqueue(5)
    with record_finishes() as received, on_commit():
        drain()
    result.refresh()
    assert received == [(result.id, "FAILED", "jobs.errors.TokenLimitExceeded")]
    assert result.status == TaskResultStatus.FAILED


def test_jobs_that_are_no_tasks_are_no_tasks_end(on_commit: Any) -> None:
    job = job_services.enqueue("system.noop")
    with record_finishes() as received, on_commit():
        job_services.cancel(job.pk)
    assert received == []


@pytest.fixture
def on_commit(django_capture_on_commit_callbacks: Any) -> Any:
    return lambda: django_capture_on_commit_callbacks(using=db.alias(), execute=True)


@contextmanager
def record_finishes() -> Iterator[list[tuple[str, str, str]]]:
    """Id, status and last error of each task that was received to be finished."""
    received: list[tuple[str, str, str]] = []

    def hear(sender: Any, task_result: Any, **kwargs: Any) -> None:
        assert issubclass(sender, JobsBackend)
        errors = [error.exception_class_path for error in task_result.errors]
        received.append((task_result.id, str(task_result.status), errors[-1] if errors else ""))

    task_finished.connect(hear)
    try:
        yield received
    finally:
        task_finished.disconnect(hear)


def lose(job: Job, cause: Cause, *, retry_in: float | None) -> None:
    with db.atomic():
        finish.expire([job], cause=cause, error="gone", describe=lambda job: {}, retry_in=lambda job: retry_in)


def stop(job: Job, mode: StopMode | None) -> None:
    """Run its handler here, as one that was asked to stop."""
    ctx = Context(job_id=job.pk, params=job.params, fence=job.fence)
    ctx.request_stop(mode)
    job.max_retries = 0
    run(job, ctx)
