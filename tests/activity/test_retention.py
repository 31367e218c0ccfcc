"""Events and activities are deleted by retention only; activities have a retention of their own."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.core.management import call_command
from django.db import IntegrityError, connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs import db, triggers
from jobs.engine.maintenance import retention
from jobs.ids import min_id_at
from jobs.models import Activity, Job, JobEvent
from jobs.services import jobs as job_services
from jobs.services import maintenance
from tests.factories import ActivityFactory, JobEventFactory
from tests.support.commands import call
from tests.support.past_jobs import create_ended_job

pytestmark = pytest.mark.django_db


def create_activity(days: float) -> Activity:
    at = timezone.now() - timedelta(days=days)
    return ActivityFactory.create(id=min_id_at(at), at=at)


def test_activities_are_kept_for_a_year_unless_the_settings_have_another_number_of_days(settings: Any) -> None:
    old, young = create_activity(366), create_activity(364)
    assert "activities: 1" in call("tick").out
    assert not Activity.objects.filter(pk=old.pk).exists()
    settings.JOBSCHEDULER = {"ACTIVITY_RETENTION_DAYS": None}
    assert "activities: off" in call("tick").out
    settings.JOBSCHEDULER = {"ACTIVITY_RETENTION_DAYS": 30}
    assert "activities: 1" in call("tick").out
    assert not Activity.objects.filter(pk=young.pk).exists()


def test_many_old_activities_are_deleted_in_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "BATCH_SIZE", 2)
    for day in range(5):
        create_activity(400 + day)
    assert retention.delete_old_activities() == 5


def test_activities_outlive_the_jobs_of_their_time_and_events_do_not() -> None:
    job = create_ended_job(age=timedelta(days=40))
    JobEventFactory.create(job=job, actor_kind="user", kind="UPDATED", at=timezone.now() - timedelta(days=40))
    activity = create_activity(40)
    assert maintenance.prune(timedelta(days=30)).jobs == 1
    assert not JobEvent.objects.filter(job_id=job.pk).exists()
    assert Activity.objects.filter(pk=activity.pk).exists()


def test_events_of_a_job_that_is_gone_can_be_deleted() -> None:
    """A host may delete jobs by itself; their events have no other use."""
    event = JobEventFactory.create()
    with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
        JobEvent.objects.filter(pk=event.pk).delete()
    Job.objects.filter(pk=event.job_id)._raw_delete(db.alias())
    assert JobEvent.objects.filter(pk=event.pk).delete()[0] == 1


def test_the_permission_to_prune_ends_with_its_block_and_with_a_rollback() -> None:
    event = JobEventFactory.create()

    class Stop(Exception):
        pass

    for ends_by_error in (False, True):
        try:
            with db.atomic() as connection, triggers.allow_pruning(connection):
                if ends_by_error:
                    raise Stop
        except Stop:
            pass
        with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
            JobEvent.objects.filter(pk=event.pk).delete()


def test_pruning_takes_as_many_statements_for_many_events_as_for_few() -> None:
    def count(events: int) -> int:
        job = create_ended_job(age=timedelta(days=40))
        JobEventFactory.create_batch(events, job=job)
        with CaptureQueriesContext(connection) as statements:
            maintenance.delete_jobs([job.pk])
        return len(statements)

    assert count(1) == count(30)


@pytest.mark.django_db(transaction=True)
def test_flush_empties_all_tables() -> None:
    job_services.enqueue("sample.noop")
    ActivityFactory.create()
    call_command("flush", interactive=False, verbosity=0)
    assert (JobEvent.objects.count(), Activity.objects.count(), Job.objects.count()) == (0, 0, 0)
