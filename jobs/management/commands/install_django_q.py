"""`manage.py install_django_q`: let a running qcluster do the maintenance, where no worker does."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser
from django.utils.translation import gettext as _

from jobs.contrib import django_q
from jobs.management import base

MAX_MINUTES = 60


class Command(base.CliCommand):
    help = "Schedule our maintenance in django-q2: due schedules, recovery, webhooks. It can be repeated."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--minutes", default="1", help="Minutes between ticks (default %(default)s).")
        parser.add_argument("--cluster", help="The cluster that runs it (default: the site's default cluster).")
        parser.add_argument("--remove", action="store_true", help="Remove the schedule.")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["remove"]:
            is_removed = django_q.uninstall()
            self.stdout.write(_("The tick was removed.") if is_removed else _("There was no tick to remove."))
            return
        minutes = base.parse_whole_number(options["minutes"], "--minutes", 1, MAX_MINUTES)
        is_new = django_q.install(minutes=minutes, cluster=options["cluster"] or None)
        changed = _("Changed: a running qcluster ticks every %d min.")
        self.stdout.write((_("A running qcluster ticks every %d min.") if is_new else changed) % minutes)
