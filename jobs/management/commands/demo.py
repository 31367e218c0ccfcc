"""`manage.py demo`: create and remove demo data for the console."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from django.conf import settings
from django.core.management.base import CommandError, CommandParser
from django.utils.translation import gettext as _

from jobs import demo
from jobs.management import base

STOP_TIMEOUT_SEC = 20.0


@contextmanager
def _quiet_logs() -> Iterator[None]:
    """Log nothing below ERROR: the demo submits, fails and pauses jobs on purpose."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(level)


class Command(base.CliCommand):
    help = (
        "Fill the tenant “demo” with jobs in every state, schedules, groups, webhooks and a week of history. "
        "Other tenants are not changed, and nothing is sent."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        mode = parser.add_mutually_exclusive_group()
        mode.add_argument("--clear", action="store_true", help="Remove everything in the demo's tenant.")
        mode.add_argument("--work", action="store_true", help="Run the demo's jobs until Ctrl-C.")
        parser.add_argument("--force", action="store_true", help="Create it although the site has many jobs.")

    def handle(self, *args: Any, **options: Any) -> None:
        if options["clear"]:
            deleted = demo.clear(actor=base.current_actor(), timeout_sec=STOP_TIMEOUT_SEC)
            self.stdout.write(_("Demo removed (%d jobs).") % deleted)
        elif options["work"] and demo.exists():
            self._run_worker()
        else:
            if not settings.DEBUG and not options["force"] and demo.is_site_in_use():
                message = _(
                    "This site has more than %(count)d jobs of its own, so it may be in production: workers would run "
                    "the jobs of the demo, and its sample history would be in lists and charts. "
                    "Use --force to fill the tenant “%(tenant)s” here; “demo --clear” removes it."
                )
                raise CommandError(message % {"count": demo.MAX_OTHER_JOBS, "tenant": demo.TENANT})
            with _quiet_logs():
                jobs = demo.fill(actor=base.current_actor())
            message = _(
                "The tenant “%(tenant)s” now has %(jobs)d jobs, most of them a sample history of a week. "
                "A running worker runs the waiting ones; “demo --clear” removes all."
            )
            self.stdout.write(message % {"tenant": demo.TENANT, "jobs": jobs})
            if options["work"]:
                self._run_worker()

    def _run_worker(self) -> None:
        from jobs.demo import content

        self.stdout.write(_("Running the demo's jobs; stop with Ctrl-C."))
        self.stdout.flush()
        content.run_worker(burst=False, maintenance=True, concurrency=4)
