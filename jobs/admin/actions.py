"""The verbs of persons on jobs, as actions on a selection and as buttons on a job's page.

One service call per job and an honest word on each of them; what is grave is shown first, with what it would do.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar
from uuid import UUID

from django.contrib import messages
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import URLPattern
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, ngettext_lazy, pgettext_lazy

from jobs import actors
from jobs.admin import screens
from jobs.admin.base import CAP, CappedInt, StateAdmin, VerbAdmin, capped_count, log_history
from jobs.admin.formatting import change_url, link, list_url
from jobs.admin.forms import DryRunForm
from jobs.conf import conf
from jobs.engine.facts import COLUMNS, facts_of_many
from jobs.errors import InvalidInput, JobSchedulerError
from jobs.models import Job
from jobs.refusal_text import short_error, short_reason
from jobs.services import jobs as job_services
from jobs.states import DryRun, Status
from jobs.validation import fields

FEW = 5
BATCH_SIZE = 500
SAMPLE = 10
SHOWN = ("job_type", "target", "created_at")
GRAVE = ("cancel", "resolve", "retry")  # what cannot be taken back; a retry of one job is one more job, and no matter


@dataclass(frozen=True)
class Verb:
    name: str
    button: Promise
    action: Promise
    will: Any
    done: Any
    call: Callable[..., Job]
    many: ClassVar[bool] = True

    @property
    def permission(self) -> str:
        return f"{screens.APP}.{'reorder' if self.name == PRIORITY.name else self.name}_job"


VERBS: dict[str, Verb] = {
    verb.name: verb
    for verb in (
        Verb(
            "release",
            pgettext_lazy("verb", "Release"),
            gettext_lazy("Release selected held jobs"),
            ngettext_lazy("%(count)d will be released", "%(count)d will be released", "count"),
            ngettext_lazy("%(count)d job released", "%(count)d jobs released", "count"),
            job_services.release,
        ),
        Verb(
            "pause",
            pgettext_lazy("verb", "Pause"),
            gettext_lazy("Pause selected jobs"),
            ngettext_lazy("%(count)d will be paused", "%(count)d will be paused", "count"),
            ngettext_lazy("%(count)d job paused", "%(count)d jobs paused", "count"),
            job_services.pause,
        ),
        Verb(
            "resume",
            pgettext_lazy("verb", "Resume"),
            gettext_lazy("Resume selected jobs"),
            ngettext_lazy("%(count)d will be resumed", "%(count)d will be resumed", "count"),
            ngettext_lazy("%(count)d job resumed", "%(count)d jobs resumed", "count"),
            job_services.resume,
        ),
        Verb(
            "retry",
            pgettext_lazy("verb", "Retry"),
            gettext_lazy("Retry selected jobs"),
            ngettext_lazy("%(count)d will be retried", "%(count)d will be retried", "count"),
            ngettext_lazy("%(count)d job retried", "%(count)d jobs retried", "count"),
            job_services.retry,
        ),
        Verb(
            "resolve",
            pgettext_lazy("verb", "Resolve"),
            gettext_lazy("Resolve selected failed jobs"),
            ngettext_lazy("%(count)d will be resolved", "%(count)d will be resolved", "count"),
            ngettext_lazy("%(count)d job resolved", "%(count)d jobs resolved", "count"),
            job_services.resolve,
        ),
        Verb(
            "cancel",
            pgettext_lazy("verb", "Cancel"),
            gettext_lazy("Cancel selected jobs"),
            ngettext_lazy("%(count)d will be cancelled", "%(count)d will be cancelled", "count"),
            ngettext_lazy("%(count)d job cancelled", "%(count)d jobs cancelled", "count"),
            job_services.cancel,
        ),
    )
}
PRIORITY = Verb(
    "change_priority",
    gettext_lazy("Change priority"),
    gettext_lazy("Change priority of selected jobs"),
    ngettext_lazy("%(count)d will be changed", "%(count)d will be changed", "count"),
    ngettext_lazy("%(count)d job changed", "%(count)d jobs changed", "count"),
    job_services.update,  # with the number that is asked for
)


@dataclass
class Tally:
    """What became of the jobs that a verb was tried on."""

    verb: Verb
    done: list[UUID] = field(default_factory=list)
    asked: list[UUID] = field(default_factory=list)
    skipped: dict[str, list[UUID]] = field(default_factory=dict)
    left: int = 0
    made: list[Job] = field(default_factory=list)

    def count(self, job_id: UUID, job: Job) -> None:
        """`job` is what the service answered: the same job, or the one that now follows it."""
        waits = self.verb.name in ("cancel", "pause") and job.status == Status.RUNNING
        (self.asked if waits else self.done).append(job_id)
        if job.pk != job_id:
            self.made.append(job)

    def __str__(self) -> str:
        parts = [str(self.verb.done % {"count": len(self.done)})] if self.done or not self.asked else []
        if asked := len(self.asked):
            if self.verb.name == "pause":
                sentence = ngettext("%(count)d asked to pause", "%(count)d asked to pause", asked)
            else:
                sentence = ngettext("%(count)d asked to stop", "%(count)d asked to stop", asked)
            parts.append(sentence % {"count": asked})
        silent = sum(map(len, self.skipped.values()))
        for why, job_ids in list(self.skipped.items())[:FEW]:
            count = len(job_ids)
            sentence = ngettext("%(count)d skipped: %(why)s", "%(count)d skipped: %(why)s", count)
            names = f" ({', '.join(map(str, job_ids))})" if count <= FEW else ""
            parts.append(sentence % {"count": count, "why": why} + names)
            silent -= count
        if silent:
            parts.append(ngettext("%d more skipped", "%d more skipped", silent) % silent)
        if self.left:
            parts.append(_("%s not looked at: narrow the list to reach them") % self.left)
        return ", ".join(parts) + "."


@dataclass
class Forecast:
    """Of how many jobs the verb will take, and why it will leave the others."""

    verb: Verb
    jobs: int = 0
    taken: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    sample: list[Job] = field(default_factory=list)
    left: int = 0

    def __str__(self) -> str:
        count = ngettext("%d job", "%d jobs", self.jobs) % self.jobs
        parts = [str(self.verb.will % {"count": self.taken})]
        parts += [
            _("%(count)d skipped because %(why)s") % {"count": n, "why": why} for why, n in self.skipped.most_common()
        ]
        return f"{count}: {', '.join(parts)}."


def forecast(verb: Verb, job_ids: Sequence[UUID]) -> Forecast:
    found, dry_run = Forecast(verb), DryRun("update", ["priority"]) if verb is PRIORITY else DryRun(verb.name)
    for start in range(0, len(job_ids), BATCH_SIZE):
        batch = Job.objects.filter(pk__in=job_ids[start : start + BATCH_SIZE])
        jobs = list(batch.only("pk", *SHOWN, *COLUMNS).order_by("pk"))
        facts = facts_of_many(jobs)
        for job in jobs:
            found.jobs += 1
            if len(found.sample) < SAMPLE:
                found.sample.append(job)
            refused = dry_run.refusal(facts[job.pk])
            if refused is None:
                found.taken += 1
            else:
                found.skipped[short_reason(refused)] += 1
    return found


class JobVerbs(VerbAdmin, StateAdmin):
    """Each verb takes its own permission, and goes through the services with the user as its actor."""

    buttons = (*VERBS.values(), PRIORITY)
    action_form = DryRunForm
    has_screens = True

    def verbs(self) -> dict[str, Verb]:
        """On a job's page: its priority is changed in its form."""
        return VERBS

    def act(self, request: HttpRequest, verb: Verb, queryset: QuerySet[Job]) -> HttpResponse | None:
        """Do it, or first show what it would do."""
        jobs, left = select_jobs(request, queryset)
        if not is_confirmed(request, verb, len(jobs)):
            return self.confirmation(request, verb, jobs, left)
        if verb is PRIORITY:
            try:
                verb = with_priority(request, verb)
            except InvalidInput as error:
                return self.confirmation(request, verb, jobs, left, error.errors[0]["msg"])
        self.perform(request, verb, jobs, left)
        return None

    def confirmation(
        self, request: HttpRequest, verb: Verb, jobs: list[Job], left: int, error: str = ""
    ) -> HttpResponse:
        """A page with the dry run's sentence, a sample, and the form that does it."""
        foreseen = forecast(verb, [job.pk for job in jobs])
        foreseen.left = left
        across = selects_all(request)
        # What the list's own form said: who chose all that match names one of them, as the list does.
        keys = [(ACTION_CHECKBOX_NAME, job.pk) for job in (jobs[:1] if across else jobs)]
        context = {
            "forecast": foreseen,
            "across": across,
            "limit": conf.CONSOLE_BULK_LIMIT,
            "sample": [(link(self.admin_site, Job, job.pk), job) for job in foreseen.sample],
            "hidden": [("action", verb.name), ("index", "0"), ("select_across", "1" if across else "0"), *keys],
            "action_url": request.get_full_path(),
            "list_url": list_url(self.admin_site, Job),
            "reason": request.POST.get("reason", "")[: job_services.REASON_LENGTH],
            "needs_priority": verb is PRIORITY,
            "priority": request.POST.get("priority", "50")[:4],
            "error": error,
        }
        return screens.render(self, request, "jobs/console/confirm.html", context, title=verb.action)

    def perform(self, request: HttpRequest, verb: Verb, jobs: list[Job], left: int = 0) -> None:
        """Each job in its own transaction, so that one that cannot does not undo the others."""
        tally, reason = Tally(verb, left=left), request.POST.get("reason", "").strip()
        for start in range(0, len(jobs), BATCH_SIZE):
            changed = []
            for job in jobs[start : start + BATCH_SIZE]:
                try:
                    tally.count(job.pk, verb.call(job.pk, actor=actors.user(request.user), reason=reason))
                    changed.append(job)
                except JobSchedulerError as error:
                    tally.skipped.setdefault(short_error(error), []).append(job.pk)
            log_history(request, changed, f"{verb.name}: {reason}" if reason else verb.name)
        message = str(tally)
        if len(tally.made) == 1:
            follower = link(self.admin_site, Job, tally.made[0].pk)
            message = format_html("{} {} {}", message, _("It is followed by"), follower)
        is_clean = not tally.skipped and not tally.left
        self.message_user(request, message, messages.SUCCESS if is_clean else messages.WARNING)

    def perform_one(self, request: HttpRequest, verb: Verb, row: Job) -> HttpResponse:
        self.perform(request, verb, [row])
        return HttpResponseRedirect(change_url(self.admin_site, Job, row.pk))

    def get_urls(self) -> list[URLPattern]:
        return [*screens.urls(self), *super().get_urls()]


