"""`manage.py limits`: show and change how many jobs may run at once."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser
from django.utils.translation import gettext as _

from jobs import serializers
from jobs.errors import InvalidInput
from jobs.management import base
from jobs.models import LimitScope
from jobs.services import limits
from jobs.services.limits import LimitState

UNLIMITED = ("unlimited", "none")
HEADINGS = ("SCOPE", "KEY", "MAX", "IN USE", "SOURCE", "PAUSED")
SCOPE_HELP = "global; or job_type, resource, tenant or addon and its name"


class Command(base.CliCommand):
    help = "List, set and pause limits, e.g. `limits set global 8` or `limits set job_type mail.send 3`."

    def add_arguments(self, parser: CommandParser) -> None:
        subcommands = self.add_subcommands(parser)
        base.add_json_option(self.add_subcommand(subcommands, "list", "List all limits and their use."))
        set_limit = self._add_for_limit(subcommands, "set", "Override the limit of the settings.")
        set_limit.add_argument("arguments", nargs="+", metavar="[KEY] MAX", help="The maximum, or `unlimited`.")
        for name, summary in (
            ("reset", "Remove the override: the limit of the settings applies again. A pause stays."),
            ("pause", "Start no more jobs under this limit; running jobs continue."),
            ("unpause", "End the pause."),
        ):
            self._add_for_limit(subcommands, name, summary).add_argument("arguments", nargs="?", metavar="KEY")

    def _add_for_limit(self, subcommands: Any, name: str, summary: str) -> CommandParser:
        subcommand = self.add_subcommand(subcommands, name, summary)
        subcommand.add_argument("scope", choices=LimitScope.values, help=SCOPE_HELP)
        base.add_reason_option(subcommand)
        base.add_json_option(subcommand)
        return subcommand

    def handle(self, *args: Any, **options: Any) -> None:
        states = limits.list_limits() if options["subcommand"] == "list" else [self._change(options)]
        if options["json"]:
            documents = [serializers.serialize_limit(state) for state in states]
            self.write_json(documents if options["subcommand"] == "list" else documents[0])
        else:
            self.write_table(HEADINGS, map(_build_row, states))

    def _change(self, options: dict[str, Any]) -> LimitState:
        scope, actor, reason = options["scope"], base.current_actor(), options["reason"]
        if options["subcommand"] == "set":
            *keys, maximum = options["arguments"]
            if len(keys) > 1:
                raise InvalidInput([], _("give a scope, its key unless the scope is global, and a maximum"))
            number = None
            if maximum.lower() not in UNLIMITED:
                number = base.parse_whole_number(maximum, "max", 1, limits.MAXIMUM_LIMIT)
            return limits.set_maximum(scope, "".join(keys), maximum=number, reason=reason, actor=actor)
        key = options["arguments"] or ""
        if options["subcommand"] == "unpause":
            return limits.unpause(scope, key, actor=actor)
        change = limits.reset if options["subcommand"] == "reset" else limits.pause
        return change(scope, key, reason=reason, actor=actor)


def _build_row(state: LimitState) -> tuple[object, ...]:
    maximum = _("unlimited") if state.max is None else state.max
    paused = f"{state.paused_by}: {state.reason}".strip(": ") or _("yes") if state.paused else ""
    return (state.scope, state.key, maximum, state.in_use, state.source, paused)
