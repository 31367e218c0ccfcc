"""Schedules declared in code are created by migrate and workers, follow the code, and stay once edited."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from django.core import checks
from django.core.management import call_command

from jobs import db, job
from jobs.errors import InvalidInput
from jobs.registry import registry
from jobs.testing import drain
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


@pytest.mark.parametrize(
    ("name", "value"), [("timezone", "Europe/Berlin"), ("cron_params", {"pages": 2}), ("fire_time_param", "due")]
)
def test_options_of_a_schedule_without_a_cron_are_refused_at_the_declaration(name: str, value: Any) -> None:
    with pytest.raises(TypeError, match=f"{name} requires the option cron"):
        declare(**{name: value})


@pytest.mark.parametrize(
    "options",
    [
        *({"cron": cron} for cron in (5, [], [5], ["@daily", "@daily"], ["@daily", ""], ["@daily"] * 51)),
        *({"cron": "@daily", "cron_params": params} for params in ([], "x", {"a": {1}})),
        {"cron": "@daily", "fire_time_param": 5},
    ],
)
def test_a_wrong_option_of_a_schedule_is_refused_at_the_declaration(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=r"cron|fire_time_param"):
        declare(**options)


def test_each_of_several_expressions_is_a_schedule_of_its_own() -> None:
    crons = ["0 8 * * 1-5", "0 12 * * 6"]
    declare(cron=crons, timezone="Europe/Berlin")
    declared.sync()
    rows = {row.name: (row.source, row.cron, row.timezone, row.job_type) for row in Schedule.objects.all()}
    assert rows == {
        f"report.make {cron}": (f"code:report.make#{cron}", cron, "Europe/Berlin", "report.make") for cron in crons
    }
    declare(cron=list(reversed([*crons, "@monthly"])))
    declared.sync(retire=True)
    assert Schedule.objects.filter(enabled=True).count() == 3, "neither the order nor a new one touches the others"
    declare(cron=crons[:1])
    declared.sync(retire=True)
    assert [row.cron for row in Schedule.objects.filter(enabled=True)] == crons[:1]


def test_jobs_of_a_declared_schedule_get_its_params_and_their_due_time() -> None:
    received = []

    @job("report.make", cron="@daily", cron_params={"pages": 7}, fire_time_param="due")
    def make_report(pages: int, due: datetime) -> None:
        received.append((pages, due))

    declared.sync()
    Schedule.objects.update(next_fire_at=NOON)
    fire_due(NOON)
    assert [done.status for done in drain()] == ["COMPLETED"]
    assert received == [(7, NOON)]
    assert not [check for check in checks.run_checks(tags=["jobs"]) if check.id == "jobs.E009"]


def test_changed_params_reach_the_row_unless_it_was_edited() -> None:
    declare(cron="@daily", cron_params={"pages": 7})
    declared.sync()
    declare(cron="@daily", cron_params={"pages": 8})
    declared.sync()
    assert get_row().params == {"pages": 8}
    declare(cron="@daily")
    declared.sync()
    assert get_row().params == {}


@pytest.mark.parametrize("options", [{"cron_params": {"leaves": 1}}, {"fire_time_param": "due"}])
def test_params_that_the_handler_does_not_take_are_an_error_of_the_system_check(options: dict[str, Any]) -> None:
    declare(cron="@daily", **options)
    assert [check.id for check in checks.run_checks(tags=["jobs"]) if "report.make" in str(check)] == ["jobs.E009"]
    declared.sync()
    assert not Schedule.objects.exists()


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
