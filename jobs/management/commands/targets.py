"""`manage.py targets`: show and pause targets, the serial queues."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser
from django.utils.translation import gettext as _

from jobs import serializers
from jobs.management import base
from jobs.models import Target
from jobs.services import targets
from jobs.services.targets import TargetState
from jobs.stats import queries
from jobs.time_text import format_time
from jobs.validation import fields

HEADINGS = ("TARGET", "TENANT", "QUEUED", "OLDEST", "HOLDER", "STATE")


class Command(base.CliCommand):
    help = "List, pause and unpause targets. A target can be paused before its first job."

    def add_arguments(self, parser: CommandParser) -> None:
        subcommands = self.add_subcommands(parser)
        list_targets = self.add_subcommand(subcommands, "list", "List targets with their queues.")
        list_targets.add_argument("--tenant", help="Only targets of this tenant.")
        list_targets.add_argument("--paused", action="store_true", help="Only paused targets.")
        blocked = "Only targets that a paused or failed job blocks."
        list_targets.add_argument("--blocked", action="store_true", help=blocked)
        base.add_limit_option(list_targets)
        pause = self._add_for_target(subcommands, "pause", "Start no more jobs of a target; a running job continues.")
        base.add_reason_option(pause)
        unpause = self._add_for_target(subcommands, "unpause", "End the pause of a target.")
        for subcommand in (list_targets, pause, unpause):
            base.add_json_option(subcommand)

    def _add_for_target(self, subcommands: Any, name: str, summary: str) -> CommandParser:
        subcommand = self.add_subcommand(subcommands, name, summary)
        subcommand.add_argument("key", metavar="TARGET")
        subcommand.add_argument("--tenant", default="default")
        return subcommand

    def handle(self, *args: Any, **options: Any) -> None:
        if options["subcommand"] == "list":
            selected = self._select(options)
        elif options["subcommand"] == "pause":
            arguments = {"tenant": options["tenant"], "reason": options["reason"], "actor": base.current_actor()}
            selected = [targets.pause(options["key"], **arguments)]
        else:
            selected = [targets.unpause(options["key"], tenant=options["tenant"], actor=base.current_actor())]
        states = targets.get_states(selected)
        if options["json"]:
            self.write_json([serializers.serialize_target(state) for state in states])
        else:
            self.write_table(HEADINGS, [_build_row(state) for state in states])

    def _select(self, options: dict[str, Any]) -> list[Target]:
        tenant = None if options["tenant"] is None else fields.parse_tenant(options["tenant"], "--tenant")
        rows = targets.filter_by_tenant(tenant)
        if options["paused"]:
            rows = rows.filter(paused=True)
        if options["blocked"]:
            rows = rows.filter(pk__in=queries.blocking_jobs().order_by().values("lane_id"))
        return list(rows[: base.parse_limit(options)])


def _build_row(state: TargetState) -> tuple[object, ...]:
    holder = "" if state.holder is None else f"{state.holder.pk} {state.holder.status}"
    oldest = format_time(state.oldest_queued_at) or ""
    status = _("blocked") if state.blocked_by else _("open")
    if state.target.paused:
        actor = f"{state.target.paused_by}: {state.target.reason}".strip(": ")
        status = _("paused by %s") % actor if actor else _("paused")
    return (state.target.key, state.target.tenant, state.queued, oldest, holder, status)
