"""`manage.py limits`: how many jobs may run at once, changed live."""

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
WHERE = "global; or job_type, resource, tenant or addon and its name"


class Command(base.CliCommand):
    help = "Lists, sets and pauses limits, e.g. `limits set global 8` or `limits set job_type mail.send 3`."

    def add_arguments(self, parser: CommandParser) -> None:
        every = self.add_verbs(parser)
        base.add_json(self.add_verb(every, "list", "All limits and how much of them is in use."))
        setting = self._add(every, "set", "Override what the settings say.")
        setting.add_argument("words", nargs="+", metavar="[KEY] MAX", help="The maximum, or `unlimited`.")
        for name, summary in (
            ("reset", "Drop the override: the settings count again. A pause stays."),
            ("pause", "Start nothing more under this limit; what runs goes on."),
            ("unpause", "Lift the pause."),
        ):
            self._add(every, name, summary).add_argument("words", nargs="?", metavar="KEY")

    def _add(self, every: Any, name: str, summary: str) -> CommandParser:
        verb = self.add_verb(every, name, summary)
        verb.add_argument("scope", choices=LimitScope.values, help=WHERE)
        base.add_reason(verb)
        base.add_json(verb)
        return verb

    def handle(self, *args: Any, **given: Any) -> None:
        states = limits.listing() if given["verb"] == "list" else [self._change(given)]
        if given["json"]:
            documents = [serializers.limit(state) for state in states]
            self.write_json(documents if given["verb"] == "list" else documents[0])
        else:
            self.write_table(HEADINGS, map(row, states))

    def _change(self, given: dict[str, Any]) -> LimitState:
        scope, actor, reason = given["scope"], base.actor(), given["reason"]
        if given["verb"] == "set":
            *keys, maximum = given["words"]
            if len(keys) > 1:
                raise InvalidInput([], _("say a scope, its key unless it is global, and a maximum"))
            number = None if maximum.lower() in UNLIMITED else base.whole_number(maximum, "max", 1, limits.LARGEST)
            return limits.set_maximum(scope, "".join(keys), maximum=number, reason=reason, actor=actor)
        key = given["words"] or ""
        if given["verb"] == "unpause":
            return limits.unpause(scope, key, actor=actor)
        change = limits.reset if given["verb"] == "reset" else limits.pause
        return change(scope, key, reason=reason, actor=actor)


def row(state: LimitState) -> tuple[object, ...]:
    most = _("unlimited") if state.max is None else state.max
    paused = f"{state.paused_by}: {state.reason}".strip(": ") or _("yes") if state.paused else ""
    return (state.scope, state.key, most, state.in_use, state.source, paused)
