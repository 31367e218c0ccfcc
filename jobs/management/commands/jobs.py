"""`manage.py jobs`: show and operate jobs, by id or by filter."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs import clock, serializers
from jobs.errors import InvalidInput, NotFound
from jobs.explain import explain
from jobs.management import base, output
from jobs.management.bulk_actions import ACTIONS, SCAN_LIMIT, Selection, add_filters, apply_to_ids, apply_to_selection
from jobs.services import jobs as job_services
from jobs.states import Status
from jobs.stats import live_counts, queries

LIST_LIMIT = 50
SUMMARIES = {
    "cancel": "Cancel waiting jobs; send running ones a stop request.",
    "pause": "Pause jobs; they can be resumed.",
    "resume": "Continue paused jobs; retry a failed one before the other jobs of its target.",
    "retry": "Submit a new job for each finished one. By filter without --status: for FAILED ones.",
    "resolve": "Mark failures as resolved: they no longer block their target.",
    "release": "Release held jobs.",
}


class Command(base.CliCommand):
    help = "List, show and operate jobs. Exit codes: 0 done, 1 refused or not found, 2 bad input."

    def add_arguments(self, parser: CommandParser) -> None:
        subcommands = self.add_subcommands(parser)
        list_jobs = self.add_subcommand(subcommands, "list", "List the newest jobs.")
        add_filters(list_jobs, limit=LIST_LIMIT)
        show = self.add_subcommand(subcommands, "show", "Show all details of a job.")
        show.add_argument("ids", nargs="+", metavar="ID")
        summary = "Explain why a job is not running, and when it may start."
        explain_job = self.add_subcommand(subcommands, "explain", summary)
        explain_job.add_argument("id", metavar="ID")
        for name, summary in SUMMARIES.items():
            action = self.add_subcommand(subcommands, name, summary)
            action.add_argument("ids", nargs="*", metavar="ID", help="The jobs; or use filters.")
            add_filters(action, limit=None)
            action.add_argument("--dry-run", action="store_true", help="Only print what would be done.")
            base.add_reason_option(action)
            base.add_json_option(action)
        summary = "Move a waiting job among the others of its tenant and priority."
        move = self.add_subcommand(subcommands, "move", summary)
        move.add_argument("id", metavar="ID")
        position = move.add_mutually_exclusive_group(required=True)
        position.add_argument("--before", metavar="ID")
        position.add_argument("--after", metavar="ID")
        position.add_argument("--top", action="store_const", const="top", dest="to")
        position.add_argument("--bottom", action="store_const", const="bottom", dest="to")
        base.add_reason_option(move)
        stats = self.add_subcommand(subcommands, "stats", "Count jobs by state; finished ones are totals of all time.")
        for subcommand in (list_jobs, show, explain_job, move, stats):
            base.add_json_option(subcommand)

    def handle(self, *args: Any, **options: Any) -> None:
        subcommand = options["subcommand"]
        if subcommand in ACTIONS:
            self._apply_action(subcommand, options)
        else:
            getattr(self, f"_{subcommand}")(options)

    def _list(self, options: dict[str, Any]) -> None:
        jobs, is_truncated = Selection.from_options(options).list_newest()
        if options["json"]:
            self.write_json([serializers.serialize_job(job) for job in jobs])
        else:
            now = clock.now()
            self.write_table(output.HEADINGS, [output.build_row(job, now) for job in jobs])
        if is_truncated:
            self.stderr.write(_("Only the newest %d jobs were searched; --since searches further back.") % SCAN_LIMIT)

    def _show(self, options: dict[str, Any]) -> None:
        jobs, missing = [], []
        for job_id in options["ids"]:
            try:
                jobs.append(job_services.get(job_id))
            except NotFound:
                missing.append(job_id)
        if options["json"]:
            documents = [output.build_document(job) for job in jobs]
            self.write_json(documents[0] if len(options["ids"]) == 1 and documents else documents)
        else:
            self.stdout.write("\n\n".join("\n".join(output.format_job(job)) for job in jobs), ending="\n" * bool(jobs))
        if missing:
            raise NotFound(_("There is no job %s.") % ", ".join(missing))

    def _explain(self, options: dict[str, Any]) -> None:
        explanation = explain(job_services.get(options["id"]).pk)
        if options["json"]:
            self.write_json(explanation.document())
        else:
            self.stdout.write("\n".join(output.format_explanation(explanation)))

    def _apply_action(self, action: str, options: dict[str, Any]) -> None:
        selection, job_ids = Selection.from_options(options), options["ids"]
        if bool(job_ids) != selection.is_empty:
            raise InvalidInput([], _("enter either job ids or at least one filter"))
        arguments: Any = {"dry_run": options["dry_run"], "reason": options["reason"], "actor": base.current_actor()}
        if job_ids:
            result = apply_to_ids(action, job_ids, **arguments)
        else:
            result = apply_to_selection(action, selection, **arguments)
        if options["json"]:
            self.write_json(result.document())
        else:
            self.stdout.write("\n".join(result.format_lines()))
        if result.skipped and (job_ids or not (result.changed or result.stop_requested)):
            count = sum(map(len, result.skipped.values()))
            message = ngettext("%d job could not be changed.", "%d jobs could not be changed.", count) % count
            raise CommandError(message, returncode=base.REFUSED)

    def _move(self, options: dict[str, Any]) -> None:
        position = {name: options[name] for name in ("before", "after", "to")}
        job = job_services.move(options["id"], **position, reason=options["reason"], actor=base.current_actor())
        if options["json"]:
            self.write_json(serializers.serialize_job(job))
        else:
            self.stdout.write(_("Job %s was moved.") % job.pk)

    def _stats(self, options: dict[str, Any]) -> None:
        counts, oldest = live_counts.count_jobs().by_status(), queries.get_oldest_waiting_job()
        age_sec = None if oldest is None else max((clock.now() - oldest.created_at).total_seconds(), 0.0)
        if options["json"]:
            self.write_json({"jobs": counts, "oldest_queued_age_sec": age_sec})
            return
        self.write_table(("STATUS", "JOBS"), [(status, counts[status]) for status in Status])
        if oldest is not None:
            values = {"age": base.format_age(age_sec), "job": f"{oldest.job_type} {oldest.pk}"}
            self.stdout.write(_("Oldest waiting: %(age)s (%(job)s)") % values)
