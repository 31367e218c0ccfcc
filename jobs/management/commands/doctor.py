"""`manage.py doctor`: check a deployment; the exit code shows the result."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils.translation import ngettext

from jobs.management import base
from jobs.management.doctor import Level, check_own_worker, run_checks
from jobs.validation.sanitize import escape_unprintable


class Command(base.CliCommand):
    help = (
        "Check settings, static files, database, migrations, triggers, clock, notifications, connections, workers, "
        "limits, leases, schedules and webhooks."
    )
    requires_system_checks: list[str] = []  # the doctor itself runs them

    def add_arguments(self, parser: CommandParser) -> None:
        lowest = "The lowest level with exit code 1."
        parser.add_argument("--fail-level", choices=["warning", "error"], default="error", help=lowest)
        summary = "Check only that a worker runs on this host, as the health check of a worker's container."
        parser.add_argument("--worker", action="store_true", help=summary)
        base.add_json_option(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        findings = list(check_own_worker() if options["worker"] else run_checks())
        problems = [finding for finding in findings if finding.level == Level.ERROR]
        if options["fail_level"] == "warning":
            problems = [finding for finding in findings if finding.level != Level.OK]
        if options["json"]:
            self.write_json({"healthy": not problems, "findings": [asdict(finding) for finding in findings]})
        else:
            styles = {Level.OK: self.style.SUCCESS, Level.WARNING: self.style.WARNING, Level.ERROR: self.style.ERROR}
            for finding in findings:
                level = styles[finding.level](f"{finding.level:8}")
                self.stdout.write(f"{level} {finding.topic}: {escape_unprintable(finding.message)}")
                if finding.hint:
                    self.stdout.write(f"{'':9}{finding.hint}")
        if problems:
            message = ngettext("%d problem found.", "%d problems found.", len(problems)) % len(problems)
            raise CommandError(message, returncode=base.REFUSED)
