"""`manage.py limits`: how many jobs may run at once, changed live."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser
from django.utils.translation import gettext as _

from jobs import cli, limits, shapes
from jobs.errors import InvalidInput
from jobs.limits import LimitState
from jobs.models import LimitScope

UNLIMITED = ("unlimited", "none")
HEADINGS = ("SCOPE", "KEY", "MAX", "IN USE", "SOURCE", "PAUSED")
WHERE = "global; or job_type, resource, tenant or addon and its name"


class Command(cli.CliCommand):
    help = "Lists, sets and pauses limits, e.g. `limits set global 8` or `limits set job_type mail.send 3`."

    def add_arguments(self, parser: CommandParser) -> None:
        every = self.add_verbs(parser)
        cli.add_json(self.add_verb(every, "list", "All limits and how much of them is in use."))
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
        cli.add_reason(verb)
        cli.add_json(verb)
        return verb

    def handle(self, *args: Any, **given: Any) -> None:
        if given["verb"] == "list":
            listed = limits.listing()
            if given["json"]:
                self.write_json([shapes.limit(each) for each in listed])
            else:
                self.write_table(HEADINGS, map(row, listed))
            return
        state = self._change(given)
        if given["json"]:
            self.write_json(shapes.limit(state))
        else:
            self.write_table(HEADINGS, [row(state)])

    def _change(self, given: dict[str, Any]) -> LimitState:
        scope, actor, reason = given["scope"], cli.actor(), given["reason"]
        if given["verb"] == "set":
            key, most = _key_and_maximum(given["words"])
            return limits.set_maximum(scope, key, maximum=most, reason=reason, actor=actor)
        key = given["words"] or ""
        if given["verb"] == "unpause":
            return limits.unpause(scope, key, actor=actor)
        change = limits.reset if given["verb"] == "reset" else limits.pause
        return change(scope, key, reason=reason, actor=actor)


def row(state: LimitState) -> tuple[object, ...]:
    most = _("unlimited") if state.max is None else state.max
    paused = f"{state.paused_by}: {state.reason}".strip(": ") or _("yes") if state.paused else ""
    return (state.scope, state.key, most, state.in_use, state.source, paused)


def _key_and_maximum(words: list[str]) -> tuple[str, int | None]:
    if len(words) > 2:
        raise InvalidInput([], _("say a scope, its key unless it is global, and a maximum"))
    key = words[0] if len(words) == 2 else ""
    if words[-1].lower() in UNLIMITED:
        return key, None
    return key, cli.whole_number(words[-1], "max", 1, limits.LARGEST)
