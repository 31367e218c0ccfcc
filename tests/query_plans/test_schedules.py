"""Statements that schedulers repeat use indexes, with thousands of schedules and many fires."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from pytest_django import DjangoDbBlocker

from jobs.ids import uuid7
from schedules import history, services
from schedules.admin.fires import latest_fires
from schedules.firing import fire_due
from schedules.models import Schedule, ScheduleFire
from schedules.ticker import Ticker
from tests.query_plans.explain import explain_text
from tests.support.schedules import NOON, TYPE

SCHEDULES, BUSY, FIRES = 4_000, 10, 1_000
# The other tables are empty here; a full scan of an empty table is the cheapest plan.
FULL_SCAN = re.compile(r"Seq Scan on jobscheduler_schedule|SCAN jobscheduler_schedule\w*(?! USING (?:COVERING )?INDEX)")


@pytest.fixture(scope="module")
def history_of_years(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[Schedule]:
    """Thousands of schedules, three of them due; ten have fired a thousand times."""
    with django_db_blocker.unblock():
        rows = [
            Schedule(id=uuid7(), name=f"s{n}", job_type=TYPE, cron="* * * * *", next_fire_at=NOON + timedelta(days=n))
            for n in range(SCHEDULES)
        ]
        for row in rows[:3]:
            row.next_fire_at = NOON
        Schedule.objects.bulk_create(rows, batch_size=1000)
        for row in rows[:BUSY]:
            times = (NOON - timedelta(minutes=n) for n in range(1, FIRES + 1))
            ScheduleFire.objects.bulk_create(
                [ScheduleFire(schedule=row, fire_time=due, job_id=uuid7()) for due in times], batch_size=1000
            )
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE")
        yield rows[0]
        ScheduleFire.objects.all().delete()
        Schedule.objects.all().delete()
        connection.close()


def find_scanning_statements(work: Callable[[], object]) -> list[str]:
    """Return the statements of `work` that read a whole table of schedules or fires, each with its plan."""
    with CaptureQueriesContext(connection) as captured:
        work()
    plans = [f"{sql[:200]}\n{explain_text(sql)}" for statement in captured if _is_explainable(sql := statement["sql"])]
    return [plan for plan in plans if FULL_SCAN.search(plan)]


def _is_explainable(sql: str) -> bool:
    return sql.lstrip().upper().startswith(("SELECT", "UPDATE", "DELETE")) and "pg_notify" not in sql


@pytest.mark.django_db
def test_looking_and_firing_walk_no_table(history_of_years: Schedule) -> None:
    ticker = Ticker()
    ticker.tick()
    Schedule.objects.filter(pk=history_of_years.pk).update(next_fire_at=NOON)
    assert find_scanning_statements(lambda: fire_due(NOON)) == []
    assert find_scanning_statements(ticker.tick) == []


@pytest.mark.django_db
@pytest.mark.parametrize("what", ["fires", "next page", "glance", "forgotten", "delete"])
def test_the_history_of_one_schedule_is_found_by_index(history_of_years: Schedule, what: str, settings: Any) -> None:
    settings.JOBSCHEDULER = {"RETENTION_DAYS": 1}
    fires = history.fires_of(history_of_years)
    work: dict[str, Callable[[], object]] = {
        "fires": lambda: history.load_outcomes(fires[:50]),
        "next page": lambda: list(fires.filter(fire_time__lt=NOON - timedelta(minutes=900))[:50]),
        "glance": lambda: latest_fires(list(Schedule.objects.order_by("pk").values_list("pk", flat=True)[:50])),
        "forgotten": history.delete_old_fires,
        "delete": lambda: services.delete(history_of_years.pk),
    }
    assert find_scanning_statements(work[what]) == []


@pytest.mark.django_db
def test_the_index_for_what_is_due_is_used(history_of_years: Schedule) -> None:
    from schedules.firing import _due_schedules

    sql, params = _due_schedules(NOON).values_list("next_fire_at", "pk")[:100].query.sql_with_params()
    assert "schedule_due" in explain_text(sql, params)
