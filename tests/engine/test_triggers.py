"""Triggers that got lost are noticed and put back; on SQLite, Django drops them when it remakes a table."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.apps import apps
from django.core.checks import run_checks
from django.core.management import CommandError, call_command
from django.core.management.sql import emit_post_migrate_signal, emit_pre_migrate_signal
from django.db import connection
from django.db.migrations import Migration
from django.db.models import Model

from jobs import triggers
from jobs.models import JobEvent, JobRun
from tests.invariants.raw import drop_trigger, existing_triggers
from tests.support.commands import call

APPS = ("jobscheduler_jobs", "jobscheduler_schedules", "jobscheduler_webhooks")
MODELS = [model for label in APPS for model in apps.get_app_config(label).get_models()]


@pytest.fixture
def all_in_place(transactional_db: None) -> Iterator[dict[str, str]]:
    yield existing_triggers()
    call_command("migrate", verbosity=0)


def test_a_migrated_database_lacks_none(all_in_place: dict[str, str]) -> None:
    assert triggers.find_missing_triggers(connection) == []
    assert "jobscheduler_webhook_events" in all_in_place


@pytest.mark.sqlite_only
@pytest.mark.parametrize("model", [JobEvent, JobRun], ids=lambda model: model.__name__)
def test_triggers_of_a_remade_table_come_back_with_the_next_migrate(
    model: type[Model], all_in_place: dict[str, str]
) -> None:
    with connection.schema_editor() as editor:
        editor._remake_table(model)
    lost = {name for name, table in all_in_place.items() if table == model._meta.db_table}
    assert set(triggers.find_missing_triggers(connection)) == lost != set()
    call_command("migrate", verbosity=0)
    assert existing_triggers() == all_in_place


@pytest.mark.sqlite_only
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.__name__)
def test_migrations_can_remake_every_table(model: type[Model], all_in_place: dict[str, str]) -> None:
    """A trigger that mentions a table would keep SQLite from renaming the new one."""
    plan = [(Migration("0099_changed", "sample"), False)]
    emit_pre_migrate_signal(0, False, connection.alias, plan=plan)
    with connection.schema_editor() as editor:
        editor._remake_table(model)
    emit_post_migrate_signal(0, False, connection.alias, plan=plan)
    assert existing_triggers() == all_in_place
    assert triggers.find_missing_triggers(connection) == []


def test_a_missing_trigger_is_noticed_by_check_doctor_and_worker_and_put_back_by_migrate(
    all_in_place: dict[str, str],
) -> None:
    for name in ("jobscheduler_webhook_events", "jobscheduler_inv_002"):
        drop_trigger(name, all_in_place[name])
    [warning] = [check for check in run_checks(databases=["default"]) if check.id == "jobs.W005"]
    assert "jobscheduler_inv_002, jobscheduler_webhook_events" in warning.msg
    assert "missing: jobscheduler_inv_002, jobscheduler_webhook_events" in call("doctor").out
    with pytest.raises(CommandError, match="Triggers are missing: jobscheduler_inv_002, jobscheduler_webhook_events"):
        call_command("worker", "--burst")
    call_command("migrate", verbosity=0)
    assert existing_triggers() == all_in_place


@pytest.mark.pg_only
def test_a_disabled_trigger_or_another_function_counts_as_missing(all_in_place: dict[str, str]) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE jobscheduler_jobrun DISABLE TRIGGER jobscheduler_inv_002")
        cursor.execute("ALTER FUNCTION jobscheduler_webhook_group() SECURITY INVOKER")
    assert triggers.find_missing_triggers(connection) == ["jobscheduler_inv_002", "jobscheduler_webhook_group"]
    call_command("migrate", verbosity=0)
    assert triggers.find_missing_triggers(connection) == []


@pytest.mark.django_db
def test_without_the_database_in_question_the_check_says_nothing() -> None:
    drop_trigger("jobscheduler_inv_002", "jobscheduler_jobrun")
    assert [check for check in run_checks() if check.id == "jobs.W005"] == []
