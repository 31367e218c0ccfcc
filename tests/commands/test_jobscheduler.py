"""`manage.py jobscheduler COMMAND` runs our commands where another app has the same names."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.models import Job
from tests.factories import JobFactory
from tests.support.commands import call, run_process

pytestmark = pytest.mark.django_db


@pytest.fixture
def site_with_rival_app(process_env: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """Return the environment of a site in which an earlier app has a command `jobs` too."""
    commands = tmp_path / "rival" / "management" / "commands"
    commands.mkdir(parents=True)
    for folder in (commands, commands.parent, commands.parent.parent):
        (folder / "__init__.py").touch()
    (commands / "jobs.py").write_text(
        "from django.core.management.base import BaseCommand\n"
        "class Command(BaseCommand):\n"
        "    def handle(self, **options):\n"
        "        self.stdout.write('vacancies: none')\n"
    )
    (tmp_path / "crowded.py").write_text(
        "from tests.settings import *\nfrom tests.settings import INSTALLED_APPS\n"
        "INSTALLED_APPS = ['rival', *INSTALLED_APPS]\n"
    )
    return {**process_env, "DJANGO_SETTINGS_MODULE": "crowded", "PYTHONPATH": str(tmp_path)}


@pytest.mark.once
def test_where_names_collide_our_commands_run_through_jobscheduler(site_with_rival_app: dict[str, str]) -> None:
    job = JobFactory.create()

    assert run_process(site_with_rival_app, "jobs").out == "vacancies: none\n"
    result = run_process(
        site_with_rival_app, "jobscheduler", "jobs", "cancel", job.pk, "--reason=by full name", "--json"
    )

    assert (result.code, result.json["changed"]) == (0, [str(job.pk)])
    refused = run_process(site_with_rival_app, "jobscheduler", "jobs", "cancel", job.pk)
    assert (refused.code, refused.err) == (1, "CommandError: 1 job could not be changed.\n")
    help_output = run_process(site_with_rival_app, "jobscheduler", "jobs", "cancel", "--help")
    assert help_output.out.startswith("usage: manage.py jobscheduler jobs cancel")


def test_it_works_with_call_command() -> None:
    result = call("jobscheduler", "enqueue", "sample.add", "a=1", "b=2")

    assert (result.code, result.out) == (0, f"{Job.objects.get().pk}\n")
    assert call("jobscheduler", "enqueue", "sample.add", "a=1").code == 2


def test_without_arguments_it_lists_our_commands() -> None:
    result = call("jobscheduler")

    assert {"enqueue", "jobs", "limits", "prune", "recover", "targets", "tick", "worker"} <= set(result.out.split())
    assert "jobscheduler" not in result.out.split()


def test_a_command_that_is_not_ours_is_bad_input() -> None:
    result = call("jobscheduler", "migrate")

    assert (result.code, result.out) == (2, "")
    assert "migrate" in result.err
