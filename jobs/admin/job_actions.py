"""The operator actions on jobs, on one of them or on a selection: dry run, confirmation, run and report.

Each job is changed by one service call in its own transaction.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.contrib import messages
from django.contrib.admin import AdminSite, ModelAdmin
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect, QueryDict
from django.urls import URLPattern
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.text import Truncator
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext, ngettext_lazy, pgettext_lazy

from jobs import actors
from jobs.admin import screens
from jobs.admin.base import COUNT_LIMIT, ActionAdmin, CappedInt, ReadOnlyAdmin, count_capped, log_history
from jobs.admin.columns import change_url, link, list_url
from jobs.admin.forms import DryRunForm
from jobs.conf import conf
from jobs.errors import InvalidInput, JobSchedulerError
from jobs.explain import Handlers
from jobs.models import Gate, Job
from jobs.models.job import STATUS_LABELS
from jobs.refusal_text import describe_error, describe_refusal
from jobs.services import jobs as job_services
from jobs.states import DryRun, Status
from jobs.time_text import format_duration
from jobs.validation import fields

DETAILS_SHOWN = 5  # reasons for skipped jobs, and job ids for each
BATCH_SIZE = 500
SAMPLE_SIZE = 10
SAMPLE_FIELDS = ("job_type", "target", "created_at")
FLOW_FIELDS = ("tenant", "resource", "addon_id", "remote")  # beside the job type
STARTING_VERBS = ("release", "resume", "retry")  # a job waits for a worker afterwards
IRREVERSIBLE = ("cancel", "resolve", "retry")  # confirmed for more than one job: a single retry does no harm


@dataclass(frozen=True)
class JobAction:
    """An action on jobs, and how the admin offers it. `call(job_id, actor=…, reason=…)` is a service."""

    name: str
    label: Promise  # of the button
    list_label: Promise
    question: Any  # of the confirmation: with %(count)d
    done_text: Any  # of the report: a sentence with %(count)d
    call: Callable[..., Job]
    in_list: bool = True

    @property
    def verb(self) -> str:
        """The action of `jobs.states` that decides whether it can be applied."""
        return {RETRY_FRESH: "retry", CHANGE_PRIORITY.name: "update"}.get(self.name, self.name)

    @property
    def permission(self) -> str:
        return f"{screens.APP}.{'reorder' if self.name == CHANGE_PRIORITY.name else self.verb}_job"


RETRY_FRESH = "retry_fresh"


JOB_ACTIONS: dict[str, JobAction] = {
    action.name: action
    for action in (
        JobAction(
            "release",
            pgettext_lazy("verb", "Release"),
            gettext_lazy("Release selected held jobs"),
            ngettext_lazy("Release %(count)d job?", "Release %(count)d jobs?", "count"),
            ngettext_lazy("%(count)d job released", "%(count)d jobs released", "count"),
            job_services.release,
        ),
        JobAction(
            "pause",
            pgettext_lazy("verb", "Pause"),
            gettext_lazy("Pause selected jobs"),
            ngettext_lazy("Pause %(count)d job?", "Pause %(count)d jobs?", "count"),
            ngettext_lazy("%(count)d job paused", "%(count)d jobs paused", "count"),
            job_services.pause,
        ),
        JobAction(
            "resume",
            pgettext_lazy("verb", "Resume"),
            gettext_lazy("Resume selected jobs"),
            ngettext_lazy("Resume %(count)d job?", "Resume %(count)d jobs?", "count"),
            ngettext_lazy("%(count)d job resumed", "%(count)d jobs resumed", "count"),
            job_services.resume,
        ),
        JobAction(
            "retry",
            pgettext_lazy("verb", "Retry"),
            gettext_lazy("Retry selected jobs"),
            ngettext_lazy("Retry %(count)d job?", "Retry %(count)d jobs?", "count"),
            ngettext_lazy("%(count)d job retried", "%(count)d jobs retried", "count"),
            job_services.retry,
        ),
        JobAction(
            RETRY_FRESH,
            gettext_lazy("Retry from scratch"),
            gettext_lazy("Retry selected jobs from scratch"),
            ngettext_lazy("Retry %(count)d job from scratch?", "Retry %(count)d jobs from scratch?", "count"),
            ngettext_lazy("%(count)d job retried", "%(count)d jobs retried", "count"),
            partial(job_services.retry, fresh=True),
            in_list=False,
        ),
        JobAction(
            "resolve",
            gettext_lazy("Mark as resolved"),
            gettext_lazy("Mark selected failed jobs as resolved"),
            ngettext_lazy("Mark %(count)d job as resolved?", "Mark %(count)d jobs as resolved?", "count"),
            ngettext_lazy("%(count)d job resolved", "%(count)d jobs resolved", "count"),
            job_services.resolve,
        ),
        JobAction(
            "cancel",
            pgettext_lazy("verb", "Cancel"),
            gettext_lazy("Cancel selected jobs"),
            ngettext_lazy("Cancel %(count)d job?", "Cancel %(count)d jobs?", "count"),
            ngettext_lazy("%(count)d job cancelled", "%(count)d jobs cancelled", "count"),
            job_services.cancel,
        ),
    )
}
CHANGE_PRIORITY = JobAction(
    "change_priority",
    gettext_lazy("Change priority"),
    gettext_lazy("Change priority of selected jobs"),
    ngettext_lazy("Change the priority of %(count)d job?", "Change the priority of %(count)d jobs?", "count"),
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
                sentence = ngettext("Pause requested", "Pause of %(count)d jobs requested", stop_requested)
            else:
                sentence = ngettext("Cancel requested", "Cancel of %(count)d jobs requested", stop_requested)
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
            parts.append(_("%s not processed: add a filter to reach them") % self.left)
        return ", ".join(parts) + "."


@dataclass
class DryRunReport:
    """How many jobs the action would change, why it would skip the others, and which of them no worker handles."""

    action: JobAction
    jobs: int = 0
    applicable: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    unhandled: Counter[str] = field(default_factory=Counter)  # by job type
    sample: list[Job] = field(default_factory=list)
    left: int = 0  # selected jobs beyond the limit of one action

    def __str__(self) -> str:
        return str(self.action.question % {"count": self.applicable})

    def describe_skipped(self) -> list[str]:
        return [
            ngettext("%(count)d will be skipped: %(why)s", "%(count)d will be skipped: %(why)s", count)
            % {"count": count, "why": why}
            for why, count in self.skipped.most_common()
        ]

    def describe_unhandled(self) -> list[str]:
        return [describe_unhandled(job_type, count) for job_type, count in self.unhandled.most_common(DETAILS_SHOWN)]


def describe_unhandled(job_type: str, count: int) -> str:
    sentence = ngettext(
        "No running worker handles %(job_type)s: %(count)d job will wait until one does.",
        "No running worker handles %(job_type)s: %(count)d jobs will wait until one does.",
        count,
    )
    return sentence % {"job_type": job_type, "count": count}


def dry_run_action(action: JobAction, job_ids: Sequence[UUID]) -> DryRunReport:
    """Apply the rules of the action to each job, and change nothing."""
    report = DryRunReport(action)
    dry_run = DryRun(action.verb, ["priority"] if action is CHANGE_PRIORITY else ())
    handlers = Handlers() if action.verb in STARTING_VERBS else None
    for start in range(0, len(job_ids), BATCH_SIZE):
        batch = Job.objects.filter(pk__in=job_ids[start : start + BATCH_SIZE])
        jobs = list(batch.only("pk", *SAMPLE_FIELDS, *FLOW_FIELDS, *job_services.FACT_COLUMNS).order_by("pk"))
        facts = job_services.get_facts_by_id(jobs)
        for job in jobs:
            report.jobs += 1
            if len(report.sample) < SAMPLE_SIZE:
                report.sample.append(job)
            refusal = dry_run.refusal(facts[job.pk])
            if refusal is None:
                report.applicable += 1
                if handlers is not None and not handlers.can_handle(job):
                    report.unhandled[job.job_type] += 1
            else:
                report.skipped[describe_refusal(refusal)] += 1
    return report


class JobActionAdmin(ActionAdmin, ReadOnlyAdmin):
    """Each action requires its own permission, and goes through the services with the user as its actor."""

    object_actions = (*JOB_ACTIONS.values(), CHANGE_PRIORITY)
    action_form = DryRunForm
    has_screens = True

    def __init__(self, model: type[Job], admin_site: AdminSite) -> None:
        super().__init__(model, admin_site)
        screens.add_urls(admin_site)

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
            "back": describe_list(self, request.GET),
            "is_harmful": action.verb in ("cancel", "resolve"),
            "reason": request.POST.get("reason", "")[: job_services.REASON_LENGTH],
            "needs_priority": action is CHANGE_PRIORITY,
            "priority": request.POST.get("priority", "50")[:4],
            "error": error,
        }
        return screens.render(self, request, "jobs/console/confirm.html", context, title=str(report))

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
            message = format_html("{} {} {}.", message, _("Retried as"), retry)
        is_complete = not report.skipped and not report.left
        self.message_user(request, message, messages.SUCCESS if is_complete else messages.WARNING)

    def run_on_object(self, request: HttpRequest, action: JobAction, row: Job) -> HttpResponse:
        self.run_action(request, action, [row])
        return HttpResponseRedirect(keep_list_filters(request, change_url(self.admin_site, Job, row.pk)))

    def get_urls(self) -> list[URLPattern]:
        return [*screens.build_job_urls(self), *super().get_urls()]


def describe_list(admin: ModelAdmin, filters: QueryDict) -> tuple[str, str]:
    """Return the address and the name of the job list with these filters."""
    url, name = list_url(admin.admin_site, Job), str(_("Jobs"))
    values = [str(filters[key]) for key in filters if key not in ("p", "o", "e", "all")]
    label = Truncator(
        ", ".join(str(STATUS_LABELS[Status(value)]) if value in set(Status) else value for value in values if value)
    ).chars(60)
    return f"{url}?{filters.urlencode()}" if filters else url, f"{name} ({label})" if label else name


FILTERS = "_changelist_filters"  # the query of the list that a page was opened from, as Django's own pages name it


def get_list_filters(request: HttpRequest) -> QueryDict:
    """Return the filters of the list that the page was opened from."""
    return QueryDict(request.GET.get(FILTERS, "")[:2000])


def keep_list_filters(request: HttpRequest, url: str) -> str:
    """Return the address with the filters of the list that the page was opened from."""
    filters = get_list_filters(request).urlencode()
    return f"{url}?{urlencode({FILTERS: filters})}" if filters else url


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


def describe_consequence(name: str, job: Job, waiting_behind: int = 0) -> str:
    """Return what an action does to this job, for its confirmation."""
    texts = {
        "release": _("The job joins the queue."),
        "retry": _("A new job with the same params continues from the checkpoint."),
        RETRY_FRESH: _("A new job with the same params starts from the beginning; the checkpoint is dropped."),
        "resolve": _("The job stays failed, without a retry, and is no longer listed as unhandled."),
        "cancel": _("The job is cancelled and does not run. It can be retried later."),
        "pause": _("The job leaves the queue until it is resumed."),
        "resume": _("The job returns to the queue and continues from its checkpoint."),
    }
    text = texts[name]
    if name == "retry" and job.checkpoint is None:
        text = _("A new job with the same params starts. There is no checkpoint to continue from.")
    if name == "retry" and job.gate == Gate.TIME and job.retry_of_id is not None:
        text = _("The retry starts now instead of at its time.")
    if name == "resume" and job.status == Status.FAILED:
        text = _("A new job continues from the checkpoint, before the other jobs of this target.")
    if name == "pause" and job.status == Status.RUNNING:
        text = _("Requests a stop at the next checkpoint of the handler; the job can be resumed from there.")
    if name == "cancel" and job.status == Status.RUNNING:
        text = describe_stop()
    if name == "pause" and job.target:
        text += " " + _("Its target stays blocked meanwhile.")
    if name == "resolve" and job.blocks_target:
        unblocked = ngettext("%d job behind it can run.", "%d jobs behind it can run.", waiting_behind)
        text += " " + (unblocked % waiting_behind if waiting_behind else _("Its target is free again."))
    return text


def describe_stop() -> str:
    """Return what a cancel does to a running job."""
    if conf.CANCEL_TIMEOUT_SEC is None:
        return _("Cancel sends a stop request; this worker cannot force-stop jobs.")
    grace = format_duration(timedelta(seconds=conf.CANCEL_TIMEOUT_SEC))
    return _("Cancel sends a stop request; a handler in a process is force-stopped after %s.") % grace
