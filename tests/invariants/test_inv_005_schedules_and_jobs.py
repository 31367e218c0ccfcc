"""INV-005: what becomes of a schedule never touches the jobs it has made."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import IntegrityError, models, transaction

from jobs.models import Job
from schedules import services
from schedules.firing import fire_due
from schedules.models import Schedule
from tests.factories import JobFactory, ScheduleFactory, ScheduleFireFactory
from tests.invariants.raw import execute
from tests.support.schedules import NOON, create_due_schedule, list_jobs
from tests.support.snapshots import dump_tables


def test_inv_005_unit_a_job_has_its_own_params_and_outlives_its_schedule() -> None:
    schedule = Job._meta.get_field("schedule")
    assert (schedule.remote_field.on_delete, schedule.null) == (models.SET_NULL, True)
    assert isinstance(Job._meta.get_field("params"), models.JSONField)


@pytest.mark.django_db
@pytest.mark.parametrize("state", ["pending", "queued", "running", "paused", "completed", "failed"])
def test_inv_005_integration_edits_and_the_end_of_a_schedule_leave_its_jobs_alone(state: str) -> None:
    schedule = ScheduleFactory.create(params={"text": "then"})
    job = JobFactory.create(**{state: True}, schedule=schedule, params=schedule.params)
    ScheduleFireFactory.create(schedule=schedule, job=job)
    before = _row(job)
    Schedule.objects.update(params={"text": "now"}, cron="* * * * *", enabled=False, priority=100, target="x")
    assert _row(job) == before
    schedule.delete()
    assert _row(job) == before | {"schedule_id": None}


@pytest.mark.django_db
def test_inv_005_integration_a_fire_copies_what_the_schedule_says_and_edits_reach_only_the_next() -> None:
    row = create_due_schedule(params={"text": ["then"]}, priority="LOW", target="book-1")
    fire_due(NOON)
    (first,) = list_jobs(row)
    before = _row(first)
    services.update(row.pk, {"params": {"text": ["now"]}, "priority": "HIGH", "target": None})
    services.disable(row.pk)
    assert _row(first) == before
    services.enable(row.pk)
    Schedule.objects.update(next_fire_at=NOON + timedelta(minutes=1))
    fire_due(NOON + timedelta(minutes=1))
    _, second = list_jobs(row)
    assert (first.params, second.params, second.priority, second.target) == (
        {"text": ["then"]},
        {"text": ["now"]},
        75,
        None,
    )
    services.delete(row.pk)
    assert _row(first) == before | {"schedule_id": None}


@pytest.mark.django_db
def test_inv_005_error_a_schedule_cannot_be_torn_away_unseen() -> None:
    schedule = ScheduleFactory.create()
    JobFactory.create(running=True, schedule=schedule)
    before = dump_tables()
    with pytest.raises(IntegrityError):
        execute("DELETE FROM jobscheduler_schedule WHERE id = %(id)s", {"id": schedule.pk})
    with pytest.raises(IntegrityError, match="INV-001"), transaction.atomic():
        schedule.jobs.update(params={"text": "now"})
    assert dump_tables() == before


def _row(job: Job) -> dict[str, Any]:
    return dict(Job.objects.filter(pk=job.pk).values().get())
