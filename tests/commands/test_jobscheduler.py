"""`manage.py jobscheduler COMMAND`: our commands in a site where another app has the short names."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.models import Job
from tests.factories import JobFactory
from tests.support.commands import call, run_process

pytestmark = pytest.mark.django_db


@pytest.fixture
def crowded_site(process_env: dict[str, str], tmp_path: Path) -> dict[str, str]:
    """An app of the site has a command `jobs`, and comes first."""
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
def test_where_names_collide_ours_are_reached_by_the_full_name(crowded_site: dict[str, str]) -> None:
    job = JobFactory.create()

    assert run_process(crowded_site, "jobs").out == "vacancies: none\n"
    result = run_process(crowded_site, "jobscheduler", "jobs", "cancel", job.pk, "--reason=by full name", "--json")

    assert (result.code, result.json["changed"]) == (0, [str(job.pk)])
    refused = run_process(crowded_site, "jobscheduler", "jobs", "cancel", job.pk)
    assert (refused.code, refused.err) == (1, "CommandError: 1 job could not be changed.\n")
    helped = run_process(crowded_site, "jobscheduler", "jobs", "cancel", "--help")
    assert helped.out.startswith("usage: manage.py jobscheduler jobs cancel")


def test_it_calls_from_python_as_well() -> None:
    result = call("jobscheduler", "enqueue", "sample.add", "a=1", "b=2")

    assert (result.code, result.out) == (0, f"{Job.objects.get().pk}\n")
    assert call("jobscheduler", "enqueue", "sample.add", "a=1").code == 2


def test_alone_it_lists_our_commands() -> None:
    result = call("jobscheduler")

    assert {"enqueue", "jobs", "limits", "prune", "recover", "targets", "tick", "worker"} <= set(result.out.split())
    assert "jobscheduler" not in result.out.split()


def test_a_command_that_is_not_ours_is_bad_input() -> None:
    result = call("jobscheduler", "migrate")

    assert (result.code, result.out) == (2, "")
    assert "migrate" in result.err
