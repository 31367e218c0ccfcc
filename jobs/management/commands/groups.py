"""`manage.py groups`: submit and operate groups of jobs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from django.core.management.base import CommandParser
from django.utils.translation import gettext as _

from jobs import serializers
from jobs.errors import InvalidInput
from jobs.management import base
from jobs.models import GroupStatus, Job, JobGroup
from jobs.services import groups
from jobs.time_text import format_time
from jobs.validation import fields as validation

HEADINGS = ("ID", "NAME", "TENANT", "MODE", "STATUS", "PLACES", "CREATED")
MEMBER_HEADINGS = ("PLACE", "JOB", "TYPE", "STATUS", "ATTEMPT", "REASON")
FIELDS = {"name", "mode", "on_failure", "jobs", "then", "tenant"}


class Command(base.CliCommand):
    help = "Submit, list, show, cancel and retry groups of jobs."

    def add_arguments(self, parser: CommandParser) -> None:
        subcommands = self.add_subcommands(parser)
        create = self.add_subcommand(subcommands, "create", "Submit the group in a JSON file and print its id.")
        example = '{"mode": …, "on_failure": …, "jobs": [{…}, …], "then": {…}}; - is stdin.'
        create.add_argument("file", metavar="FILE", help=example)
        list_groups = self.add_subcommand(subcommands, "list", "List groups, newest first.")
        list_groups.add_argument("--tenant", help="Only groups of this tenant.")
        list_groups.add_argument("--status", help=f"Only groups in this state: {', '.join(GroupStatus.values)}.")
        base.add_limit_option(list_groups)
        show = self._add_for_group(subcommands, "show", "Show a group and its jobs.")
        for subcommand in (list_groups, show):
            base.add_json_option(subcommand)
        cancel = "Cancel waiting jobs, and send running ones a stop request."
        base.add_reason_option(self._add_for_group(subcommands, "cancel", cancel))
        base.add_reason_option(self._add_for_group(subcommands, "retry", "Retry the jobs that failed, in order."))

    def _add_for_group(self, subcommands: Any, name: str, summary: str) -> CommandParser:
        subcommand = self.add_subcommand(subcommands, name, summary)
        subcommand.add_argument("id", metavar="GROUP")
        return subcommand

    def handle(self, *args: Any, **options: Any) -> None:
        if options["subcommand"] in ("cancel", "retry"):
            change = groups.cancel if options["subcommand"] == "cancel" else groups.retry
            group = change(options["id"], reason=options["reason"], actor=base.current_actor())
            self.write_table(HEADINGS, [_build_row(group, groups.count_progress([group.pk])[group.pk])])
        else:
            getattr(self, f"_{options['subcommand']}")(options)

    def _create(self, options: dict[str, Any]) -> None:
        try:
            content = sys.stdin.buffer.read() if options["file"] == "-" else Path(options["file"]).read_bytes()
        except OSError as error:
            raise InvalidInput("FILE", _("cannot be read: %s") % (error.strerror or error)) from None
        fields = validation.decode_json(content, "FILE")
        if not isinstance(fields, dict):
            raise InvalidInput("FILE", _("must be an object"), "dict_type")
        for name in set(fields) - FIELDS:
            raise InvalidInput(str(name)[:100], _("is not a field of a group"), "extra_forbidden")
        members = fields.pop("jobs", None)
        fields = {name: value for name, value in fields.items() if value is not None}
        group = groups.create(members if members is not None else [], actor=base.current_actor(), **fields)
        self.stdout.write(str(group.pk))

    def _list(self, options: dict[str, Any]) -> None:
        tenant = None if options["tenant"] is None else validation.parse_tenant(options["tenant"], "--tenant")
        selected = groups.filter_by_tenant(tenant)
        if options["status"] is not None:
            status = validation.parse_choice(options["status"], "--status", GroupStatus.values)
            selected = selected.filter(status=status)
        rows = list(selected[: base.parse_limit(options)])
        progress = groups.count_progress([row.pk for row in rows])
        if options["json"]:
            self.write_json([serializers.serialize_group(row, progress[row.pk]) for row in rows])
        else:
            self.write_table(HEADINGS, [_build_row(row, progress[row.pk]) for row in rows])

    def _show(self, options: dict[str, Any]) -> None:
        group = groups.get(options["id"])
        jobs = list(groups.get_latest_attempts(group.pk).select_related("run", "retried_by"))
        progress = groups.count_progress([group.pk])[group.pk]
        if options["json"]:
            members = [serializers.serialize_job(job) for job in jobs]
            self.write_json({**serializers.serialize_group(group, progress), "jobs": members})
            return
        self.write_table(HEADINGS, [_build_row(group, progress)])
        self.stdout.write("")
        self.write_table(MEMBER_HEADINGS, [_build_member_row(group, job) for job in jobs])


def _build_member_row(group: JobGroup, job: Job) -> tuple[object, ...]:
    place = f"{job.group_index} (then)" if job.group_index == group.then_index else job.group_index
    return (place, job.pk, job.job_type, job.status, job.attempt, job.status_reason)


def _build_row(group: JobGroup, progress: dict[str, Any]) -> tuple[object, ...]:
    states = ", ".join(f"{count} {status}" for status, count in sorted(progress["by_status"].items()))
    members = f"{progress['total']}: {states}" if states else "0"
    created = format_time(group.created_at)
    return (group.pk, group.name, group.tenant, group.mode, group.status, members, created)
