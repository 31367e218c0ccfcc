"""`manage.py createroles`: groups for those who look, those who operate and those who set up."""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.core.management.base import CommandError, CommandParser
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs.management import base


class Command(base.CliCommand):
    help = (
        "Makes the groups Job viewer, Job operator and Job admin, or puts their permissions right. "
        "It may be run again at any time; permissions on other apps are left alone."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        base.add_json(parser)

    def handle(self, *args: Any, **given: Any) -> None:
        if not apps.is_installed("django.contrib.auth"):
            raise CommandError(_("Roles are groups of django.contrib.auth, which is not installed."))
        from jobs import roles  # its models are there only if the app is

        if not roles.is_ready():
            raise CommandError(_("There are no permissions yet: run “migrate” first."))
        made = roles.make_all()
        if given["json"]:
            self.write_json([vars(each) for each in made])
            return
        for each in made:
            number = ngettext("%d permission", "%d permissions", each.permissions) % each.permissions
            told = {"name": each.name, "number": number, "added": each.added, "taken": each.taken}
            self.stdout.write(_("%(name)s: %(number)s (%(added)d added, %(taken)d taken away)") % told)
