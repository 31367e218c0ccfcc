"""`manage.py jobscheduler COMMAND …`: our commands, also where another app has a command of the same name."""

from __future__ import annotations

import os
from argparse import REMAINDER
from typing import Any

from django.apps import apps
from django.core.management import call_command, find_commands, load_command_class
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils.translation import gettext as _

from jobs.management import base

OURS = ("jobscheduler_jobs", "jobscheduler_schedules", "jobscheduler_webhooks")


class Command(base.CliCommand):
    help = "Runs a command of the job scheduler, also where another app has one of that name."
    requires_system_checks: list[str] = []  # the command itself has its own

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("command", nargs="?", help=f"One of: {', '.join(sorted(commands()))}.")
        parser.add_argument("arguments", nargs=REMAINDER, help="What the command gets.")

    def run_from_argv(self, argv: list[str]) -> None:
        """The words behind the command are its own, and so is what it says about them."""
        if len(argv) > 2 and argv[2] in commands():
            command(argv[2]).run_from_argv([f"{os.path.basename(argv[0])} {argv[1]}", *argv[2:]])
        else:
            super().run_from_argv(argv)

    def handle(self, *args: Any, **given: Any) -> None:
        name = given["command"]
        if name is None:
            self.stdout.write("\n".join(sorted(commands())))
            return
        if name not in commands():
            raise CommandError(_("There is no command “%s” of the job scheduler.") % name, returncode=base.BAD_INPUT)
        call_command(command(name), *given["arguments"], stdout=self.stdout, stderr=self.stderr)


def commands() -> dict[str, str]:
    """Each of our commands and the app that has it."""
    found: dict[str, str] = {}
    for config in apps.get_app_configs():
        if config.label in OURS:
            listed = find_commands(os.path.join(config.path, "management"))
            found |= dict.fromkeys((name for name in listed if name != "jobscheduler"), config.name)
    return found


def command(name: str) -> BaseCommand:
    return load_command_class(commands()[name], name)
