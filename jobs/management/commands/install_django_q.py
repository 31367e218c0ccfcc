"""`manage.py install_django_q`: a running qcluster drives the housekeeping, where no worker does."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser
from django.utils.translation import gettext as _

from jobs.contrib import django_q
from jobs.management import base

MOST_MINUTES = 60


class Command(base.CliCommand):
    help = "Schedules our housekeeping in django-q2: due schedules, recovery, webhooks. Repeating it is harmless."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--minutes", default="1", help="How often (default every %(default)s).")
        parser.add_argument("--cluster", help="For this cluster only (default: the site's default one).")
        parser.add_argument("--remove", action="store_true", help="Take it away again.")

    def handle(self, *args: Any, **given: Any) -> None:
        if given["remove"]:
            gone = django_q.uninstall()
            self.stdout.write(_("The tick was taken away.") if gone else _("There was no tick to take away."))
            return
        minutes = base.whole_number(given["minutes"], "--minutes", 1, MOST_MINUTES)
        new = django_q.install(minutes=minutes, cluster=given["cluster"] or None)
        told = _("A running qcluster ticks every %d min.") if new else _("It was there; now it ticks every %d min.")
        self.stdout.write(told % minutes)
