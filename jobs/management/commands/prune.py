"""`manage.py prune --older-than 30d`: apply retention now, without its limit per round."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django.core.management.base import CommandParser
from django.utils.translation import gettext as _

from jobs.conf import conf
from jobs.errors import InvalidInput
from jobs.management import base
from jobs.services import maintenance
from jobs.validation import fields


class Command(base.CliCommand):
    help = (
        "Delete retry chains and groups that finished and have not changed for this long, always as a whole. Jobs that "
        "block a target or wait for a webhook are kept. Totals are kept: old minutes of the rollup become days."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--older-than", metavar="DURATION", help="E.g. 30d or 12h; default RETENTION_DAYS.")
        parser.add_argument("--dry-run", action="store_true", help="Only print what would be deleted.")
        base.add_json_option(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        if options["older_than"] is not None:
            age = fields.parse_duration(options["older_than"], "--older-than")
        elif conf.RETENTION_DAYS is not None:
            age = timedelta(days=conf.RETENTION_DAYS)
        else:
            raise InvalidInput("--older-than", _("is required, as RETENTION_DAYS is not set"))
        counts = maintenance.prune(age, dry_run=options["dry_run"])
        if options["json"]:
            self.write_json({"dry_run": options["dry_run"], **vars(counts)})
        else:
            message = _("Would delete or compact: %s.") if options["dry_run"] else _("Deleted or compacted: %s.")
            self.stdout.write(message % counts)
