"""`manage.py demo`: something to look at in the console, and the way to be rid of it."""

from __future__ import annotations

from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser
from django.utils.translation import gettext as _

from jobs import demo
from jobs.management import base

PATIENCE_SEC = 20.0


class Command(base.CliCommand):
    help = (
        "Fills the tenant “demo” with jobs in every state, schedules, groups, webhooks and a week of figures. "
        "Nothing outside of that tenant is touched, and nothing is sent anywhere."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        what = parser.add_mutually_exclusive_group()
        what.add_argument("--clear", action="store_true", help="Remove all that is in the demo's tenant.")
        what.add_argument("--work", action="store_true", help="Go on as a worker for the demo's jobs, until Ctrl-C.")
        parser.add_argument("--force", action="store_true", help="Fill it although DEBUG is off.")

    def handle(self, *args: Any, **given: Any) -> None:
        if given["clear"]:
            gone = demo.clear(actor=base.actor(), patience_sec=PATIENCE_SEC)
            self.stdout.write(_("The demo is gone, with %d jobs.") % gone)
        elif given["work"] and demo.is_there():
            self._work()
        else:
            if not settings.DEBUG and not given["force"]:
                message = _("DEBUG is off, so this may be a production site. Say --force to fill the tenant “%s” here.")
                raise CommandError(message % demo.TENANT)
            jobs = demo.fill(actor=base.actor())
            message = _(
                "The tenant “%(tenant)s” has %(jobs)d jobs now. A worker sets them going; “demo --clear” removes all."
            )
            self.stdout.write(message % {"tenant": demo.TENANT, "jobs": jobs})
            if given["work"]:
                self._work()

    def _work(self) -> None:
        from jobs.demo import content

        self.stdout.write(_("Working for the demo. Ctrl-C ends it."))
        self.stdout.flush()
        content.work(burst=False, housekeeping=True, concurrency=4)
