"""The operator actions on jobs, on one of them or on a selection: dry run, confirmation, run and report.

Each job is changed by one service call in its own transaction.
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
from jobs.admin.base import COUNT_LIMIT, ActionAdmin, CappedInt, ReadOnlyAdmin, count_capped, log_history
from jobs.admin.columns import change_url, link, list_url
from jobs.admin.forms import DryRunForm
from jobs.conf import conf
from jobs.errors import InvalidInput, JobSchedulerError
from jobs.models import Job
from jobs.refusal_text import describe_error, describe_refusal
from jobs.services import jobs as job_services
from jobs.states import DryRun, Status
from jobs.validation import fields

DETAILS_SHOWN = 5  # reasons for skipped jobs, and job ids for each
BATCH_SIZE = 500
SAMPLE_SIZE = 10
SAMPLE_FIELDS = ("job_type", "target", "created_at")
IRREVERSIBLE = ("cancel", "resolve", "retry")  # confirmed for more than one job: a single retry does no harm


@dataclass(frozen=True)
class JobAction:
    """An action on jobs, and how the admin offers it. `call(job_id, actor=…, reason=…)` is a service."""

    name: str
    label: Promise  # of the button
    list_label: Promise
    will_text: Any  # of the dry run: a sentence with %(count)d
    done_text: Any  # of the report: likewise
    call: Callable[..., Job]
    in_list: ClassVar[bool] = True

    @property
    def permission(self) -> str:
        return f"{screens.APP}.{'reorder' if self.name == CHANGE_PRIORITY.name else self.name}_job"


JOB_ACTIONS: dict[str, JobAction] = {
    action.name: action
    for action in (
        JobAction(
            "release",
            pgettext_lazy("verb", "Release"),
            gettext_lazy("Release selected held jobs"),
            ngettext_lazy("%(count)d will be released", "%(count)d will be released", "count"),
            ngettext_lazy("%(count)d job released", "%(count)d jobs released", "count"),
            job_services.release,
        ),
        JobAction(
            "pause",
            pgettext_lazy("verb", "Pause"),
            gettext_lazy("Pause selected jobs"),
            ngettext_lazy("%(count)d will be paused", "%(count)d will be paused", "count"),
            ngettext_lazy("%(count)d job paused", "%(count)d jobs paused", "count"),
            job_services.pause,
        ),
        JobAction(
            "resume",
            pgettext_lazy("verb", "Resume"),
            gettext_lazy("Resume selected jobs"),
            ngettext_lazy("%(count)d will be resumed", "%(count)d will be resumed", "count"),
            ngettext_lazy("%(count)d job resumed", "%(count)d jobs resumed", "count"),
            job_services.resume,
        ),
        JobAction(
            "retry",
            pgettext_lazy("verb", "Retry"),
            gettext_lazy("Retry selected jobs"),
            ngettext_lazy("%(count)d will be retried", "%(count)d will be retried", "count"),
            ngettext_lazy("%(count)d job retried", "%(count)d jobs retried", "count"),
            job_services.retry,
        ),
        JobAction(
            "resolve",
            pgettext_lazy("verb", "Resolve"),
            gettext_lazy("Resolve selected failed jobs"),
            ngettext_lazy("%(count)d will be resolved", "%(count)d will be resolved", "count"),
            ngettext_lazy("%(count)d job resolved", "%(count)d jobs resolved", "count"),
            job_services.resolve,
        ),
        JobAction(
            "cancel",
            pgettext_lazy("verb", "Cancel"),
            gettext_lazy("Cancel selected jobs"),
            ngettext_lazy("%(count)d will be cancelled", "%(count)d will be cancelled", "count"),
            ngettext_lazy("%(count)d job cancelled", "%(count)d jobs cancelled", "count"),
            job_services.cancel,
        ),
    )
}
CHANGE_PRIORITY = JobAction(
    "change_priority",
    gettext_lazy("Change priority"),
    gettext_lazy("Change priority of selected jobs"),
    ngettext_lazy("%(count)d will be changed", "%(count)d will be changed", "count"),
    ngettext_lazy("%(count)d job changed", "%(count)d jobs changed", "count"),
    job_services.update,  # bind_priority adds the number
)


@dataclass
class ActionReport:
    """The jobs that an action changed, asked to stop or skipped; as a string, the report on them."""

    action: JobAction
    done: list[UUID] = field(default_factory=list)
    stop_requested: list[UUID] = field(default_factory=list)
    skipped: dict[str, list[UUID]] = field(default_factory=dict)
    left: int = 0  # selected jobs beyond the limit of one action
    created: list[Job] = field(default_factory=list)

    def add(self, job_id: UUID, job: Job) -> None:
        """Count one job. `job` is what the service returned: the same job, or its retry."""
        is_stopping = self.action.name in ("cancel", "pause") and job.status == Status.RUNNING
        (self.stop_requested if is_stopping else self.done).append(job_id)
        if job.pk != job_id:
            self.created.append(job)

    def __str__(self) -> str:
        parts = [str(self.action.done_text % {"count": len(self.done)})] if self.done or not self.stop_requested else []
        if stop_requested := len(self.stop_requested):
            if self.action.name == "pause":
                sentence = ngettext("%(count)d asked to pause", "%(count)d asked to pause", stop_requested)
            else:
                sentence = ngettext("%(count)d asked to stop", "%(count)d asked to stop", stop_requested)
            parts.append(sentence % {"count": stop_requested})
        unlisted = sum(map(len, self.skipped.values()))
        for why, job_ids in list(self.skipped.items())[:DETAILS_SHOWN]:
            count = len(job_ids)
            sentence = ngettext("%(count)d skipped: %(why)s", "%(count)d skipped: %(why)s", count)
            names = f" ({', '.join(map(str, job_ids))})" if count <= DETAILS_SHOWN else ""
            parts.append(sentence % {"count": count, "why": why} + names)
            unlisted -= count
        if unlisted:
            parts.append(ngettext("%d more skipped", "%d more skipped", unlisted) % unlisted)
        if self.left:
            parts.append(_("%s not looked at: narrow the list to reach them") % self.left)
        return ", ".join(parts) + "."


@dataclass
class DryRunReport:
    """How many jobs the action would change, and why it would skip the others; as a string, the sentence on it."""

    action: JobAction
    jobs: int = 0
    applicable: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    sample: list[Job] = field(default_factory=list)
    left: int = 0  # selected jobs beyond the limit of one action

    def __str__(self) -> str:
        count = ngettext("%d job", "%d jobs", self.jobs) % self.jobs
        parts = [str(self.action.will_text % {"count": self.applicable})]
        parts += [
            _("%(count)d skipped because %(why)s") % {"count": n, "why": why} for why, n in self.skipped.most_common()
        ]
        return f"{count}: {', '.join(parts)}."


def dry_run_action(action: JobAction, job_ids: Sequence[UUID]) -> DryRunReport:
    """Apply the rules of the action to each job, and change nothing."""
    report = DryRunReport(action)
    dry_run = DryRun("update", ["priority"]) if action is CHANGE_PRIORITY else DryRun(action.name)
    for start in range(0, len(job_ids), BATCH_SIZE):
        batch = Job.objects.filter(pk__in=job_ids[start : start + BATCH_SIZE])
        jobs = list(batch.only("pk", *SAMPLE_FIELDS, *job_services.FACT_COLUMNS).order_by("pk"))
        facts = job_services.get_facts_by_id(jobs)
        for job in jobs:
            report.jobs += 1
            if len(report.sample) < SAMPLE_SIZE:
                report.sample.append(job)
            refusal = dry_run.refusal(facts[job.pk])
            if refusal is None:
                report.applicable += 1
            else:
                report.skipped[describe_refusal(refusal)] += 1
    return report


class JobActionAdmin(ActionAdmin, ReadOnlyAdmin):
    """Each action requires its own permission, and goes through the services with the user as its actor."""

    object_actions = (*JOB_ACTIONS.values(), CHANGE_PRIORITY)
    action_form = DryRunForm
    has_screens = True

    def page_actions(self) -> dict[str, JobAction]:
        """Return the actions of a job's page; the priority is changed in the edit form."""
        return JOB_ACTIONS

    def run_on_selection(self, request: HttpRequest, action: JobAction, queryset: QuerySet[Job]) -> HttpResponse | None:
        """Run the action, or first show what it would do."""
        jobs, left = select_jobs(request, queryset)
        if not is_confirmed(request, action, len(jobs)):
            return self.confirmation_page(request, action, jobs, left)
        if action is CHANGE_PRIORITY:
            try:
                action = bind_priority(request, action)
            except InvalidInput as error:
                return self.confirmation_page(request, action, jobs, left, error.errors[0]["msg"])
        self.run_action(request, action, jobs, left)
        return None

    def confirmation_page(
        self, request: HttpRequest, action: JobAction, jobs: list[Job], left: int, error: str = ""
    ) -> HttpResponse:
        """Return a page with the dry run, a sample of the jobs, and the form that runs the action."""
        report = dry_run_action(action, [job.pk for job in jobs])
        report.left = left
        is_all_selected = selects_all(request)
        # Repeats the fields of the list's form; to select all that match, the list sends one key as well.
        list_fields = [("action", action.name), ("index", "0"), ("select_across", "1" if is_all_selected else "0")]
        keys = [(ACTION_CHECKBOX_NAME, job.pk) for job in (jobs[:1] if is_all_selected else jobs)]
        context = {
            "dry_run": report,
            "selects_all": is_all_selected,
            "limit": conf.CONSOLE_BULK_LIMIT,
            "sample": [(link(self.admin_site, Job, job.pk), job) for job in report.sample],
            "hidden": [*list_fields, *keys],
            "action_url": request.get_full_path(),
            "list_url": list_url(self.admin_site, Job),
            "reason": request.POST.get("reason", "")[: job_services.REASON_LENGTH],
            "needs_priority": action is CHANGE_PRIORITY,
            "priority": request.POST.get("priority", "50")[:4],
            "error": error,
        }
        return screens.render(self, request, "jobs/console/confirm.html", context, title=action.list_label)

    def run_action(self, request: HttpRequest, action: JobAction, jobs: list[Job], left: int = 0) -> None:
        """Run the action on each job in its own transaction, so that a refusal does not undo the others."""
        report, reason = ActionReport(action, left=left), request.POST.get("reason", "").strip()
        for start in range(0, len(jobs), BATCH_SIZE):
            changed = []
            for job in jobs[start : start + BATCH_SIZE]:
                try:
                    report.add(job.pk, action.call(job.pk, actor=actors.make_user_actor(request.user), reason=reason))
                    changed.append(job)
                except JobSchedulerError as error:
                    report.skipped.setdefault(describe_error(error), []).append(job.pk)
            log_history(request, changed, f"{action.name}: {reason}" if reason else action.name)
        message = str(report)
        if len(report.created) == 1:
            retry = link(self.admin_site, Job, report.created[0].pk)
            message = format_html("{} {} {}", message, _("It is followed by"), retry)
        is_complete = not report.skipped and not report.left
        self.message_user(request, message, messages.SUCCESS if is_complete else messages.WARNING)

    def run_on_object(self, request: HttpRequest, action: JobAction, row: Job) -> HttpResponse:
        self.run_action(request, action, [row])
        return HttpResponseRedirect(change_url(self.admin_site, Job, row.pk))

    def get_urls(self) -> list[URLPattern]:
        return [*screens.build_urls(self), *super().get_urls()]


