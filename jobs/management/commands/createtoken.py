"""`manage.py createtoken`: a token for the API, printed once and never kept."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from jobs.management import base
from jobs.models.token import SCOPES
from jobs.services import tokens


class Command(base.CliCommand):
    help = "Makes an API token and prints it, alone, on stdout. It is not shown again."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", help="What it is for; the name in the audit trail.")
        whose = parser.add_mutually_exclusive_group()
        whose.add_argument("--tenant", default="default", help="The tenant it is of (default: default).")
        whose.add_argument("--all-tenants", action="store_true", help="Of every tenant.")
        parser.add_argument(
            "--scopes",
            action="append",
            help=f"Any of {', '.join(SCOPES)}, with commas (default: {','.join(tokens.DEFAULT_SCOPES)}).",
        )
        parser.add_argument("--expires", metavar="DURATION", help="After which it is refused, e.g. 90d.")

    def handle(self, *args: Any, **given: Any) -> None:
        _token, written = tokens.create(
            given["name"],
            tenant=None if given["all_tenants"] else given["tenant"],
            scopes=base.names(given["scopes"], "--scopes") or tokens.DEFAULT_SCOPES,
            lifetime=None if given["expires"] is None else base.duration(given["expires"], "--expires"),
            actor=base.actor(),
        )
        self.stdout.write(written)
