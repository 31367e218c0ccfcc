"""Migrations apply and reverse on both databases, leave nothing behind, and say all that the models say."""

from __future__ import annotations

from collections.abc import Iterator
from io import StringIO
from typing import Any
from uuid import UUID

import pytest
from django.apps import apps
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.db.migrations.recorder import MigrationRecorder

from jobs.checks import check_history
from jobs.models import ApiToken, Worker
from jobs.services import jobs as job_services
from tests.factories import WorkerFactory
from tests.invariants.raw import existing_triggers
from tests.sample_app import job_types
from tests.support import executor

LABELS = ("jobscheduler_jobs", "jobscheduler_schedules", "jobscheduler_webhooks")


def _tables() -> set[str]:
    return {name for name in connection.introspection.table_names() if name.startswith("jobscheduler_")}


def _schema() -> dict[str, Any]:
    """Columns, constraints and indexes of every table of ours, as the database knows them."""
    found = {}
    with connection.cursor() as cursor:
        for table in sorted(_tables()):
            columns = [
                (column.name, column.type_code, column.null_ok)
                for column in connection.introspection.get_table_description(cursor, table)
            ]
            known = connection.introspection.get_constraints(cursor, table)
            rules = [
                (rule["columns"], rule["unique"], rule["check"], rule["foreign_key"], rule.get("orders"))
                for rule in known.values()
            ]
            found[table] = (sorted(columns, key=str), sorted(rules, key=str))
    return found


def _migrate(label: str, target: str | None = None) -> None:
    call_command("migrate", label, *([target] if target else []), verbosity=0)


@pytest.fixture
def whole_again(transactional_db: None) -> Iterator[None]:
    """Whatever a test takes away is there for the next one."""
    yield
    for label in LABELS:
        _migrate(label)


@pytest.mark.django_db
def test_the_models_have_no_change_without_a_migration() -> None:
    out = StringIO()
    call_command("makemigrations", *LABELS, check=True, dry_run=True, stdout=out)
    assert "No changes detected" in out.getvalue()


def test_everything_goes_to_zero_and_back(whole_again: None, caplog: pytest.LogCaptureFixture) -> None:
    before, triggers = _schema(), existing_triggers()
    with caplog.at_level("INFO"):
        for label in LABELS:
            _migrate(label, "zero")
    assert [record for record in caplog.records if record.name.startswith("jobs")] == []  # nothing is missed
    assert _tables() == set()
    assert existing_triggers() == {}
    assert _functions() == set()
    for label in LABELS:
        _migrate(label)
    assert existing_triggers() == triggers
    assert _schema() == before
    job = job_services.enqueue(job_types.note.name, {"text": "a"}, target="book-1")
    executor.complete(executor.claim(job))


def test_the_guards_can_be_taken_away_and_put_back(whole_again: None) -> None:
    triggers = existing_triggers()
    _migrate("jobscheduler_jobs", "0001")
    assert existing_triggers() == {}
    for label in LABELS:
        _migrate(label)
    assert existing_triggers() == triggers


def test_tokens_of_one_name_are_numbered_before_names_must_differ(whole_again: None) -> None:
    _migrate("jobscheduler_jobs", "0002")
    rows = (("acme", "robot"), ("acme", "robot"), ("acme", "robot (2)"), ("globex", "robot"), (None, "robot"))
    long_name = "x" * 200
    with connection.cursor() as cursor:
        for number, (tenant, name) in enumerate([*rows, (None, "robot"), ("acme", long_name), ("acme", long_name)]):
            values = [UUID(int=number).hex, name, tenant, '["read"]', "js_", str(number)]
            cursor.execute(
                "INSERT INTO jobscheduler_apitoken (id, name, tenant, scopes, prefix, digest)"
                " VALUES (%s, %s, %s, %s, %s, %s)",
                values,
            )
        cursor.execute(
            "INSERT INTO jobscheduler_apitoken (id, name, tenant, scopes, prefix, digest, revoked_at)"
            " VALUES (%s, 'robot', 'acme', '[]', 'js_', 'revoked', CURRENT_TIMESTAMP)",
            [UUID(int=99).hex],
        )
    _migrate("jobscheduler_jobs")
    names = list(ApiToken.objects.order_by("pk").values_list("name", flat=True))
    assert names[:6] == ["robot", "robot (3)", "robot (2)", "robot", "robot", "robot (2)"]
    assert names[6:] == [long_name, "x" * 196 + " (2)", "robot"]
    _migrate("jobscheduler_jobs", "0002")
    _migrate("jobscheduler_jobs")
    assert list(ApiToken.objects.order_by("pk").values_list("name", flat=True)) == names


def test_of_processes_of_one_name_the_latest_keeps_it_before_names_must_differ(whole_again: None) -> None:
    _migrate("jobscheduler_jobs", "0008")
    for name in ("mailer", "mailer", "other"):
        WorkerFactory.create(name=name)
    _migrate("jobscheduler_jobs")
    rows = list(Worker.objects.order_by("pk").values_list("name", "state"))
    assert rows == [("mailer", "STOPPED"), ("mailer", "RUNNING"), ("other", "RUNNING")]
    assert Worker.objects.filter(stopped_at__isnull=True).count() == 2


def _functions() -> set[str]:
    if connection.vendor != "postgresql":
        return set()
    with connection.cursor() as cursor:
        cursor.execute("SELECT proname FROM pg_proc WHERE proname LIKE 'jobscheduler%%'", [])
        return {name for (name,) in cursor.fetchall()}


@pytest.mark.django_db
def test_no_migration_is_left_to_apply() -> None:
    planner = MigrationExecutor(connection)
    assert planner.migration_plan(planner.loader.graph.leaf_nodes()) == []


def test_labels_and_tables_are_our_own() -> None:
    for label in LABELS:
        for model in apps.get_app_config(label).get_models():
            assert model._meta.db_table == f"jobscheduler_{model.__name__.lower()}"


@pytest.mark.django_db
def test_a_development_database_with_rewritten_migrations_is_recognised() -> None:
    assert check_history(databases=["default"]) == []
    MigrationRecorder(connection).record_applied("jobscheduler_jobs", "0001_jobs")
    (error,) = check_history(databases=["default"])
    assert (error.id, "Recreate it" in (error.hint or "")) == ("jobs.E012", True)
    with pytest.raises(SystemCheckError, match="were rewritten"):
        call_command("migrate", verbosity=0, skip_checks=False)
