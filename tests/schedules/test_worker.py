"""A real worker fires due schedules in time, also those created while it sleeps, and is cheap when idle."""

from __future__ import annotations

from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from jobs.models import Job
from jobs.states import EventKind, Status
from schedules import services
from schedules.models import Schedule
from schedules.ticker import Ticker
from tests.support.schedules import create_schedule, list_fire_times, list_jobs, require_a_job_per_fire
from tests.support.worker_processes import (
    LONG_LEASE_SETTINGS,
    Fleet,
    get_database_time,
    get_event,
    wait_for_status,
    wait_until,
)

SOON_SEC = 6.0  # less than a scheduler sleeps without a notification


def test_a_schedule_created_while_the_scheduler_sleeps_fires_at_its_time(fleet: Fleet) -> None:
    fleet.start(settings=LONG_LEASE_SETTINGS)
    due = get_database_time() + timedelta(seconds=2)
    row = create_schedule(run_at=due, job_type="sample.noop")
    wait_until(lambda: list_jobs(row), what=fleet.logs)
    (job,) = list_jobs(row)
    wait_for_status(job.pk, Status.COMPLETED, fleet=fleet)
    delay_sec = (get_event(job.pk, EventKind.SUBMITTED).at - due).total_seconds()
    assert 0 <= delay_sec < SOON_SEC


def test_two_workers_fire_every_second_once_until_it_is_disabled(fleet: Fleet) -> None:
    fleet.start_many(2, settings=LONG_LEASE_SETTINGS)
    row = create_schedule(every_sec=1, job_type="sample.noop", overlap="skip")
    wait_until(lambda: len(list_fire_times(row)) >= 5, what=fleet.logs)
    services.disable(row.pk)
    times = list_fire_times(row)
    assert [later - earlier for earlier, later in pairwise(times)] == [timedelta(seconds=1)] * (len(times) - 1)
    wait_until(lambda: not Job.objects.filter(status=Status.QUEUED).exists(), what=fleet.logs)
    assert list_fire_times(row) == times
    require_a_job_per_fire()
    assert " broken" not in fleet.logs()


def test_a_starting_worker_catches_up_missed_fires(fleet: Fleet) -> None:
    row = create_schedule(cron="* * * * *", job_type="sample.noop", catch_up="all", catch_up_max=3)
    Schedule.objects.update(next_fire_at=get_database_time().replace(second=0, microsecond=0) - timedelta(hours=1))
    fleet.start(settings=LONG_LEASE_SETTINGS)
    wait_until(lambda: Job.objects.filter(schedule=row, status=Status.COMPLETED).count() >= 3, what=fleet.logs)


@pytest.mark.django_db
class TestTicker:
    def count_statements(self, ticker: Ticker) -> int:
        """Call the ticker as the maintenance thread does; return the number of its statements."""
        with CaptureQueriesContext(connection) as queries:
            ticker.pause_sec()
            ticker.tick()
        return len([statement for statement in queries if "jobscheduler_schedule" in statement["sql"]])

    def test_frequent_ticks_query_the_database_seldom(self) -> None:
        ticker = Ticker()
        create_schedule(cron="0 3 1 1 *")
        self.count_statements(ticker)
        assert [self.count_statements(ticker) for _ in range(20)] == [0] * 20
        assert 0 < ticker.pause_sec() <= 1.0

    def test_one_statement_is_enough_if_nothing_is_due(self) -> None:
        ticker = Ticker()
        self.count_statements(ticker)
        ticker.wake()
        assert self.count_statements(ticker) == 1

    def test_a_notification_makes_it_query_again(self) -> None:
        ticker = Ticker()
        self.count_statements(ticker)
        ticker.wake()
        assert ticker.pause_sec() < 0.1
        assert self.count_statements(ticker) > 0

    def test_a_notification_during_the_query_is_not_lost(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from schedules import ticker as ticker_module

        ticker, read_next_due = Ticker(), ticker_module._read_next_due

        def read_and_wake() -> Any:
            next_due = read_next_due()
            ticker.wake()
            return next_due

        monkeypatch.setattr(ticker_module, "_read_next_due", read_and_wake)
        ticker.tick()
        monkeypatch.undo()
        assert self.count_statements(ticker) > 0

    def test_an_explicit_tick_always_queries(self) -> None:
        ticker = Ticker()
        ticker.tick()
        row = create_schedule(cron="@yearly")  # a schedule of every minute could come due during the test
        Schedule.objects.filter(pk=row.pk).update(next_fire_at=get_database_time() - timedelta(seconds=1))
        assert ticker.tick() == 1

    def test_it_wakes_for_the_next_due_time_and_not_a_second_later(self) -> None:
        ticker = Ticker()
        row = create_schedule()
        Schedule.objects.filter(pk=row.pk).update(next_fire_at=get_database_time() + timedelta(seconds=0.5))
        ticker.tick()
        assert ticker.pause_sec() < 0.6
