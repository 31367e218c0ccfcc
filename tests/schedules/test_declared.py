"""Schedules declared in code are created by migrate and workers, follow the code, and stay once edited."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.core import checks
from django.core.management import call_command

from jobs import db, job
from jobs.errors import InvalidInput
from jobs.registry import registry
from schedules import declared, services
from schedules.firing import fire_due
from schedules.models import Schedule
from schedules.ticker import Ticker
from tests.support.schedules import NOON, create_schedule

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _own_handlers() -> Iterator[None]:
    """Restore the registry after each test."""
    before = registry._handlers
    registry._handlers = dict(before)
    yield
    registry._handlers = before


def declare(name: str = "report.make", **options: Any) -> None:
    registry._handlers = {known: handler for known, handler in registry._handlers.items() if known != name}

    @job(name, **options)
    def make_report(pages: int = 1) -> int:
        return pages


def get_row(name: str = "report.make") -> Schedule:
    return Schedule.objects.get(source=f"code:{name}")


def test_a_declaration_appears_on_migrate_and_when_a_scheduler_starts() -> None:
    declare(cron="0 3 * * *", timezone="Europe/Berlin")
    call_command("migrate", "jobscheduler_schedules", verbosity=0)
    assert (get_row().name, get_row().cron, get_row().timezone, get_row().job_type) == (
        "report.make",
        "0 3 * * *",
        "Europe/Berlin",
        "report.make",
    )
    assert get_row().next_fire_at is not None
    Schedule.objects.all().delete()
    Ticker().tick()
    assert get_row().cron == "0 3 * * *"


def test_a_repeated_sync_changes_nothing() -> None:
    declare(cron="@daily")
    declared.sync()
    before = Schedule.objects.values().get()
    declared.sync(retire=True)
    assert Schedule.objects.values().get() == before
    assert (get_row().timezone, get_row().edited) == ("UTC", False)


def test_a_changed_declaration_updates_its_row() -> None:
    declare(cron="@daily")
    declared.sync()
    declare(cron="30 4 * * *", timezone="Europe/Berlin")
    declared.sync()
    assert (get_row().cron, get_row().timezone, get_row().edited) == ("30 4 * * *", "Europe/Berlin", False)
    declare(cron="30 5 * * *")
    declared.sync()
    assert (get_row().cron, get_row().timezone) == ("30 5 * * *", "UTC")


@pytest.mark.parametrize("edit", [{"cron": "15 1 * * *"}, {"params": {"pages": 2}}, {"name": "mine"}])
def test_an_edited_row_is_never_overwritten(edit: dict[str, Any]) -> None:
    declare(cron="@daily")
    declared.sync()
    services.update(get_row().pk, edit)
    edited = Schedule.objects.values().get()
    declare(cron="30 4 * * *")
    declared.sync(retire=True)
    assert Schedule.objects.values().get() == edited


def test_a_disabled_row_stays_disabled() -> None:
    declare(cron="@daily")
    declared.sync()
    services.disable(get_row().pk, reason="not now")
    declare(cron="30 4 * * *")
    declared.sync()
    assert (get_row().enabled, get_row().disabled_reason, get_row().cron) == (False, "not now", "30 4 * * *")


def test_a_removed_declaration_disables_its_row_on_migrate_only_and_a_restored_one_enables_it() -> None:
    declare(cron="@daily")
    declared.sync()
    declare()
    declared.sync()  # a worker with older code must not undo declarations of newer code
    assert get_row().enabled
    call_command("migrate", "jobscheduler_schedules", verbosity=0)
    assert (get_row().enabled, get_row().disabled_reason) == (False, "its declaration is gone from the code")
    declare(cron="@daily")
    declared.sync()
    assert (get_row().enabled, get_row().disabled_reason) == (True, "")


def test_an_edited_row_outlives_its_declaration() -> None:
    declare(cron="@daily")
    declared.sync()
    services.update(get_row().pk, {"priority": 3})
    declare()
    declared.sync(retire=True)
    assert get_row().enabled


def test_a_row_that_older_code_could_not_run_is_repaired_by_newer_code() -> None:
    declare(cron="@daily")
    declared.sync()
    Schedule.objects.update(next_fire_at=NOON, job_type="report.older")
    fire_due(NOON)
    assert get_row().disabled_reason.startswith("broken: ")
    Schedule.objects.update(job_type="report.make")
    declared.sync()
    assert get_row().enabled


def test_an_existing_schedule_keeps_its_name() -> None:
    existing = create_schedule(name="report.make")
    declare(cron="@daily")
    declared.sync()
    assert get_row().name == "report.make (code)"
    existing.refresh_from_db()
    assert existing.source == ""


def test_a_bad_declaration_stops_no_other_and_is_an_error_of_the_system_check() -> None:
    declare("report.bad", cron="0 0 31 2 *")
    declare("report.good", cron="@daily")
    declare("report.lost", cron="@daily", timezone="Mars/Phobos")

    @job("report.needy", cron="@daily")
    def require_pages(pages: int) -> int:
        return pages

    declared.sync()
    assert list(Schedule.objects.values_list("name", flat=True)) == ["report.good"]
    errors = [check for check in checks.run_checks(tags=["jobs"]) if check.id == "jobs.E009"]
    assert {name for name in ("bad", "lost", "needy", "good") if f"report.{name}" in str(errors)} == {
        "bad",
        "lost",
        "needy",
    }


def test_a_timezone_without_a_cron_is_refused_at_the_declaration() -> None:
    with pytest.raises(TypeError, match="timezone requires the option cron"):
        declare(timezone="Europe/Berlin")
    with pytest.raises(InvalidInput):
        declare(cron=5)


def test_two_processes_that_start_at_once_make_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    declare(cron="@daily")
    create = services.create

    def create_twice(values: Any, **options: Any) -> Any:
        create(values, **options)  # another process inserts first
        return create(values, **options)

    monkeypatch.setattr(services, "create", create_twice)
    declared.sync()
    assert Schedule.objects.count() == 1


def test_migrating_without_our_tables_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Schedule._meta, "db_table", "no_such_table")
    declared.sync_after_migrate(using=db.alias())
