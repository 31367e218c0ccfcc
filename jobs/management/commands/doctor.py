"""`manage.py doctor`: checks of a deployment, with an exit code."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils.translation import ngettext

from jobs.management import base
from jobs.management.doctor import Level, examine, examine_own_worker
from jobs.validation.sanitize import escape_unprintable


class Command(base.CliCommand):
    help = (
        "Looks at settings, static files, database, migrations, triggers, clock, workers, limits, leases, schedules "
        "and webhooks."
    )
    requires_system_checks: list[str] = []  # they are among what is looked at

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--fail-level", choices=["warning", "error"], default="error", help="What makes it exit 1.")
        told = "Look only whether a worker of this host was heard from: the health check of its container."
        parser.add_argument("--worker", action="store_true", help=told)
        base.add_json(parser)

    def handle(self, *args: Any, **given: Any) -> None:
        found = list(examine_own_worker() if given["worker"] else examine())
        bad = [each for each in found if each.level == Level.ERROR]
        if given["fail_level"] == "warning":
            bad = [each for each in found if each.level != Level.OK]
        if given["json"]:
            self.write_json({"healthy": not bad, "findings": [asdict(each) for each in found]})
        else:
            styles = {Level.OK: self.style.SUCCESS, Level.WARNING: self.style.WARNING, Level.ERROR: self.style.ERROR}
            for finding in found:
                level = styles[finding.level](f"{finding.level:8}")
                self.stdout.write(f"{level} {finding.topic}: {escape_unprintable(finding.message)}")
                if finding.hint:
                    self.stdout.write(f"{'':9}{finding.hint}")
        if bad:
            told = ngettext("%d thing is wrong.", "%d things are wrong.", len(bad)) % len(bad)
            raise CommandError(told, returncode=base.REFUSED)
