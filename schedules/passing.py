"""Lets time pass for schedules in a test: every due time on the way is fired on its own, as a scheduler would have."""

from __future__ import annotations

from datetime import datetime

from schedules import declared
from schedules.firing import fire_due
from schedules.models import Schedule


def fire_between(begin: datetime, end: datetime) -> int:
    """Fire what falls due until `end`, one due time after the other. Returns how many jobs were made."""
    declared.sync()
    made, moment = fire_due(begin), begin
    while (due := _next_due()) is not None and moment < due <= end:
        made, moment = made + fire_due(due), due
    return made


def _next_due() -> datetime | None:
    due = Schedule.objects.filter(enabled=True, next_fire_at__isnull=False)
    return due.order_by("next_fire_at").values_list("next_fire_at", flat=True).first()
