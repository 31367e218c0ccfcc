"""A real worker fires what is due by itself, on the dot, also what was made while it slept; and idles cheaply."""

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

SOON_SEC = 6.0  # less than an unnotified scheduler would sleep


def test_a_schedule_that_is_made_while_the_scheduler_sleeps_fires_at_its_time(fleet: Fleet) -> None:
    fleet.start(settings=LONG_LEASE_SETTINGS)
    due = get_database_time() + timedelta(seconds=2)
    row = create_schedule(run_at=due, job_type="sample.noop")
    wait_until(lambda: list_jobs(row), what=fleet.logs)
    (job,) = list_jobs(row)
    wait_for_status(job.pk, Status.COMPLETED, fleet=fleet)
    late = (get_event(job.pk, EventKind.SUBMITTED).at - due).total_seconds()
    assert 0 <= late < SOON_SEC


def test_two_workers_fire_every_second_once_until_it_is_disabled(fleet: Fleet) -> None:
    fleet.start_many(2, settings=LONG_LEASE_SETTINGS)
    row = create_schedule(every_sec=1, job_type="sample.noop", overlap="skip")
    wait_until(lambda: len(list_fire_times(row)) >= 5, what=fleet.logs)
    services.disable(row.pk)
    times = list_fire_times(row)
    assert [b - a for a, b in pairwise(times)] == [timedelta(seconds=1)] * (len(times) - 1)
    wait_until(lambda: not Job.objects.filter(status=Status.QUEUED).exists(), what=fleet.logs)
    assert list_fire_times(row) == times
    require_a_job_per_fire()
    assert " broken" not in fleet.logs()


def test_a_worker_that_starts_makes_up_for_what_was_missed(fleet: Fleet) -> None:
    row = create_schedule(cron="* * * * *", job_type="sample.noop", catch_up="all", catch_up_max=3)
    Schedule.objects.update(next_fire_at=get_database_time().replace(second=0, microsecond=0) - timedelta(hours=1))
    fleet.start(settings=LONG_LEASE_SETTINGS)
    wait_until(lambda: Job.objects.filter(schedule=row, status=Status.COMPLETED).count() >= 3, what=fleet.logs)


@pytest.mark.django_db
class TestPace:
    def ask(self, ticker: Ticker) -> int:
        """As a housekeeper does."""
        with CaptureQueriesContext(connection) as captured:
            ticker.pause_sec()
            ticker.tick()
        return len([statement for statement in captured if "jobscheduler_schedule" in statement["sql"]])

    def test_a_housekeeper_that_comes_by_often_asks_the_database_seldom(self) -> None:
        ticker = Ticker()
        create_schedule(cron="0 3 1 1 *")
        self.ask(ticker)
        assert [self.ask(ticker) for _ in range(20)] == [0] * 20
        assert 0 < ticker.pause_sec() <= 1.0

    def test_one_question_is_enough_to_know_that_nothing_is_due(self) -> None:
        ticker = Ticker()
        self.ask(ticker)
        ticker.wake()
        assert self.ask(ticker) == 1

    def test_who_is_told_of_a_change_looks_again(self) -> None:
        ticker = Ticker()
        self.ask(ticker)
        ticker.wake()
        assert ticker.pause_sec() < 0.1
        assert self.ask(ticker) > 0

    def test_news_that_come_while_it_looks_are_not_lost(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from schedules import ticker as ticking

        ticker, look = Ticker(), ticking._read_next_due

        def list_meanwhile() -> Any:
            found = look()
            ticker.wake()
            return found

        monkeypatch.setattr(ticking, "_read_next_due", list_meanwhile)
        ticker.tick()
        monkeypatch.undo()
        assert self.ask(ticker) > 0

    def test_a_tick_that_somebody_asks_for_always_looks(self) -> None:
        ticker = Ticker()
        ticker.tick()
        row = create_schedule(cron="@yearly")  # every minute, the turn of a minute would be due too
        Schedule.objects.filter(pk=row.pk).update(next_fire_at=get_database_time() - timedelta(seconds=1))
        assert ticker.tick() == 1

    def test_it_wakes_for_the_next_due_time_and_not_a_second_later(self) -> None:
        ticker = Ticker()
        row = create_schedule()
        Schedule.objects.filter(pk=row.pk).update(next_fire_at=get_database_time() + timedelta(seconds=0.5))
        ticker.tick()
        assert ticker.pause_sec() < 0.6
