"""Create schedules by the services and set their next fire to any moment."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from jobs.models import Job
from schedules import services
from schedules.models import Schedule, ScheduleFire
from tests.sample_app import job_types

TYPE = job_types.anything.name
NOON = datetime(2026, 6, 15, 12, tzinfo=UTC)
_numbers = count()


def create_schedule(**values: Any) -> Schedule:
    """Create a schedule, every minute unless `values` has another rule."""
    what = {} if {"job_type", "template"} & set(values) else {"job_type": TYPE}
    rule = {} if {"cron", "every_sec", "run_at"} & set(values) else {"cron": "* * * * *"}
    return services.create({"name": f"made {next(_numbers)}", **what, **rule, **values})


def make_due(row: Schedule, moment: datetime, **columns: Any) -> Schedule:
    """Set the next fire of a schedule to `moment`."""
    Schedule.objects.filter(pk=row.pk).update(next_fire_at=moment, **columns)
    row.refresh_from_db()
    return row


def create_due_schedule(at: datetime = NOON, **values: Any) -> Schedule:
    return make_due(create_schedule(**values), at)


def list_fire_times(row: Schedule) -> list[datetime]:
    """Return the due times of the fires of a schedule, in their order."""
    return list(ScheduleFire.objects.filter(schedule=row).order_by("fire_time").values_list("fire_time", flat=True))


def list_jobs(row: Schedule) -> list[Job]:
    return list(Job.objects.filter(schedule=row).order_by("fire_time", "pk"))


def list_minutes(first: datetime, number: int) -> list[datetime]:
    return [first + timedelta(minutes=item) for item in range(number)]


def require_a_job_per_fire() -> None:
    """Every fire has its job, and every job of a due time has its fire."""
    fires = set(ScheduleFire.objects.values_list("schedule_id", "fire_time", "job_id"))
    made = Job.objects.filter(schedule__isnull=False, fire_time__isnull=False, retry_of__isnull=True)
    assert fires == set(made.values_list("schedule_id", "fire_time", "pk"))
