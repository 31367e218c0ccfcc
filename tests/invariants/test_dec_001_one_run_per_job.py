"""DEC-001: a job has one run; a pause suspends it, and a retry is a new job with its own."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, transaction

from jobs.engine import finish
from jobs.models import Job, JobRun
from jobs.services import jobs as job_services
from tests.factories import JobFactory
from tests.sample_app import job_types
from tests.support import executor
from tests.support.snapshots import dump_tables

TYPE = job_types.anything.name


def test_dec_001_unit_a_run_is_its_jobs_and_shares_its_id() -> None:
    job = JobRun._meta.get_field("job")
    assert (job.one_to_one, job.primary_key) == (True, True)


@pytest.mark.django_db
def test_dec_001_integration_claims_continue_the_run_and_a_retry_gets_its_own() -> None:
    job = job_services.enqueue(TYPE)
    for _ in range(3):
        running = executor.claim(job)
        job_services.pause(job.pk)
        assert running.lease_token is not None
        finish.stop(job.pk, running.lease_token, actor=executor.WORKER)
        job_services.resume(job.pk)
    failed = executor.fail(executor.claim(job))
    retry = executor.complete(executor.claim(job_services.retry(job.pk)))
    assert JobRun.objects.count() == Job.objects.count() == 2
    assert (failed.run.status, retry.run.status) == ("FAILED", "COMPLETED")
    assert failed.run.id == failed.pk


@pytest.mark.django_db
def test_dec_001_error_a_second_run_is_refused() -> None:
    job = JobFactory.create(failed=True)
    before = dump_tables()
    with pytest.raises(IntegrityError), transaction.atomic():
        JobRun.objects.create(job=job)
    assert dump_tables() == before
