"""The context of a job's page: buttons, facts, wait reasons, timeline, payload, error, retry chain and logs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any
from urllib.parse import quote

from django.db.models import OuterRef, Subquery
from django.http import HttpRequest
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, pgettext_lazy

from jobs import db
from jobs.admin import screens
from jobs.admin.base import ActionAdmin, can_view_payload
from jobs.admin.columns import link, list_url
from jobs.admin.dashboard import ERROR_TAIL, parse_error
from jobs.admin.formatting import (
    ICONS,
    first_line,
    format_actor,
    format_duration,
    format_json,
    format_reason,
    format_relative_time,
    format_rough_duration,
    isolate_text,
    status_badge,
    truncate_text,
)
from jobs.admin.job_actions import JOB_ACTIONS
from jobs.explain import Explanation, explain
from jobs.models import Job, JobEvent, JobGroup, JobLog, JobRun, JobTemplate, Target, Worker
from jobs.payload_visibility import get_public_reason, hide_in_event, hide_in_run
from jobs.process_identity import ProcessIdentity, is_remote
from jobs.services import jobs as job_services
from jobs.states import DEFAULT_PAUSE_REASON, EventKind, Status, StopMode, allowed_actions, is_repeated_stop, refusal

ROWS_SHOWN = 50
PageSection = Callable[[ActionAdmin, HttpRequest, Job], SafeString | None]
_sections: list[PageSection] = []


def show_on_page(section: PageSection) -> None:
    """Register a section of a job's page for another app; it returns HTML, or None to show nothing."""
    if section not in _sections:
        _sections.append(section)


def page_version(job_id: Any) -> str:
    """Return a string that changes with a job's page, from one statement."""
    # Progress and log lines write no event. The last event is that of any job: jobs ahead may have changed.
    last_log = JobLog.objects.filter(job_id=OuterRef("pk")).order_by("-pk").values("pk")[:1]
    last_event = JobEvent.objects.order_by("-pk").values("pk")[:1]
    columns = ("status", "progress", "progress_message", "tokens_used")
    row = Job.objects.filter(pk=job_id).values_list(*columns, Subquery(last_log), Subquery(last_event)).first()
    return repr(row)


def page_context(admin: ActionAdmin, request: HttpRequest, job: Job) -> dict[str, Any]:
    """Return the context of a job's page, with at most the last ROWS_SHOWN events and log lines."""
    now, payload, facts = timezone.now(), can_view_payload(request), job_services.get_facts(job)
    run: JobRun | None = getattr(job, "run", None)
    explanation = explain(job.pk) if not job.is_terminal and job.status != Status.RUNNING else None
    can_edit = refusal("update", facts) is None and request.user.has_perm(f"{screens.APP}.change_job")
    can_clone = request.user.has_perm(f"{screens.APP}.add_job")
    reasons = explanation.reasons if explanation else []
    allowed = allowed_actions(facts)
    available_actions = [
        action
        for name, action in JOB_ACTIONS.items()
        if name in allowed and not is_repeated_stop(name, facts) and admin.can_run(request, action)
    ]
    events = list(JobEvent.objects.filter(job_id=job.pk).order_by("-pk")[:ROWS_SHOWN])
    chain = load_retry_chain(admin, job, now)
    if not payload:
        hide_texts(run, events, chain)
    return {
        "job": job,
        "now": now,
        "can_view_payload": payload,
        "buttons": [(action, admin.action_url(job, action.name)) for action in available_actions],
        "clone_url": screens.screen_url(admin.admin_site, "clone", job.pk) if can_clone else "",
        "edit_url": screens.screen_url(admin.admin_site, "edit", job.pk) if can_edit else "",
        "explanation": explanation,
        "blockers": [(reason.message, link(admin.admin_site, Job, reason.blocking_job_id)) for reason in reasons],
        "facts": [fact for fact in _list_facts(admin, job, run, now) if fact[1] not in (None, "")],
        "percent": None if job.progress is None else round(job.progress * 100),
        "progress_message": first_line(job.progress_message, 500),
        "stop_note": _stop_note(job),
        "steps": build_timeline(job, events[::-1], explanation, now),
        "has_more_events": len(events) == ROWS_SHOWN,
        "events_url": _list_of_job_url(admin, JobEvent, job),
        "params": truncate_text(format_json(job.params)) if payload else "",
        "checkpoint": truncate_text(format_json(job.checkpoint)) if payload and job.checkpoint is not None else "",
        "artifacts": truncate_text(format_json(run.artifacts)) if payload and run and run.artifacts else "",
        **_error_context(run),
        "chain": chain,
        "logs": [*reversed(JobLog.objects.filter(job_id=job.pk).order_by("-pk")[:ROWS_SHOWN])] if payload else [],
        "logs_url": _list_of_job_url(admin, JobLog, job),
        "rows_shown": ROWS_SHOWN,
        "sections": [html for section in _sections if (html := section(admin, request, job)) is not None],
    }


