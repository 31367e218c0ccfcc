"""The system checks: a site that is set up wrongly hears of it before a job is lost."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from django.core import checks
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import connections
from django.test import override_settings

from jobs.checks import find_sqlite_problem

CHECKOUT = Path(__file__).resolve().parents[2]
SAFE = {"transaction_mode": "IMMEDIATE", "timeout": 20, "init_command": "PRAGMA journal_mode=WAL"}
Database = Callable[..., str]


class Elsewhere:
    """A router that sends everything to a database that these tests describe and never open."""

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "elsewhere"


class Undecided:
    pass


@pytest.fixture
def database(monkeypatch: pytest.MonkeyPatch) -> Iterator[Database]:
    def describe(options: dict[str, Any], engine: str = "django.db.backends.sqlite3", name: str = "x.sqlite3") -> str:
        written = {"default": {}, "elsewhere": {"ENGINE": engine, "NAME": name, "OPTIONS": options}}
        described = connections.configure_settings(written)["elsewhere"]
        monkeypatch.setitem(connections.settings, "elsewhere", described)
        return "elsewhere"

    yield describe
    with suppress(AttributeError):  # no test asked for it
        del connections["elsewhere"]


def list_check_ids(*, deploy: bool = False) -> set[str]:
    messages = checks.run_checks(tags=["jobs"], include_deployment_checks=deploy)
    return {str(message.id) for message in messages}


def found_on(routed: str, *, deploy: bool = False) -> set[str]:
    with override_settings(DATABASE_ROUTERS=[f"{__name__}.{routed.title()}"]):
        return list_check_ids(deploy=deploy)


def test_the_product_as_shipped_has_nothing_to_report() -> None:
    assert list_check_ids(deploy=True) == set()


@pytest.mark.parametrize(
    ("raw", "ids"),
    [
        ({"LEASE_SECS": 30}, {"jobs.E001"}),
        ({"ADMISSION": {"nope": 1}}, {"jobs.E001"}),
        ({"LEASE_SEC": "30"}, {"jobs.E002"}),
        ({"LIMITS": {"global": 0}}, {"jobs.E002"}),
        ("LEASE_SEC=30", {"jobs.E002"}),
        ({"HEARTBEAT_SEC": 8}, {"jobs.E003"}),
        ({"LEASE_SECS": 30, "POLL_SEC": 0, "HEARTBEAT_SEC": 8}, {"jobs.E001", "jobs.E002", "jobs.E003"}),
        ({"RETRY_POLICY": "no.such.Policy"}, {"jobs.E004"}),
        ({"RETRY_POLICY": "jobs.policies.retry.Missing"}, {"jobs.E004"}),
        ({"RETRY_POLICY": "jobs.policies.retry.RetryFacts"}, {"jobs.E004"}),
        ({"RETRY_POLICY": f"{__name__}.Undecided"}, {"jobs.E004"}),
        ({"CONCURRENCY_POLICY": f"{__name__}.Undecided"}, {"jobs.E004"}),
        ({"FAIRNESS_POLICY": "no.such.Policy"}, {"jobs.E004"}),
        ({"FAIRNESS_POLICY": f"{__name__}.Undecided"}, {"jobs.E004"}),
        ({"FAIRNESS_POLICY": "jobs.policies.fairness.Aging"}, set()),
        ({"FAIRNESS_POLICY": "tests.sample_app.policies.by_addon"}, set()),
        ({"ADMISSION_POLICY": "jobs.policies.admission.Capacity"}, set()),
        ({"CONCURRENCY_POLICY": "tests.sample_app.policies.one_of_each_type"}, set()),
        ({"RETRY_POLICY": 3, "NOPE": 1}, {"jobs.E001", "jobs.E002"}),
    ],
)
def test_wrong_settings_are_errors(raw: Any, ids: set[str]) -> None:
    with override_settings(JOBSCHEDULER=raw):
        assert list_check_ids() == ids


@pytest.mark.parametrize(
    ("raw", "names"),
    [
        ({"SYSTEM_JOB_TYPES": True, "COMMAND_ALLOW": ["shell", "clearsessions", "loaddata"]}, "loaddata, shell"),
        ({"SYSTEM_JOB_TYPES": True, "COMMAND_ALLOW": ["createtoken"]}, "createtoken"),
        ({"SYSTEM_JOB_TYPES": True, "COMMAND_ALLOW": ["clearsessions", "check", "prune"]}, None),
        ({"SYSTEM_JOB_TYPES": False, "COMMAND_ALLOW": ["shell"]}, None),
    ],
)
def test_commands_that_hand_out_the_rights_of_the_worker_are_a_warning(raw: Any, names: str | None) -> None:
    with override_settings(JOBSCHEDULER=raw):
        messages = [message for message in checks.run_checks(tags=["jobs"]) if message.id == "jobs.W006"]
    expected = [] if names is None else [f"COMMAND_ALLOW lets every token with the scope submit run {names} with any"]
    assert [message.msg.removesuffix(" arguments.") for message in messages] == expected


def test_the_check_command_fails_and_names_the_key_and_its_neighbour() -> None:
    with (
        override_settings(JOBSCHEDULER={"LEASE_SECS": 30}),
        pytest.raises(SystemCheckError, match=r"(?s)jobs\.E001.*LEASE_SECS.*Did you mean LEASE_SEC\?"),
    ):
        call_command("check", tags=["jobs"])


def test_times_without_zones_are_an_error() -> None:
    with override_settings(USE_TZ=False):
        assert list_check_ids() == {"jobs.E005"}


@pytest.mark.parametrize("mode", [None, "DEFERRED", "EXCLUSIVE"])
def test_sqlite_that_is_not_immediate_is_a_warning_and_under_deploy_an_error(
    database: Database, mode: str | None
) -> None:
    alias = database({**SAFE, "transaction_mode": mode})
    assert "IMMEDIATE" in str(find_sqlite_problem(alias))
    assert found_on(alias) == {"jobs.W001"}
    assert found_on(alias, deploy=True) == {"jobs.W001", "jobs.E007"}


@pytest.mark.parametrize("mode", ["IMMEDIATE", "immediate"])
def test_sqlite_in_immediate_mode_is_fine(database: Database, mode: str) -> None:
    alias = database({**SAFE, "transaction_mode": mode})
    assert find_sqlite_problem(alias) is None
    assert found_on(alias, deploy=True) == set()


@pytest.mark.parametrize("options", [{"timeout": 5}, {"timeout": None}, {"timeout": "30"}])
def test_sqlite_that_soon_gives_up_is_a_warning(database: Database, options: dict[str, Any]) -> None:
    assert found_on(database({**SAFE, **options}), deploy=True) == {"jobs.W002"}


@pytest.mark.parametrize(
    ("command", "ids"),
    [
        ("", {"jobs.W003"}),
        ("PRAGMA journal_mode=DELETE", {"jobs.W003"}),
        ("PRAGMA synchronous=FULL; pragma journal_mode = wal;", set()),
    ],
)
def test_sqlite_without_a_write_ahead_log_is_a_warning(database: Database, command: str, ids: set[str]) -> None:
    assert found_on(database({**SAFE, "init_command": command})) == ids


@pytest.mark.parametrize("name", [":memory:", "file:scratch?mode=memory&cache=shared"])
def test_a_database_in_memory_needs_no_write_ahead_log(database: Database, name: str) -> None:
    assert found_on(database({**SAFE, "init_command": ""}, name=name)) == set()


def test_postgresql_is_not_asked_for_sqlite_options(database: Database) -> None:
    pytest.importorskip("psycopg")
    alias = database({}, engine="django.db.backends.postgresql", name="x")
    assert find_sqlite_problem(alias) is None
    assert found_on(alias, deploy=True) == set()


def test_a_package_that_shadows_ours_is_named_with_its_file(tmp_path: Path) -> None:
    (tmp_path / "webhooks").mkdir()
    shadow = tmp_path / "webhooks" / "__init__.py"
    shadow.write_text("")
    (tmp_path / "webhooks" / "apps.py").write_text(  # without one, the finder of an editable install would return ours
        "from django.apps import AppConfig\nclass TheirConfig(AppConfig):\n    name = 'webhooks'\n"
    )
    (tmp_path / "site_settings.py").write_text(
        "SECRET_KEY = 'x'\n"
        "INSTALLED_APPS = ['django.contrib.auth', 'django.contrib.contenttypes', 'jobs', 'webhooks']\n"
        "DATABASES = {'default': {'ENGINE': 'django.db.backends.sqlite3', 'NAME': ':memory:'}}\n"
    )
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(tmp_path), str(CHECKOUT)]),
        "DJANGO_SETTINGS_MODULE": "site_settings",
    }
    command = [sys.executable, "-m", "django", "check", "--tag", "jobs"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "jobs.E006" in done.stderr
    assert str(shadow) in done.stderr
