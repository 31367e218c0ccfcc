"""`manage.py jobs`: look at jobs and operate them from a terminal, one by one or many by filter."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError, CommandParser
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs import clock, serializers
from jobs.engine.transitions import get
from jobs.errors import InvalidInput, NotFound
from jobs.explain import explain
from jobs.management import base, output
from jobs.management.bulk_actions import LOOK_BACK, VERBS, Selection, add_filters, by_filter, by_ids
from jobs.services import jobs as job_services
from jobs.states import Status
from jobs.stats import live_counts, queries
from jobs.validation import fields

SHOWN = 50
SUMMARIES = {
    "cancel": "End waiting jobs at once; ask running ones to stop.",
    "pause": "Stop jobs in a way that can be resumed.",
    "resume": "Continue paused jobs; follow a failed one with a new job at the head of its target.",
    "retry": "Follow ended jobs with a new one each. By filter without --status: those that FAILED.",
    "resolve": "Accept failures: they no longer block their target.",
    "release": "Let held jobs go.",
}


class Command(base.CliCommand):
    help = "Lists, shows and operates jobs. Exit codes: 0 done, 1 refused or not found, 2 bad input."

    def add_arguments(self, parser: CommandParser) -> None:
        every = self.add_verbs(parser)
        listing = self.add_verb(every, "list", "The newest jobs.")
        add_filters(listing, limit=SHOWN)
        showing = self.add_verb(every, "show", "All there is to know about a job.")
        showing.add_argument("ids", nargs="+", metavar="ID")
        explaining = self.add_verb(every, "explain", "Why a job is not running, and when it may start.")
        explaining.add_argument("id", metavar="ID")
        for name, summary in SUMMARIES.items():
            operating = self.add_verb(every, name, summary)
            operating.add_argument("ids", nargs="*", metavar="ID", help="These jobs; or say filters.")
            add_filters(operating, limit=None)
            operating.add_argument("--dry-run", action="store_true", help="Only say what would be done.")
            base.add_reason(operating)
            base.add_json(operating)
        moving = self.add_verb(every, "move", "Put a waiting job elsewhere among those of its tenant and priority.")
        moving.add_argument("id", metavar="ID")
        where = moving.add_mutually_exclusive_group(required=True)
        where.add_argument("--before", metavar="ID")
        where.add_argument("--after", metavar="ID")
        where.add_argument("--top", action="store_const", const="top", dest="to")
        where.add_argument("--bottom", action="store_const", const="bottom", dest="to")
        base.add_reason(moving)
        counting = self.add_verb(every, "stats", "How many jobs are in which state; of ended ones, ever.")
        for each in (listing, showing, explaining, moving, counting):
            base.add_json(each)

    def handle(self, *args: Any, **given: Any) -> None:
        verb = given["verb"]
        if verb in VERBS:
            self._operate(verb, given)
        else:
            getattr(self, f"_{verb}")(given)

    def _list(self, given: dict[str, Any]) -> None:
        found, cut = Selection.of(given).newest()
        if given["json"]:
            self.write_json([serializers.job(job) for job in found])
        else:
            now = clock.now()
            self.write_table(output.HEADINGS, [output.row(job, now) for job in found])
        if cut:
            self.stderr.write(_("Only the newest %d jobs were looked at; --since looks as far as it says.") % LOOK_BACK)

    def _show(self, given: dict[str, Any]) -> None:
        found, missing = [], []
        for each in given["ids"]:
            try:
                found.append(get(fields.parse_id(each)))
            except NotFound:
                missing.append(each)
        if given["json"]:
            documents = [output.document(job) for job in found]
            self.write_json(documents[0] if len(given["ids"]) == 1 and documents else documents)
        else:
            self.stdout.write("\n\n".join("\n".join(output.page(job)) for job in found), ending="\n" * bool(found))
        if missing:
            raise NotFound(_("There is no job %s.") % ", ".join(missing))

    def _explain(self, given: dict[str, Any]) -> None:
        found = explain(get(fields.parse_id(given["id"])).pk)
        if given["json"]:
            self.write_json(found.document())
        else:
            self.stdout.write("\n".join(output.explanation(found)))

    def _operate(self, verb: str, given: dict[str, Any]) -> None:
        selection, listed = Selection.of(given), given["ids"]
        if bool(listed) != selection.is_empty:
            raise InvalidInput([], _("say which jobs: either their ids or at least one filter"))
        how: Any = {"dry_run": given["dry_run"], "reason": given["reason"], "actor": base.actor()}
        tally = by_ids(verb, listed, **how) if listed else by_filter(verb, selection, **how)
        if given["json"]:
            self.write_json(tally.document())
        else:
            self.stdout.write("\n".join(tally.lines()))
        if tally.skipped and (listed or not (tally.changed or tally.asked)):
            count = sum(map(len, tally.skipped.values()))
            message = ngettext("%d job could not be changed.", "%d jobs could not be changed.", count) % count
            raise CommandError(message, returncode=base.REFUSED)

    def _move(self, given: dict[str, Any]) -> None:
        where = {name: given[name] for name in ("before", "after", "to")}
        job = job_services.move(given["id"], **where, reason=given["reason"], actor=base.actor())
        if given["json"]:
            self.write_json(serializers.job(job))
        else:
            self.stdout.write(_("Job %s was moved.") % job.pk)

    def _stats(self, given: dict[str, Any]) -> None:
        counts, oldest = live_counts.count_jobs().by_status(), queries.get_oldest_waiting_job()
        waited = None if oldest is None else max((clock.now() - oldest.created_at).total_seconds(), 0.0)
        if given["json"]:
            self.write_json({"jobs": counts, "oldest_queued_age_sec": waited})
            return
        self.write_table(("STATUS", "JOBS"), [(status, counts[status]) for status in Status])
        if oldest is not None:
            told = {"age": base.age(waited), "job": f"{oldest.job_type} {oldest.pk}"}
            self.stdout.write(_("Oldest waiting: %(age)s (%(job)s)") % told)