def hide_texts(run: JobRun | None, events: Sequence[JobEvent], chain: Sequence[dict[str, Any]]) -> None:
    """Hide what handlers wrote in the rows of a job's page."""
    if run is not None:
        hide_in_run(run)
    for event in events:
        hide_in_event(event)
    for attempt in chain:
        attempt["reason"] = first_line(get_public_reason(attempt["job"]), 200)


def _list_facts(admin: ActionAdmin, job: Job, run: JobRun | None, now: datetime) -> Iterator[tuple[Any, Any]]:
    site = admin.admin_site
    waited_until = run.started_at if run else None if job.is_terminal else now
    yield _("Status"), status_badge(job.status, f"{job.attempt}/{job.max_retries + 1}" if job.attempt > 1 else "")
    yield _("Reason"), isolate_text(first_line(format_reason(job), 500)) if job.status_reason else None
    yield _("Submitted"), format_relative_time(job.created_at, now)
    yield _("Waited"), format_rough_duration(max(waited_until - job.created_at, timedelta(0))) if waited_until else None
    yield _("Ran"), format_duration((run.finished_at or now) - run.started_at) if run else None
    yield _("Finished"), format_relative_time(run.finished_at, now) if run else None
    yield _("Not before"), format_relative_time(job.not_before, now)
    yield _("Deadline"), format_relative_time(job.deadline_at, now)
    yield _("Worker"), _worker_link(admin, job.lease_owner or (run.worker if run else ""))
    yield _("Target"), link(site, Target, job.lane_id, first_line(job.target or "", 200))
    yield _("Resource"), isolate_text(job.resource)
    yield _("Priority"), str(job.priority)
    yield _("Tenant"), isolate_text(job.tenant)
    yield _("Addon"), isolate_text(job.addon_id) if job.addon_id else None
    yield _("Tokens used"), f"{job.tokens_used} / {job.token_limit}" if job.token_limit else str(job.tokens_used or "")
    yield _("Idempotency key"), isolate_text(job.idempotency_key) if job.idempotency_key else None
    yield _("Template"), link(site, JobTemplate, job.template_id, str(job.template)) if job.template_id else None
    if job.group_id:
        position = _("place %d") % job.group_index if job.group_index is not None else ""
        yield _("Group"), link(site, JobGroup, job.group_id, f"{first_line(str(job.group), 100)}, {position}")
    model = Job._meta.get_field("schedule").related_model
    if job.schedule_id is not None and isinstance(model, type):
        yield _("Schedule"), link(site, model, job.schedule_id, first_line(str(job.schedule), 100))
    yield _("Exit code"), str(run.exit_code) if run and run.exit_code is not None else None


def _worker_link(admin: ActionAdmin, lease_owner: str) -> SafeString | None:
    """Link to the worker in its list. The owner of a lease is a slot of a worker, or a remote worker."""
    if not lease_owner:
        return None
    if not admin.admin_site.is_registered(Worker) or is_remote(lease_owner):
        return isolate_text(lease_owner)
    identity = ProcessIdentity.parse_owner(lease_owner)
    name = identity.name if identity else lease_owner.rpartition("#")[0] or lease_owner
    values = (list_url(admin.admin_site, Worker), quote(f'"{name}"'), lease_owner, name)
    return format_html('<a href="{}?q={}" title="{}"><bdi>{}</bdi></a>', *values)


def _stop_note(job: Job) -> str:
    if job.cancel_requested:
        return _("It was asked to pause.") if job.cancel_mode == StopMode.PAUSE else _("It was asked to cancel.")
    if job.status == Status.RUNNING:
        return _(
            "Cancel asks the handler to stop; it is ended by force only if CANCEL_TIMEOUT_SEC is set and it runs in a "
            "process."
        )
    return ""


def _error_context(run: JobRun | None) -> dict[str, str]:
    """Return the last line of the traceback, the innermost frame of the site's own code, and the whole text."""
    if run is None or not run.error:
        return {}
    lines = [line for line in run.error[-4000:].splitlines() if line.strip()]
    _class, location = parse_error(run.error[-ERROR_TAIL:])
    last_line = first_line(lines[-1], 300) if lines else ""
    return {"error_line": last_line, "error_location": location, "error": truncate_text(run.error)}


def _list_of_job_url(admin: ActionAdmin, model: type[JobEvent] | type[JobLog], job: Job) -> str:
    return f"{list_url(admin.admin_site, model)}?q={job.pk}" if admin.admin_site.is_registered(model) else ""


