"""`manage.py groups`: jobs that belong together."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser
from django.utils.translation import gettext as _

from jobs import serializers
from jobs.errors import InvalidInput
from jobs.management import base
from jobs.models import GroupStatus, JobGroup
from jobs.services import groups
from jobs.validation import fields as validation

HEADINGS = ("ID", "NAME", "TENANT", "MODE", "STATUS", "PLACES", "CREATED")
PLACES = ("PLACE", "JOB", "TYPE", "STATUS", "ATTEMPT", "REASON")
FIELDS = {"name", "mode", "on_failure", "jobs", "tenant"}


class Command(base.CliCommand):
    help = "Submits, lists, shows, cancels and retries groups of jobs."

    def add_arguments(self, parser: CommandParser) -> None:
        every = self.add_verbs(parser)
        making = self.add_verb(every, "create", "Submit the group that a JSON file describes; prints its id.")
        making.add_argument("file", metavar="FILE", help='{"mode": …, "on_failure": …, "jobs": [{…}, …]}; - is stdin.')
        listing = self.add_verb(every, "list", "Groups, newest first.")
        listing.add_argument("--tenant", help="Only of this tenant.")
        listing.add_argument("--status", help=f"Only those that are {', '.join(GroupStatus.values)}.")
        base.add_limit(listing)
        showing = self._add(every, "show", "A group, place by place.")
        for each in (listing, showing):
            base.add_json(each)
        base.add_reason(self._add(every, "cancel", "End what waits, ask what runs to stop."))
        base.add_reason(self._add(every, "retry", "Run again, in order, what did not end well."))

    def _add(self, every: Any, name: str, summary: str) -> CommandParser:
        verb = self.add_verb(every, name, summary)
        verb.add_argument("id", metavar="GROUP")
        return verb

    def handle(self, *args: Any, **given: Any) -> None:
        if given["verb"] in ("cancel", "retry"):
            change = groups.cancel if given["verb"] == "cancel" else groups.retry
            group = change(given["id"], reason=given["reason"], actor=base.actor())
            self.write_table(HEADINGS, [_row(group, groups.progress([group.pk])[group.pk])])
        else:
            getattr(self, f"_{given['verb']}")(given)

    def _create(self, given: dict[str, Any]) -> None:
        try:
            content = sys.stdin.buffer.read() if given["file"] == "-" else Path(given["file"]).read_bytes()
        except OSError as error:
            raise InvalidInput("FILE", _("cannot be read: %s") % (error.strerror or error)) from None
        fields = validation.decode_json(content, "FILE")
        if not isinstance(fields, dict):
            raise InvalidInput("FILE", _("must be an object"), "dict_type")
        for name in set(fields) - FIELDS:
            raise InvalidInput(str(name)[:100], _("is not a field of a group"), "extra_forbidden")
        members = fields.pop("jobs", None)
        options = {name: value for name, value in fields.items() if value is not None}
        made = groups.create(members if members is not None else [], actor=base.actor(), **options)
        self.stdout.write(str(made.pk))

    def _list(self, given: dict[str, Any]) -> None:
        found = groups.of(validation.parse_tenant(given["tenant"], "--tenant") if given["tenant"] is not None else None)
        if given["status"] is not None:
            if given["status"] not in GroupStatus.values:
                raise InvalidInput("--status", _("must be one of %s") % ", ".join(GroupStatus.values), "enum")
            found = found.filter(status=given["status"])
        rows = list(found[: base.limit(given)])
        counted = groups.progress([row.pk for row in rows])
        if given["json"]:
            self.write_json([serializers.group(row, counted[row.pk]) for row in rows])
        else:
            self.write_table(HEADINGS, [_row(row, counted[row.pk]) for row in rows])

    def _show(self, given: dict[str, Any]) -> None:
        group = groups.get(given["id"])
        tails = list(groups.tails(group.pk).select_related("run", "retried_by"))
        progress = groups.progress([group.pk])[group.pk]
        if given["json"]:
            self.write_json({**serializers.group(group, progress), "jobs": [serializers.job(each) for each in tails]})
            return
        self.write_table(HEADINGS, [_row(group, progress)])
        self.stdout.write("")
        rows = [
            (each.group_index, each.pk, each.job_type, each.status, each.attempt, each.status_reason) for each in tails
        ]
        self.write_table(PLACES, rows)


def _row(group: JobGroup, progress: dict[str, Any]) -> tuple[object, ...]:
    states = ", ".join(f"{count} {status}" for status, count in sorted(progress["by_status"].items()))
    told = f"{progress['total']}: {states}" if states else "0"
    return (group.pk, group.name, group.tenant, group.mode, group.status, told, serializers.moment(group.created_at))
