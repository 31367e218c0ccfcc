"""Lets time pass for jobs and schedules. No clock is touched: what waits is moved nearer, what falls due is fired."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from django.apps import apps
from django.db.models import F

from jobs import clock
from jobs.engine import lanes
from jobs.models import Job
from jobs.states import LIVE

TIMES = ("not_before", "recheck_at", "deadline_at")


class TimeMachine:
    """Its `now` is the database's time and all that has been passed."""

    def __init__(self) -> None:
        self.passed = timedelta()

    @property
    def now(self) -> datetime:
        return clock.now() + self.passed

    def advance(self, by: timedelta | None = None, **units: float) -> None:
        """`advance(hours=2)`: jobs that wait for a time in it become ready, due times of schedules in it are fired."""
        step = timedelta(**units) if by is None else by
        if step < timedelta():
            raise ValueError("time does not go back")
        begin = self.now
        self.passed += step
        rows = Job.objects.filter(status__in=sorted(LIVE))
        for name in TIMES:
            rows.filter(**{f"{name}__isnull": False}).update(**{name: F(name) - step})
        for config in apps.get_app_configs():
            pass_time: Any = getattr(config, "pass_time", None)  # apps of ours that have times of their own
            if pass_time is not None:
                pass_time(begin, begin + step)
        while lanes.wake_due():
            pass

    def to(self, moment: datetime) -> None:
        self.advance(moment - self.now)


@contextmanager
def time_travel() -> Iterator[TimeMachine]:
    """`with time_travel() as clock: clock.advance(hours=1); drain()`."""
    yield TimeMachine()
