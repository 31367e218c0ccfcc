"""What schedulers ask again and again is answered by indexes, with thousands of schedules and many fires."""

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
from tests.support.schedules import NOON, TYPE

SCHEDULES, BUSY, FIRES = 4_000, 10, 1_000
# The other tables are empty here, and walking through nothing is the quickest way.
WALKS = re.compile(r"Seq Scan on jobscheduler_schedule|SCAN jobscheduler_schedule\w*(?! USING (?:COVERING )?INDEX)")


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


def find_full_scans(work: Callable[[], object]) -> list[str]:
    """Statements that looked through a whole table."""
    with CaptureQueriesContext(connection) as captured:
        work()
    return [found for statement in captured if (found := _plan(statement["sql"])) and WALKS.search(found)]


def _plan(sql: str) -> str:
    if not sql.lstrip().upper().startswith(("SELECT", "UPDATE", "DELETE")) or "pg_notify" in sql:
        return ""
    explain = "EXPLAIN" if connection.vendor == "postgresql" else "EXPLAIN QUERY PLAN"
    with connection.cursor() as cursor:
        cursor.execute(f"{explain} {sql}".replace("%", "%%"), [])
        return sql[:200] + "\n" + "\n".join(str(row[-1]) for row in cursor.fetchall())


@pytest.mark.django_db
def test_looking_and_firing_walk_no_table(history_of_years: Schedule) -> None:
    ticker = Ticker()
    ticker.tick()
    Schedule.objects.filter(pk=history_of_years.pk).update(next_fire_at=NOON)
    assert find_full_scans(lambda: fire_due(NOON)) == []
    assert find_full_scans(ticker.tick) == []


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
    assert find_full_scans(work[what]) == []


@pytest.mark.django_db
def test_the_index_for_what_is_due_is_used(history_of_years: Schedule) -> None:
    from schedules.firing import _due_schedules

    sql, params = _due_schedules(NOON).values_list("next_fire_at", "pk")[:100].query.sql_with_params()
    explain = "EXPLAIN" if connection.vendor == "postgresql" else "EXPLAIN QUERY PLAN"
    with connection.cursor() as cursor:
        cursor.execute(f"{explain} {sql}", params)
        assert "schedule_due" in str(cursor.fetchall())
