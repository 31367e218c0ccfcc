"""`manage.py prune --older-than 30d`: retention, now and to the end."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.management.base import CommandParser
from django.utils.translation import gettext as _

from jobs.conf import conf
from jobs.engine.maintenance.retention import PrunePass
from jobs.errors import InvalidInput
from jobs.management import base


class Command(base.CliCommand):
    help = (
        "Deletes ended retry chains and groups that nothing has happened to for so long, never a part of one, nothing "
        "that is live, blocks a target or waits for a webhook. Totals stay: old minutes of the rollup become days."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--older-than", metavar="DURATION", help="E.g. 30d or 12h; default RETENTION_DAYS.")
        parser.add_argument("--dry-run", action="store_true", help="Only say what would go.")
        base.add_json(parser)

    def handle(self, *args: Any, **given: Any) -> None:
        if given["older_than"] is not None:
            age = base.duration(given["older_than"], "--older-than")
        elif conf.RETENTION_DAYS is not None:
            age = timedelta(days=conf.RETENTION_DAYS)
        else:
            raise InvalidInput("--older-than", _("must be said, as RETENTION_DAYS is not set"))
        pruning = PrunePass(age, dry_run=given["dry_run"])
        pruning.run()
        if given["json"]:
            self.write_json({"dry_run": given["dry_run"], **vars(pruning.counts)})
        else:
            would = _("Would delete or fold: %s.") if given["dry_run"] else _("Deleted or folded: %s.")
            self.stdout.write(would % pruning.counts)
