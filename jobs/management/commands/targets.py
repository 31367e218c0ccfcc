"""`manage.py targets`: the serial lanes, and whether they are open."""

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
from jobs.validation import fields

HEADINGS = ("TARGET", "TENANT", "QUEUED", "OLDEST", "HOLDER", "STATE")


class Command(base.CliCommand):
    help = "Lists, pauses and unpauses targets. A target that was never used may be paused beforehand."

    def add_arguments(self, parser: CommandParser) -> None:
        every = self.add_verbs(parser)
        listing = self.add_verb(every, "list", "Targets and what goes on in their lanes.")
        listing.add_argument("--tenant", help="Only of this tenant.")
        listing.add_argument("--paused", action="store_true", help="Only those that are paused.")
        listing.add_argument("--blocked", action="store_true", help="Only those that a paused or failed job blocks.")
        base.add_limit(listing)
        pausing = self._add(every, "pause", "Start nothing of a target; what runs goes on.")
        base.add_reason(pausing)
        for each in (listing, pausing, self._add(every, "unpause", "Open the target again.")):
            base.add_json(each)

    def _add(self, every: Any, name: str, summary: str) -> CommandParser:
        verb = self.add_verb(every, name, summary)
        verb.add_argument("key", metavar="TARGET")
        verb.add_argument("--tenant", default="default")
        return verb

    def handle(self, *args: Any, **given: Any) -> None:
        if given["verb"] == "list":
            found = self._select(given)
        elif given["verb"] == "pause":
            options = {"tenant": given["tenant"], "reason": given["reason"], "actor": base.actor()}
            found = [targets.pause(given["key"], **options)]
        else:
            found = [targets.unpause(given["key"], tenant=given["tenant"], actor=base.actor())]
        states = targets.states(found)
        if given["json"]:
            self.write_json([serializers.target(state) for state in states])
        else:
            self.write_table(HEADINGS, [row(state) for state in states])

    def _select(self, given: dict[str, Any]) -> list[Target]:
        found = Target.objects.order_by("tenant", "key")
        if given["tenant"] is not None:
            found = found.filter(tenant=fields.parse_tenant(given["tenant"], "--tenant"))
        if given["paused"]:
            found = found.filter(paused=True)
        if given["blocked"]:
            found = found.filter(pk__in=queries.blocking_jobs().order_by().values("lane_id"))
        return list(found[: base.limit(given)])


def row(state: TargetState) -> tuple[object, ...]:
    holder = "" if state.holder is None else f"{state.holder.pk} {state.holder.status}"
    oldest = serializers.moment(state.oldest_queued_at) or ""
    status = _("blocked") if state.blocked_by else _("open")
    if state.target.paused:
        who = f"{state.target.paused_by}: {state.target.reason}".strip(": ")
        status = _("paused by %s") % who if who else _("paused")
    return (state.target.key, state.target.tenant, state.queued, oldest, holder, status)
