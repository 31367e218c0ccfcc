"""The tick in django-q2's own table, and the checks of a site that has it."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from django.core import checks
from django.test import override_settings
from django_q.models import OrmQ
from django_q.models import Schedule as Theirs
from django_q.scheduler import scheduler

from jobs.contrib import django_q
from jobs.engine.maintenance import runner
from jobs.services import maintenance
from tests.support.commands import call

pytestmark = pytest.mark.django_db


def test_installing_is_repeatable_and_updates() -> None:
    assert call("install_django_q").out == "A running qcluster ticks every 1 min.\n"
    row = Theirs.objects.get()
    assert (row.func, row.schedule_type, row.minutes, row.repeats) == (django_q.TICK, "I", 1, -1)
    assert row.args is None
    options = ast.literal_eval(row.kwargs or "")["q_options"]
    assert options == {"ack_failure": True, "save": False, "timeout": 20}
    Theirs.objects.update(repeats=0, func="somebody.elses")
    assert (
        "Changed: a running qcluster ticks every 5 min"
        in call("install_django_q", "--minutes", 5, "--cluster", "big").out
    )
    row.refresh_from_db()
    assert (row.func, row.minutes, row.repeats, row.cluster) == (django_q.TICK, 5, -1, "big")
    assert Theirs.objects.count() == 1


def test_two_of_ours_become_one() -> None:
    for _ in range(2):
        Theirs.objects.create(name=django_q.TICK_NAME, func=django_q.TICK)
    call("install_django_q")
    assert Theirs.objects.count() == 1


def test_removing_it() -> None:
    call("install_django_q")
    assert "removed" in call("install_django_q", "--remove").out
    assert not Theirs.objects.exists()
    assert call("install_django_q", "--remove").code == 0


@pytest.mark.parametrize("minutes", ["0", "61", "x", "-1"])
def test_bad_input_is_exit_code_2(minutes: str) -> None:
    assert call("install_django_q", f"--minutes={minutes}").code == 2
    assert not Theirs.objects.exists()


@pytest.mark.django_db(transaction=True)  # their scheduler closes connections
def test_only_a_name_travels() -> None:
    call("install_django_q")
    scheduler()
    task = OrmQ.objects.get().task
    assert (task["func"], task["args"], task["kwargs"]) == (django_q.TICK, (), {})


def test_a_tick_runs_every_task_each_on_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []

    def make_task(name: str) -> runner.MaintenanceTask:
        def run() -> None:
            done.append(name)
            if name == "b":
                raise RuntimeError("boom")

        return runner.MaintenanceTask(name, run, lambda: 1.0)

    monkeypatch.setattr(maintenance, "list_tasks", lambda: [make_task(name) for name in "abc"])
    django_q.tick()
    assert sorted(done) == ["a", "b", "c"]


def test_a_tick_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    tasks = [runner.MaintenanceTask("slow", lambda: done.append(1), lambda: 1.0)] * 3
    monkeypatch.setattr(maintenance, "list_tasks", lambda: tasks)
    monkeypatch.setattr(django_q, "TICK_SEC", -1.0)
    django_q.tick()
    assert done == []


@pytest.mark.parametrize("command", ["install_django_q", "import_django_q"])
def test_a_site_without_django_q2_is_told_in_one_line(command: str) -> None:
    from django.apps import apps

    others = [config.name for config in apps.get_app_configs() if config.name != "django_q"]
    with override_settings(INSTALLED_APPS=others):
        result = call(command)
    assert (result.code, result.out) == (1, "")
    assert "“django_q” is not in INSTALLED_APPS" in result.err


@pytest.mark.parametrize(
    ("cluster", "warned"),
    [
        ({"timeout": 60, "retry": 120}, False),
        ({"timeout": 60, "retry": 60}, True),
        ({"timeout": 90}, True),
        ({"timeout": 30}, False),
        ({"retry": 120}, True),
        ({}, True),
        ({"timeout": None, "retry": 10}, True),
    ],
)
def test_a_retry_that_is_no_longer_than_the_timeout_is_warned_of(cluster: dict[str, Any], warned: bool) -> None:
    with override_settings(Q_CLUSTER=cluster):
        found = {check.id for check in checks.run_checks(tags=["jobs"])}
    assert ("jobs.W004" in found) == warned


def test_without_django_q2_nobody_is_warned() -> None:
    from django.apps import apps

    others = [config.name for config in apps.get_app_configs() if config.name != "django_q"]
    with override_settings(INSTALLED_APPS=others, Q_CLUSTER={}):
        assert "jobs.W004" not in {check.id for check in checks.run_checks(tags=["jobs"])}
