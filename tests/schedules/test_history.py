"""Fires are kept with the outcome of their jobs, and deleted by their retention."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from jobs.engine.maintenance.retention import PrunePass
from jobs.models import Job
from schedules import history
from schedules.firing import fire_due
from schedules.models import ScheduleFire
from tests.support import executor
from tests.support.schedules import NOON, create_due_schedule, list_jobs

pytestmark = pytest.mark.django_db


def test_an_outcome_is_that_of_the_whole_chain() -> None:
    row = create_due_schedule(misfire_grace_sec=3600)
    fire_due(NOON + timedelta(minutes=1))
    first, second = list_jobs(row)
    for _ in range(3):
        first = executor.fail(executor.claim(first), retry_in=0).retried_by
        Job.objects.filter(pk=first.pk).update(gate=3, position=0)  # the retry is due
    executor.complete(executor.claim(first))
    executor.fail(executor.claim(second))
    latest, earliest = history.load_outcomes(history.fires_of(row))
    assert (earliest.outcome, latest.outcome) == ("COMPLETED", "FAILED")
    assert earliest.latest_attempt is not None
    assert (earliest.latest_attempt.pk, earliest.fire.job_id == earliest.latest_attempt.pk) == (first.pk, False)


def test_a_fire_outlives_its_job_until_its_retention(settings: Any) -> None:
    row = create_due_schedule(misfire_grace_sec=3600)
    fire_due(NOON + timedelta(minutes=1))
    executor.complete(executor.claim(list_jobs(row)[0]))
    assert PrunePass(timedelta(0)).run()
    assert [fire.outcome for fire in history.load_outcomes(history.fires_of(row))] == ["QUEUED", None]
    assert history.delete_old_fires() == 0
    settings.JOBSCHEDULER = {"RETENTION_DAYS": 30}
    assert history.delete_old_fires() == 0
    ScheduleFire.objects.update(fired_at=timezone.now() - timedelta(days=31))
    assert history.delete_old_fires() == 1
    assert [fire.outcome for fire in history.load_outcomes(history.fires_of(row))] == ["QUEUED"]
