"""`manage.py import_django_q`: import the schedules of django-q2, each once."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs.management import base
from schedules.django_q2 import import_schedules

HEADINGS = ("SOURCE", "NAME", "WHEN", "JOB TYPE", "RESULT")


class Command(base.CliCommand):
    help = (
        "Imports the schedules of django-q2. Those imported before are left unchanged; sources are disabled "
        "with --disable-source, never deleted. Exit code 1 if some could not be imported."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--dry-run", action="store_true", help="Only print what would be done.")
        parser.add_argument("--disable-source", action="store_true", help="Disable imported schedules in django-q2.")
        parser.add_argument("--tenant", default="default")
        base.add_json_option(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        results = import_schedules(
            tenant=options["tenant"],
            dry_run=options["dry_run"],
            disable_source=options["disable_source"],
            actor=base.current_actor(),
        )
        if options["json"]:
            self.write_json([asdict(row) for row in results])
        else:
            rows = []
            for row in results:
                result = f"{row.result}: {row.reason}" if row.reason else row.result
                rows.append((row.source, row.name, row.when, row.job_type, "; ".join([result, *row.warnings])))
            self.write_table(HEADINGS, rows)
            for wrapper in {row.wrapper: None for row in results if row.wrapper}:
                self.stdout.write(f"\n{wrapper}")
            if any(row.result == "made" and row.fires_twice for row in results):
                self.stderr.write(
                    _("Both schedulers run them until django-q2 is stopped or --disable-source is given.")
                )
        refused_count = sum(row.result == "refused" for row in results)
        if refused_count:
            message = ngettext("%d schedule was not imported.", "%d schedules were not imported.", refused_count)
            raise CommandError(message % refused_count, returncode=base.REFUSED)
