"""Time travel for `jobs.testing`: fire what falls due while a test moves the clock."""

from __future__ import annotations

from datetime import datetime

from schedules import declared
from schedules.firing import fire_due
from schedules.models import Schedule


def fire_between(begin: datetime, end: datetime) -> int:
    """Fire what falls due until `end`, one due time after the other, as a scheduler does. Return the number of jobs."""
    declared.sync()
    job_count, moment = fire_due(begin), begin
    due_times = Schedule.objects.filter(enabled=True, next_fire_at__isnull=False).order_by("next_fire_at")
    while (due := due_times.values_list("next_fire_at", flat=True).first()) is not None and moment < due <= end:
        job_count, moment = job_count + fire_due(due), due
    return job_count
