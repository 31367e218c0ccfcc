"""What a job's page shows beside its fields: facts, why it waits, its way, its payload, its run and its retry chain."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import TYPE_CHECKING, Any
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
from jobs.admin.actions import VERBS
from jobs.admin.base import may_view_payload
from jobs.admin.dashboard import TAIL, kind_of
from jobs.admin.formatting import (
    ICONS,
    badge,
    duration,
    first_line,
    isolated,
    link,
    list_url,
    pretty,
    reason_of,
    roughly,
    shortened,
    when,
)
from jobs.engine.facts import facts_of
from jobs.engine.lifecycle import PAUSED_BY_DEFAULT
from jobs.engine.process_identity import Identity, is_remote
from jobs.explain import Explanation, explain
from jobs.models import Job, JobEvent, JobGroup, JobLog, JobRun, JobTemplate, Target, Worker
from jobs.states import LIVE, EventKind, Status, StopMode, allowed_actions, is_repeated, refusal

if TYPE_CHECKING:
    from jobs.admin.jobs import JobAdmin

SHOWN = 50
ADD_JOB, CHANGE_JOB = f"{screens.APP}.add_job", f"{screens.APP}.change_job"
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
    may_edit = refusal("update", facts) is None and request.user.has_perm(CHANGE_JOB)
    reasons = outlook.reasons if outlook else []
    # Those that change something now.
    verbs = [VERBS[name] for name in VERBS if name in allowed_actions(facts) and not is_repeated(name, facts)]
    events = list(JobEvent.objects.filter(job_id=job.pk).order_by("-pk")[:SHOWN])
    return {
        "job": job,
        "now": now,
        "may_view_payload": payload,
        "verbs": [(verb, admin.verb_url(job, verb.name)) for verb in verbs if admin.may(request, verb)],
        "clone_url": screens.url_of(admin.admin_site, "clone", job.pk) if request.user.has_perm(ADD_JOB) else "",
        "edit_url": screens.url_of(admin.admin_site, "edit", job.pk) if may_edit else "",
        "outlook": outlook,
        "blockers": [(each.message, link(admin.admin_site, Job, each.blocking_job_id)) for each in reasons],
        "facts": [fact for fact in _facts(admin, job, run, now) if fact[1] not in (None, "")],
        "percent": None if job.progress is None else round(job.progress * 100),
        "progress_message": first_line(job.progress_message, 500),
        "stop_words": _stop_words(job),
        "steps": steps(job, events[::-1], outlook, now),
        "is_cut": len(events) == SHOWN,
        "events_url": _all_of(admin, JobEvent, job),
        "params": shortened(pretty(job.params)) if payload else "",
        "checkpoint": shortened(pretty(job.checkpoint)) if payload and job.checkpoint is not None else "",
        "artifacts": shortened(pretty(run.artifacts)) if payload and run and run.artifacts else "",
        **_error(run),
        "chain": retry_chain(admin, job, now),
        "logs": [*reversed(JobLog.objects.filter(job_id=job.pk).order_by("-pk")[:SHOWN])] if payload else [],
        "logs_url": _all_of(admin, JobLog, job),
        "shown": SHOWN,
        "more": [html for section in _sections if (html := section(admin, request, job)) is not None],
    }


def _facts(admin: JobAdmin, job: Job, run: JobRun | None, now: datetime) -> Iterator[Fact]:
    site = admin.admin_site
    waited_until = run.started_at if run else None if job.is_terminal else now
    yield _("Status"), badge(job.status, f"{job.attempt}/{job.max_retries + 1}" if job.attempt > 1 else "")
    yield _("Reason"), isolated(first_line(reason_of(job), 500)) if job.status_reason else None
    yield _("Submitted"), when(job.created_at, now)
    yield _("Waited"), roughly(max(waited_until, job.created_at) - job.created_at) if waited_until else None
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
    if job.group_id:
        place = _("place %d") % job.group_index if job.group_index is not None else ""
        yield _("Group"), link(site, JobGroup, job.group_id, f"{first_line(str(job.group), 100)}, {place}")
    model = Job._meta.get_field("schedule").related_model
    if job.schedule_id is not None and isinstance(model, type):
        yield _("Schedule"), link(site, model, job.schedule_id, first_line(str(job.schedule), 100))
    yield _("Exit code"), str(run.exit_code) if run and run.exit_code is not None else None


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


def _stop_words(job: Job) -> str:
    if job.cancel_requested:
        return _("It was asked to pause.") if job.cancel_mode == StopMode.PAUSE else _("It was asked to cancel.")
    if job.status == Status.RUNNING:
        return _(
            "Cancel asks the handler to stop; it is ended by force only if CANCEL_TIMEOUT_SEC is set and it runs in a "
            "process."
        )
    return ""


def _error(run: JobRun | None) -> dict[str, str]:
    """The last line of a traceback says what happened, its innermost own frame where; the rest is folded."""
    if run is None or not run.error:
        return {}
    lines = [line for line in run.error[-4000:].splitlines() if line.strip()]
    _class, place = kind_of(run.error[-TAIL:])
    said = first_line(lines[-1], 300) if lines else ""
    return {"error_line": said, "error_place": place, "error": shortened(run.error)}


def _all_of(admin: JobAdmin, model: type[JobEvent] | type[JobLog], job: Job) -> str:
    return f"{list_url(admin.admin_site, model)}?q={job.pk}" if admin.admin_site.is_registered(model) else ""


WORDS: dict[str, Promise] = {
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
class Step:
    """`lasted`: until the next step, or until now; None where nothing comes after it."""

    word: Promise | str
    at: datetime
    icon: str = "·"
    actor: str = ""
    reason: str = ""
    lasted: timedelta | None = None
    is_future: bool = False


def steps(job: Job, events: Sequence[JobEvent], outlook: Explanation | None, now: datetime) -> list[Step]:
    """What happened (`events`, oldest first), and what is planned as far as it is known."""
    taken = []
    for event in events:
        icon = ICONS[Status(event.kind)] if event.kind in set(Status) else "·"
        actor = f"{event.get_actor_kind_display()} {event.actor_name}".strip()
        # A bare pause of what waited interrupted nothing: that it is paused says it all.
        is_bare = event.reason == PAUSED_BY_DEFAULT and event.from_status != Status.RUNNING
        reason = "" if is_bare else first_line(event.reason, 500)
        taken.append(Step(WORDS.get(event.kind, event.kind), event.at, icon, actor, reason))
    for step, later in pairwise(taken):
        step.lasted = max(later.at - step.at, timedelta(0))
    if job.is_terminal:
        return taken
    if taken:
        taken[-1].lasted = max(now - taken[-1].at, timedelta(0))
    if job.not_before is not None and job.not_before > now and job.status == Status.QUEUED:
        taken.append(Step(gettext_lazy("Due"), job.not_before, is_future=True))
    if outlook is not None and outlook.predicted_start_at is not None:
        taken.append(Step(gettext_lazy("Running, as it looks now"), outlook.predicted_start_at, is_future=True))
    if job.deadline_at is not None and job.deadline_at > now and job.dispatched_at is None:
        taken.append(Step(gettext_lazy("Too late to start"), job.deadline_at, is_future=True))
    return taken


MOST = 25  # in each direction; the chain's ends are links on the way

CHAIN = f"""
    WITH RECURSIVE back (id, retry_of_id, steps) AS (
        SELECT id, retry_of_id, 0 FROM jobscheduler_job WHERE id = %s
        UNION ALL
        SELECT older.id, older.retry_of_id, back.steps + 1
        FROM back JOIN jobscheduler_job older ON older.id = back.retry_of_id WHERE back.steps < {MOST}
    ),
    forth (id, steps) AS (
        SELECT id, 0 FROM jobscheduler_job WHERE id = %s
        UNION ALL
        SELECT newer.id, forth.steps + 1
        FROM forth JOIN jobscheduler_job newer ON newer.retry_of_id = forth.id WHERE forth.steps < {MOST}
    )
    SELECT id FROM back UNION SELECT id FROM forth
"""  # noqa: S608 — our own number


def retry_chain(admin: JobAdmin, job: Job, now: datetime) -> list[dict[str, Any]]:
    """All attempts, the first one first; empty for a job that is the only one."""
    key: Any = job.pk.hex if db.is_sqlite() else job.pk
    with db.connection().cursor() as cursor:
        cursor.execute(CHAIN, [key, key])
        ids = [row[0] for row in cursor.fetchall()]
    if len(ids) < 2:
        return []
    columns = ("job_type", "status", "attempt", "status_reason", "created_at")
    run_columns = ("run__started_at", "run__finished_at", "run__worker")
    attempts = Job.objects.filter(pk__in=ids).select_related("run").only("pk", *columns, *run_columns)
    rows = []
    for attempt in attempts.order_by("attempt", "pk"):
        run: JobRun | None = getattr(attempt, "run", None)
        ran = duration((run.finished_at or now) - run.started_at) if run else ""
        name, reason = link(admin.admin_site, Job, attempt.pk), first_line(attempt.status_reason, 200)
        rows.append({"job": attempt, "link": name, "ran": ran, "reason": reason, "is_this": attempt.pk == job.pk})
    return rows