EVENT_LABELS: dict[str, Promise] = {
    EventKind.SUBMITTED: pgettext_lazy("event", "Submitted"),
    EventKind.HELD: pgettext_lazy("event", "Held back"),
    EventKind.RELEASED: pgettext_lazy("event", "Released"),
    EventKind.ADMITTED: pgettext_lazy("event", "Admitted"),
    EventKind.DENIED: pgettext_lazy("event", "Admission denied"),
    EventKind.DISPATCHING: pgettext_lazy("event", "Offered to a remote worker"),
    EventKind.WITHDRAWN: pgettext_lazy("event", "Offer withdrawn"),
    EventKind.RUNNING: pgettext_lazy("event", "Running"),
    EventKind.CANCEL_REQUESTED: pgettext_lazy("event", "Asked to cancel"),
    EventKind.PAUSE_REQUESTED: pgettext_lazy("event", "Asked to pause"),
    EventKind.PAUSED: pgettext_lazy("event", "Paused"),
    EventKind.RESUMED: pgettext_lazy("event", "Resumed"),
    EventKind.HANDED_BACK: pgettext_lazy("event", "Handed back"),
    EventKind.COMPLETED: pgettext_lazy("event", "Completed"),
    EventKind.FAILED: pgettext_lazy("event", "Failed"),
    EventKind.SKIPPED: pgettext_lazy("event", "Skipped"),
    EventKind.CANCELLED: pgettext_lazy("event", "Cancelled"),
    EventKind.RETRY_CREATED: pgettext_lazy("event", "Followed by a retry"),
    EventKind.RESOLVED: pgettext_lazy("event", "Resolved"),
    EventKind.MOVED: pgettext_lazy("event", "Moved in the queue"),
    EventKind.UPDATED: pgettext_lazy("event", "Changed"),
    EventKind.AGED: pgettext_lazy("event", "Raised, since it waited long"),
}


@dataclass
class TimelineStep:
    """An event of the job, or a time in the future.

    `lasted` is the time until the next step or until now; None for the last step of a finished job, and in the future.
    """

    label: Promise | str
    at: datetime
    icon: str = "·"
    actor: str = ""
    reason: str = ""
    lasted: timedelta | None = None
    is_future: bool = False


def build_timeline(
    job: Job, events: Sequence[JobEvent], explanation: Explanation | None, now: datetime
) -> list[TimelineStep]:
    """Return the steps of the job's timeline: `events`, oldest first, then expected times."""
    steps = []
    for event in events:
        icon = ICONS[Status(event.kind)] if event.kind in set(Status) else "·"
        actor = format_actor(event)
        # The default reason mentions an interruption, which is wrong for a job that was not running.
        is_default = event.reason == DEFAULT_PAUSE_REASON and event.from_status != Status.RUNNING
        reason = "" if is_default else first_line(event.reason, 500)
        steps.append(TimelineStep(EVENT_LABELS.get(event.kind, event.kind), event.at, icon, actor, reason))
    for step, next_step in pairwise(steps):
        step.lasted = max(next_step.at - step.at, timedelta(0))
    if job.is_terminal:
        return steps
    if steps:
        steps[-1].lasted = max(now - steps[-1].at, timedelta(0))
    if job.not_before is not None and job.not_before > now and job.status == Status.QUEUED:
        steps.append(TimelineStep(gettext_lazy("Due"), job.not_before, is_future=True))
    if explanation is not None and explanation.predicted_start_at is not None:
        steps.append(
            TimelineStep(gettext_lazy("Running, as it looks now"), explanation.predicted_start_at, is_future=True)
        )
    if job.deadline_at is not None and job.deadline_at > now and job.dispatched_at is None:
        steps.append(TimelineStep(gettext_lazy("Too late to start"), job.deadline_at, is_future=True))
    return steps


CHAIN_LIMIT = 25  # attempts in each direction; longer chains are followed by their links

CHAIN_SQL = f"""
    WITH RECURSIVE back (id, retry_of_id, steps) AS (
        SELECT id, retry_of_id, 0 FROM jobscheduler_job WHERE id = %s
        UNION ALL
        SELECT older.id, older.retry_of_id, back.steps + 1
        FROM back JOIN jobscheduler_job older ON older.id = back.retry_of_id WHERE back.steps < {CHAIN_LIMIT}
    ),
    forth (id, steps) AS (
        SELECT id, 0 FROM jobscheduler_job WHERE id = %s
        UNION ALL
        SELECT newer.id, forth.steps + 1
        FROM forth JOIN jobscheduler_job newer ON newer.retry_of_id = forth.id WHERE forth.steps < {CHAIN_LIMIT}
    )
    SELECT id FROM back UNION SELECT id FROM forth
"""  # noqa: S608 — a constant


def load_retry_chain(admin: ActionAdmin, job: Job, now: datetime) -> list[dict[str, Any]]:
    """Return all attempts, the first one first; [] if there is only one."""
    key = db.to_stored_uuid(job.pk)
    with db.connection().cursor() as cursor:
        cursor.execute(CHAIN_SQL, [key, key])
        ids = [attempt_id for (attempt_id,) in cursor.fetchall()]
    if len(ids) < 2:
        return []
    columns = ("job_type", "status", "attempt", "status_reason", "created_at", "dispatched_at", "remote")
    run_columns = ("run__started_at", "run__finished_at", "run__worker")
    attempts = Job.objects.filter(pk__in=ids).select_related("run").only("pk", *columns, *run_columns)
    rows = []
    for attempt in attempts.order_by("attempt", "pk"):
        run: JobRun | None = getattr(attempt, "run", None)
        ran = format_duration((run.finished_at or now) - run.started_at) if run else ""
        name, reason = link(admin.admin_site, Job, attempt.pk), first_line(attempt.status_reason, 200)
        rows.append({"job": attempt, "link": name, "ran": ran, "reason": reason, "is_this": attempt.pk == job.pk})
    return rows
