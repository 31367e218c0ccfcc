"""`manage.py import_django_q`: brings the schedules of django-q2 over, each once."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs.management import base
from schedules.django_q2 import Imported, bring_over

HEADINGS = ("SOURCE", "NAME", "WHEN", "RESULT")


class Command(base.CliCommand):
    help = (
        "Brings the schedules of django-q2 over. What was brought over before is left alone; sources are disabled "
        "with --disable-source, never deleted. Exit code 1 if some could not be brought over."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--dry-run", action="store_true", help="Only say what would be done.")
        parser.add_argument("--disable-source", action="store_true", help="Let django-q2 no longer fire them.")
        parser.add_argument("--tenant", default="default")
        base.add_json(parser)

    def handle(self, *args: Any, **given: Any) -> None:
        how = {"dry_run": given["dry_run"], "disable_source": given["disable_source"]}
        found = bring_over(tenant=given["tenant"], actor=base.actor(), **how)
        if given["json"]:
            self.write_json([asdict(row) for row in found])
        else:
            self.write_table(HEADINGS, [(row.source, row.name, row.when, _describe(row)) for row in found])
            if any(row.result == "made" and row.fires_twice for row in found):
                self.stderr.write(_("Both fire now, until django-q2 is stopped or --disable-source is said."))
        refused = sum(row.result == "refused" for row in found)
        if refused:
            message = ngettext("%d schedule was not brought over.", "%d schedules were not brought over.", refused)
            raise CommandError(message % refused, returncode=base.REFUSED)


def _describe(row: Imported) -> str:
    return "; ".join([f"{row.result}: {row.reason}" if row.reason else row.result, *row.warnings])
