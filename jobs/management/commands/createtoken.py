"""`manage.py createtoken`: create an API token, which is printed once and not stored."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from jobs.management import base
from jobs.models.token import SCOPES
from jobs.services import tokens
from jobs.validation import fields


class Command(base.CliCommand):
    help = "Create an API token and print it to stdout. It is not shown again."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("name", help="The token's name, shown in the audit trail.")
        tenant = parser.add_mutually_exclusive_group()
        tenant.add_argument("--tenant", default="default", help="The tenant whose jobs it may use (default: default).")
        tenant.add_argument("--all-tenants", action="store_true", help="For the jobs of every tenant.")
        scopes = f"Any of {', '.join(SCOPES)}, with commas (default: {','.join(tokens.DEFAULT_SCOPES)})."
        parser.add_argument("--scopes", action="append", help=scopes)
        addon = "The addon that its scope work is for; may be repeated (default: every addon)."
        parser.add_argument("--addon", action="append", help=addon)
        parser.add_argument("--expires", metavar="DURATION", help="Its lifetime, e.g. 90d.")

    def handle(self, *args: Any, **options: Any) -> None:
        _token, text = tokens.create(
            options["name"],
            tenant=None if options["all_tenants"] else options["tenant"],
            scopes=base.parse_names(options["scopes"], "--scopes") or tokens.DEFAULT_SCOPES,
            addons=options["addon"],
            lifetime=None if options["expires"] is None else fields.parse_duration(options["expires"], "--expires"),
            actor=base.current_actor(),
        )
        self.stdout.write(text)
