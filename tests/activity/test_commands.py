"""What a command changes is recorded under the operating system's user."""

from __future__ import annotations

import getpass
from collections.abc import Callable

import pytest

import tests.sample_app.job_types  # noqa: F401  the factories name these types
from jobs.services import groups
from tests.factories import ScheduleFactory
from tests.support.activities import record_new
from tests.support.commands import CommandResult, call

pytestmark = [pytest.mark.django_db, pytest.mark.once]


def make_group() -> str:
    return str(groups.create([{"job_type": "sample.noop"}]).pk)


COMMANDS: dict[str, Callable[[], CommandResult]] = {
    "limit.set": lambda: call("limits", "set", "resource", "gpu", "3"),
    "limit.pause": lambda: call("limits", "pause", "global"),
    "target.pause": lambda: call("targets", "pause", "book"),
    "group.cancel": lambda: call("groups", "cancel", make_group()),
    "schedule.create": lambda: call("schedules", "add", "nightly", "sample.noop", "--cron", "0 3 * * *"),
    "schedule.disable": lambda: call("schedules", "disable", ScheduleFactory.create().name),
    "schedule.trigger": lambda: call("schedules", "trigger", ScheduleFactory.create().name),
    "schedule.delete": lambda: call("schedules", "delete", ScheduleFactory.create(enabled=False).name),
    "token.create": lambda: call("createtoken", "robot"),
}


@pytest.mark.parametrize("action", COMMANDS)
def test_a_change_by_a_command_is_recorded_under_its_user(action: str) -> None:
    with record_new() as recorded:
        assert COMMANDS[action]().code == 0
    assert [(row.action, row.actor_kind, row.actor_id) for row in recorded] == [(action, "cli", None)]
    assert getpass.getuser() in recorded[0].actor_name
