"""`manage.py createroles`: create groups with the permissions of viewers, operators and administrators."""

from __future__ import annotations

from typing import Any

from django.apps import apps
from django.core.management.base import CommandError, CommandParser
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs.management import base


class Command(base.CliCommand):
    help = (
        "Create the groups Job viewer, Job operator and Job admin, or update their permissions. "
        "It can be repeated at any time; permissions of other apps are not changed."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        base.add_json_option(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        if not apps.is_installed("django.contrib.auth"):
            raise CommandError(_("Roles are groups of django.contrib.auth, which is not installed."))
        from jobs import roles  # it needs the models of django.contrib.auth

        if not roles.has_permissions():
            raise CommandError(_("There are no permissions yet: run “migrate” first."))
        results = roles.create_roles()
        if options["json"]:
            self.write_json([vars(result) for result in results])
            return
        for result in results:
            number = ngettext("%d permission", "%d permissions", result.permissions) % result.permissions
            values = {"name": result.name, "number": number, "added": result.added, "taken": result.taken}
            self.stdout.write(_("%(name)s: %(number)s (%(added)d added, %(taken)d removed)") % values)
