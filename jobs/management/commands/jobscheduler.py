"""`manage.py jobscheduler COMMAND …`: run our commands, even if another app has a command of the same name."""

from __future__ import annotations

import os
from argparse import REMAINDER
from typing import Any

from django.apps import apps
from django.core.management import call_command, find_commands, load_command_class
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils.translation import gettext as _

from jobs.management import base
from jobs.roles import APP_LABELS


class Command(base.CliCommand):
    help = "Run a command of the job scheduler, even if another app has a command of the same name."
    requires_system_checks: list[str] = []  # the command runs its own checks

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("command", nargs="?", help=f"One of: {', '.join(sorted(list_commands()))}.")
        parser.add_argument("arguments", nargs=REMAINDER, help="The arguments of the command.")

    def run_from_argv(self, argv: list[str]) -> None:
        """Let the command itself parse its arguments and report errors in them."""
        if len(argv) > 2 and argv[2] in list_commands():
            load_command(argv[2]).run_from_argv([f"{os.path.basename(argv[0])} {argv[1]}", *argv[2:]])
        else:
            super().run_from_argv(argv)

    def handle(self, *args: Any, **options: Any) -> None:
        name = options["command"]
        if name is None:
            self.stdout.write("\n".join(sorted(list_commands())))
            return
        if name not in list_commands():
            raise CommandError(_("There is no command “%s” of the job scheduler.") % name, returncode=base.BAD_INPUT)
        call_command(load_command(name), *options["arguments"], stdout=self.stdout, stderr=self.stderr)


def list_commands() -> dict[str, str]:
    """Return our commands, each with the name of its app."""
    app_names: dict[str, str] = {}
    for config in apps.get_app_configs():
        if config.label in APP_LABELS:
            names = find_commands(os.path.join(config.path, "management"))
            app_names |= dict.fromkeys((name for name in names if name != "jobscheduler"), config.name)
    return app_names


def load_command(name: str) -> BaseCommand:
    return load_command_class(list_commands()[name], name)
