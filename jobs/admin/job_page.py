"""What a job's page shows beside its fields: facts, why it waits, its way, its payload, its run and its kin."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from django.db.models import OuterRef, Subquery
from django.http import HttpRequest
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.translation import gettext as _

from jobs.admin import console, lineage, timeline
from jobs.admin.failures import TAIL, kind_of
from jobs.admin.marks import badge, roughly, when
from jobs.admin.reading import may_view_payload
from jobs.admin.showing import duration, first_line, isolated, link, list_url, pretty, reason_of, shortened
from jobs.admin.verbs import offered
from jobs.engine.facts import facts_of
from jobs.engine.identity import Identity, is_remote
from jobs.explain import Explanation, explain
from jobs.models import Job, JobEvent, JobGroup, JobLog, JobRun, JobTemplate, Target, Worker
from jobs.states import LIVE, JobFacts, Status, StopMode, refusal

if TYPE_CHECKING:
    from django.utils.safestring import SafeString

    from jobs.admin.job import JobAdmin

SHOWN = 50
ADD_JOB, CHANGE_JOB = f"{console.APP}.add_job", f"{console.APP}.change_job"
Fact = tuple[Any, Any]
Section = Callable[["JobAdmin", HttpRequest, Job], "SafeString | None"]
_sections: list[Section] = []


def show_on_page(section: Section) -> None:
    """Register what another app shows on a job's page: HTML, or None where there is nothing to show."""
    if section not in _sections:
        _sections.append(section)


def mark(job_id: Any) -> str:
    """What changes a job's page, in one statement. Progress and log lines leave no event."""
    log = JobLog.objects.filter(job_id=OuterRef("pk")).order_by("-pk").values("pk")[:1]
    last = JobEvent.objects.order_by("-pk").values("pk")[:1]  # of any job: what goes first may have changed
    told = ("status", "progress", "progress_message", "tokens_used")
    row = Job.objects.filter(pk=job_id).values_list(*told, Subquery(log), Subquery(last)).first()
    return repr(row)


def page(admin: JobAdmin, request: HttpRequest, job: Job) -> dict[str, Any]:
    """Never more than the last 50 of anything."""
    now, payload, facts = timezone.now(), may_view_payload(request), facts_of(job)
    run: JobRun | None = getattr(job, "run", None)
    outlook = explain(job.pk) if job.status in LIVE and job.status != Status.RUNNING else None
    events = list(JobEvent.objects.filter(job_id=job.pk).order_by("-pk")[:SHOWN])
    return {
        "job": job,
        "now": now,
        "may_view_payload": payload,
        "verbs": [(verb, _verb_url(admin, job, verb.name)) for verb in offered(facts) if admin.may(request, verb)],
        "clone_url": console.url_of(admin.admin_site, "clone", job.pk) if request.user.has_perm(ADD_JOB) else "",
        "edit_url": _edit_url(admin, request, facts),
        "outlook": outlook,
        "blockers": _blockers(admin, outlook),
        "facts": [fact for fact in _facts(admin, job, run, now) if fact[1] not in (None, "")],
        "percent": None if job.progress is None else round(job.progress * 100),
        "progress_message": first_line(job.progress_message, 500),
        "stop_words": _stop_words(job),
        "steps": timeline.steps(job, events[::-1], outlook, now),
        "is_cut": len(events) == SHOWN,
        "events_url": _all_of(admin, JobEvent, job),
        **_payload(job, run, payload),
        **_error(run),
        "chain": _chain(admin, job, now),
        "logs": _logs(job) if payload else [],
        "logs_url": _all_of(admin, JobLog, job),
        "shown": SHOWN,
        "more": [html for section in _sections if (html := section(admin, request, job)) is not None],
    }


def _facts(admin: JobAdmin, job: Job, run: JobRun | None, now: datetime) -> Iterator[Fact]:
    site = admin.admin_site
    started = run.started_at if run else None
    yield _("Status"), badge(job.status, _tries(job))
    yield _("Reason"), isolated(first_line(reason_of(job), 500)) if job.status_reason else None
    yield _("Submitted"), when(job.created_at, now)
    yield _("Waited"), _waited(job, started, now)
    yield _("Ran"), duration((run.finished_at or now) - run.started_at) if run else None
    yield _("Finished"), when(run.finished_at, now) if run else None
    yield _("Not before"), when(job.not_before, now)
    yield _("Deadline"), when(job.deadline_at, now)
    yield _("Worker"), _worker(admin, job.lease_owner or (run.worker if run else ""))
    yield _("Target"), link(site, Target, job.lane_id, first_line(job.target or "", 200))
    yield _("Resource"), isolated(job.resource)
    yield _("Priority"), str(job.priority)
    yield _("Tenant"), isolated(job.tenant)
    yield _("Addon"), isolated(job.addon_id) if job.addon_id else None
    yield _("Tokens used"), f"{job.tokens_used} / {job.token_limit}" if job.token_limit else str(job.tokens_used or "")
    yield _("Idempotency key"), isolated(job.idempotency_key) if job.idempotency_key else None
    yield _("Template"), link(site, JobTemplate, job.template_id, str(job.template)) if job.template_id else None
    yield _("Group"), link(site, JobGroup, job.group_id, _place(job)) if job.group_id else None
    yield _("Schedule"), _schedule(admin, job)
    yield _("Exit code"), str(run.exit_code) if run and run.exit_code is not None else None


