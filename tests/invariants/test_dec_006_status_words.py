"""DEC-006: one set of status words; a job's outcome and its run's are the same."""

from __future__ import annotations

import pytest
from django.db import IntegrityError, transaction

from jobs.models import Job, JobRun
from jobs.outcomes import Completed, Failed, Skipped
from jobs.states import RUN_STATUSES, TERMINAL, Status
from tests.factories import JobFactory
from tests.support import executor

FORMER_WORDS = ("SUCCESS", "DONE", "ERROR", "CANCELED", "DISPATCHED", "RETRYING", "succeeded", "error", "dispatched")


def test_dec_006_unit_these_are_the_words() -> None:
    assert {str(status) for status in TERMINAL} == {"COMPLETED", "FAILED", "SKIPPED", "CANCELLED"}
    assert set(RUN_STATUSES) == TERMINAL | {Status.RUNNING}
    assert not {*Status} & {*FORMER_WORDS}


@pytest.mark.django_db
@pytest.mark.parametrize("outcome", [Completed(), Skipped("x"), Failed("x", "x")], ids=str)
def test_dec_006_integration_a_job_and_its_run_end_with_one_word(outcome: Completed | Skipped | Failed) -> None:
    job = JobFactory.create(running=True)
    executor.finish(job, outcome)
    job.refresh_from_db()
    assert job.status == job.run.status == type(outcome).__name__.upper()


@pytest.mark.django_db
@pytest.mark.parametrize("word", FORMER_WORDS)
def test_dec_006_error_another_word_is_refused(word: str) -> None:
    job = JobFactory.create(running=True)
    with pytest.raises(IntegrityError), transaction.atomic():
        Job.objects.filter(pk=job.pk).update(status=word)
    with pytest.raises(IntegrityError), transaction.atomic():
        JobRun.objects.filter(pk=job.pk).update(status=word)