def select_jobs(request: HttpRequest, queryset: QuerySet[Job]) -> tuple[list[Job], int]:
    """Return the selected jobs, oldest first and at most CONSOLE_BULK_LIMIT, and how many are left.

    They are read before any of them is changed. A ticked job that has left the list since is included, so that the
    report names it.
    """
    limit, selected = conf.CONSOLE_BULK_LIMIT, queryset
    if not selects_all(request):
        selected = Job.objects.using(queryset.db).filter(pk__in=request.POST.getlist(ACTION_CHECKBOX_NAME))
    rows = selected.order_by("pk").values_list("pk", "job_type")[:limit]
    jobs = [Job(id=pk, job_type=job_type) for pk, job_type in rows]
    if len(jobs) < limit:
        return jobs, 0
    count = count_capped(selected, limit + COUNT_LIMIT)
    return jobs, CappedInt(COUNT_LIMIT) if isinstance(count, CappedInt) else count - limit


def is_confirmed(request: HttpRequest, action: JobAction, count: int) -> bool:
    """Return True for a confirmed request, and for one that needs no confirmation.

    One job needs none, and neither do reversible actions on ticked rows.
    """
    if request.POST.get("confirmed"):
        return True
    if request.POST.get("dry_run") or action is CHANGE_PRIORITY:
        return False
    return count <= 1 or (action.name not in IRREVERSIBLE and not selects_all(request))


def selects_all(request: HttpRequest) -> bool:
    """Return whether all rows of the list are selected, in any spelling that Django accepts as true."""
    return request.POST.get("select_across", "").strip().lower() not in ("", "0", "false")


def bind_priority(request: HttpRequest, action: JobAction) -> JobAction:
    """Return the action with the posted priority. Raise InvalidInput for anything but 0 to 100."""
    text = request.POST.get("priority", "")
    if not (text.isascii() and text.isdigit() and len(text) < 5):
        raise InvalidInput("priority", _("must be a whole number from 0 to 100"))
    priority = fields.parse_integer(int(text), "priority", 0, 100)
    return replace(action, call=lambda job_id, **by: job_services.update(job_id, {"priority": priority}, **by))
