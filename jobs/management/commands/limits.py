"""`manage.py limits`: show and change how many jobs may run at once, and start in a time."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser
from django.utils.translation import gettext as _

from jobs import serializers
from jobs.errors import InvalidInput
from jobs.management import base
from jobs.models import LimitScope
from jobs.rates import MAX_BURST
from jobs.services import limits
from jobs.services.limits import LimitState

UNLIMITED = ("unlimited", "none")
HEADINGS = ("SCOPE", "KEY", "MAX", "IN USE", "RATE", "TOKEN RATE", "SOURCE", "PAUSED")
SCOPE_HELP = "global; or job_type, resource, tenant or addon and its name"


class Command(base.CliCommand):
    help = "List, set and pause limits, e.g. `limits set global 8` or `limits set resource openai 8 --rate 60/min`."

    def add_arguments(self, parser: CommandParser) -> None:
        subcommands = self.add_subcommands(parser)
        base.add_json_option(self.add_subcommand(subcommands, "list", "List all limits and their use."))
        set_limit = self._add_for_limit(subcommands, "set", "Override the limit of the settings.")
        set_limit.add_argument(
            "arguments",
            nargs="*",
            metavar="[KEY] [MAX]",
            help="The maximum, or `unlimited`. Without it (give a rate then), the maximum stays.",
        )
        set_limit.add_argument("--rate", help="How many jobs may start in a time, e.g. 60/min; or `none`.")
        set_limit.add_argument(
            "--token-rate", help="How many tokens they may use in a time, e.g. 90000/min; or `none`."
        )
        set_limit.add_argument("--burst", help="How many jobs may start at once after a pause; needs a rate.")
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
            return limits.put({**_parse_values(scope, options), "reason": reason}, actor=actor)
        key = options["arguments"] or ""
        if options["subcommand"] == "unpause":
            return limits.unpause(scope, key, actor=actor)
        change = limits.reset if options["subcommand"] == "reset" else limits.pause
        return change(scope, key, reason=reason, actor=actor)


def _parse_values(scope: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return the limit and its new values; fields that are not given stay."""
    key_count = 0 if scope == LimitScope.GLOBAL else 1
    keys, numbers = options["arguments"][:key_count], options["arguments"][key_count:]
    rates = {name: options[name] for name in ("rate", "token_rate", "burst") if options[name] is not None}
    if len(keys) < key_count or len(numbers) > 1 or not (numbers or rates):
        raise InvalidInput([], _("enter a scope, its key unless the scope is global, and a maximum or a rate"))
    values: dict[str, Any] = {name: None if text.lower() in UNLIMITED else text for name, text in rates.items()}
    if values.get("burst") is not None:
        values["burst"] = base.parse_whole_number(values["burst"], "burst", 1, MAX_BURST)
    for text in numbers:
        is_unlimited = text.lower() in UNLIMITED
        values["max"] = None if is_unlimited else base.parse_whole_number(text, "max", 1, limits.MAXIMUM_LIMIT)
    return {"scope": scope, "key": "".join(keys), **values}


def _build_row(state: LimitState) -> tuple[object, ...]:
    maximum = _("unlimited") if state.max is None else state.max
    paused = f"{state.paused_by}: {state.reason}".strip(": ") or _("yes") if state.paused else ""
    burst = f" ({_('burst')} {state.burst})" if state.burst else ""
    rates = (f"{state.rate or ''}{burst}", state.token_rate or "")
    return (state.scope, state.key, maximum, state.in_use, *rates, state.source, paused)