def select_jobs(request: HttpRequest, queryset: QuerySet[Job]) -> tuple[list[Job], int]:
    """The first jobs, oldest first and fixed before anything is done to them, and how many were left.

    What was ticked also has its place in the report where it has left the list since.
    """
    limit = conf.CONSOLE_BULK_LIMIT
    if not selects_all(request):
        queryset = Job.objects.using(queryset.db).filter(pk__in=request.POST.getlist(ACTION_CHECKBOX_NAME))
    keys = queryset.order_by("pk").values_list("pk", "job_type")[:limit]
    jobs = [Job(id=pk, job_type=job_type) for pk, job_type in keys]
    if len(jobs) < limit:
        return jobs, 0
    found = capped_count(queryset, limit + CAP)
    return jobs, CappedInt(CAP) if isinstance(found, CappedInt) else found - limit


def is_confirmed(request: HttpRequest, verb: Verb, count: int) -> bool:
    """One job, and what can be taken back on the rows that a person sees, need no second look."""
    if request.POST.get("confirmed"):
        return True
    if request.POST.get("dry_run") or verb is PRIORITY:
        return False
    return count <= 1 or (verb.name not in GRAVE and not selects_all(request))


def selects_all(request: HttpRequest) -> bool:
    """Whether all of the list are meant, in whatever spelling Django takes for a yes."""
    return request.POST.get("select_across", "").strip().lower() not in ("", "0", "false")


def with_priority(request: HttpRequest, verb: Verb) -> Verb:
    """The verb with the number that was asked for, or InvalidInput."""
    text = request.POST.get("priority", "")
    if not (text.isascii() and text.isdigit() and len(text) < 5):
        raise InvalidInput("priority", _("must be a whole number from 0 to 100"))
    priority = fields.parse_integer(int(text), "priority", 0, 100)
    return replace(verb, call=lambda job_id, **by: job_services.update(job_id, {"priority": priority}, **by))
