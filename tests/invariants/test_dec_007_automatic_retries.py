"""DEC-007: three automatic retries per original, after 10, 20 and 40 s; a person may always retry."""

from __future__ import annotations

import pytest

from jobs.engine.executors.run import decide_retry
from jobs.engine.finish import FinishStatus
from jobs.errors import NoRetry
from jobs.models import Job
from jobs.outcomes import Failed
from jobs.policies.retry import ExponentialBackoff, RetryFacts
from jobs.services import jobs as job_services
from jobs.states import Cause, Status
from tests.sample_app import job_types
from tests.support import executor

TYPE = job_types.anything.name


def test_dec_007_unit_the_policy_gives_three_retries_with_doubling_delays() -> None:
    policy = ExponentialBackoff()
    delays = [policy.decide(RetryFacts(attempt=attempt, max_retries=3)) for attempt in range(1, 7)]
    assert delays == [10, 20, 40, None, None, None]


def _fail(job: Job, error: Exception | None = None) -> Job:
    """Fail as a worker would: the policy decides."""
    delay = decide_retry(job, cause=Cause.ERROR, error=error)
    assert executor.finish(job, Failed(error="boom", reason="boom", retry_in=delay)) == FinishStatus.DONE
    job.refresh_from_db()
    return job


@pytest.mark.django_db
def test_dec_007_integration_a_job_that_always_fails_is_executed_four_times() -> None:
    job = job_services.enqueue(TYPE)
    waits = []
    failed = _fail(executor.claim(job))
    while not failed.permanently_failed:
        retry = failed.retried_by
        assert retry.not_before is not None
        assert failed.run.finished_at is not None
        waits.append(round((retry.not_before - failed.run.finished_at).total_seconds()))
        failed = _fail(executor.claim(job_services.retry(job.pk)))
    assert waits == [10, 20, 40]
    assert (failed.attempt, Job.objects.count()) == (4, 4)
    assert set(Job.objects.values_list("status", flat=True)) == {"FAILED"}


@pytest.mark.django_db
def test_dec_007_error_a_manual_retry_after_the_last_one_is_made_but_not_retried_by_itself() -> None:
    job = job_services.enqueue(TYPE, max_retries=0)
    failed = _fail(executor.claim(job))
    assert failed.permanently_failed
    manual = _fail(executor.claim(job_services.retry(job.pk)))
    assert (manual.status, manual.attempt, manual.permanently_failed) == (Status.FAILED, 2, True)
    assert job_services.retry(job.pk).attempt == 3


@pytest.mark.django_db
def test_dec_007_error_a_failure_that_would_only_repeat_is_not_retried() -> None:
    failed = _fail(executor.claim(job_services.enqueue(TYPE)), NoRetry("no such page"))
    assert failed.permanently_failed
    assert Job.objects.count() == 1