def _tries(job: Job) -> str:
    return f"{job.attempt}/{job.max_retries + 1}" if job.attempt > 1 else ""


def _waited(job: Job, started: datetime | None, now: datetime) -> str | None:
    if started is None and job.is_terminal:
        return None
    return roughly(max((started or now), job.created_at) - job.created_at)


def _worker(admin: JobAdmin, holder: str) -> SafeString | None:
    """The holder of a lease is a slot of a worker; the list is asked for the worker."""
    if not holder:
        return None
    if not admin.admin_site.is_registered(Worker) or is_remote(holder):
        return isolated(holder)
    known = Identity.of_owner(holder)
    name = known.name if known else holder.rpartition("#")[0] or holder
    return format_html(
        '<a href="{}?q={}" title="{}"><bdi>{}</bdi></a>',
        list_url(admin.admin_site, Worker),
        quote(f'"{name}"'),
        holder,
        name,
    )


def _place(job: Job) -> str:
    place = _("place %d") % job.group_index if job.group_index is not None else ""
    return f"{first_line(str(job.group), 100)}, {place}"


def _schedule(admin: JobAdmin, job: Job) -> SafeString | str | None:
    model = Job._meta.get_field("schedule").related_model
    if job.schedule_id is None or isinstance(model, str) or model is None:
        return None
    return link(admin.admin_site, model, job.schedule_id, first_line(str(job.schedule), 100))


def _blockers(admin: JobAdmin, outlook: Explanation | None) -> list[Any]:
    """Each reason, and a link to the job that it names."""
    if outlook is None:
        return []
    return [(each.message, link(admin.admin_site, Job, each.blocking_job_id)) for each in outlook.reasons]


def _stop_words(job: Job) -> str:
    if job.cancel_requested:
        return _("It was asked to pause.") if job.cancel_mode == StopMode.PAUSE else _("It was asked to cancel.")
    if job.status == Status.RUNNING:
        return _(
            "Cancel asks the handler to stop; it is ended by force only if CANCEL_TIMEOUT_SEC is set and it runs in a "
            "process."
        )
    return ""


def _payload(job: Job, run: JobRun | None, payload: bool) -> dict[str, Any]:
    if not payload:
        return {}
    return {
        "params": shortened(pretty(job.params)),
        "checkpoint": "" if job.checkpoint is None else shortened(pretty(job.checkpoint)),
        "artifacts": shortened(pretty(run.artifacts)) if run and run.artifacts else "",
    }


def _error(run: JobRun | None) -> dict[str, str]:
    """The last line of a traceback says what happened, its innermost own frame where; the rest is folded."""
    if run is None or not run.error:
        return {}
    lines = [line for line in run.error[-4000:].splitlines() if line.strip()]
    _class, place = kind_of(run.error[-TAIL:])
    said = first_line(lines[-1], 300) if lines else ""
    return {"error_line": said, "error_place": place, "error": shortened(run.error)}


def _chain(admin: JobAdmin, job: Job, now: datetime) -> list[dict[str, Any]]:
    found = []
    for each in lineage.chain(job):
        run: JobRun | None = getattr(each, "run", None)
        ran = duration((run.finished_at or now) - run.started_at) if run else ""
        name = link(admin.admin_site, Job, each.pk)
        reason = first_line(each.status_reason, 200)
        found.append({"job": each, "link": name, "ran": ran, "reason": reason, "is_this": each.pk == job.pk})
    return found


def _logs(job: Job) -> list[dict[str, Any]]:
    lines = JobLog.objects.filter(job_id=job.pk).order_by("-pk")[:SHOWN]
    return [{"at": line.at, "level": line.level, "message": line.message[:2000]} for line in reversed(lines)]


def _edit_url(admin: JobAdmin, request: HttpRequest, facts: JobFacts) -> str:
    may = refusal("update", facts) is None and request.user.has_perm(CHANGE_JOB)
    return console.url_of(admin.admin_site, "edit", facts.job_id) if may else ""


def _verb_url(admin: JobAdmin, job: Job, verb: str) -> str:
    name = f"admin:{admin.opts.app_label}_{admin.opts.model_name}_verb"
    return reverse(name, args=[job.pk, verb], current_app=admin.admin_site.name)


def _all_of(admin: JobAdmin, model: type[JobEvent] | type[JobLog], job: Job) -> str:
    return f"{list_url(admin.admin_site, model)}?q={job.pk}" if admin.admin_site.is_registered(model) else ""
