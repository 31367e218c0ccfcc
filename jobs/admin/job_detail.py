"""The context of a job's page: verbs, facts, the callout, timeline, payload, error, attempts, group and logs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from urllib.parse import quote

from django.db.models import Model, OuterRef, Subquery
from django.http import HttpRequest
from django.utils import timezone
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext as _
from django.utils.translation import pgettext

from jobs import db
from jobs.admin import screens
from jobs.admin.base import ActionAdmin, CappedInt, can_view_payload
from jobs.admin.columns import change_url, ids_url, link, list_url, search_url, short_id
from jobs.admin.failures import (
    ERROR_TAIL,
    FAILURES_READ,
    find_own_frame,
    parse_error,
    read_failures,
    shorten_error,
)
from jobs.admin.formatting import (
    describe_priority,
    first_line,
    format_attempt,
    format_duration,
    format_initiator,
    format_json,
    format_reason,
    format_relative_time,
    isolate_text,
    state_badge,
    status_badge,
    truncate_text,
)
from jobs.admin.job_actions import (
    JOB_ACTIONS,
    RETRY_FRESH,
    STARTING_VERBS,
    describe_consequence,
    describe_list,
    describe_stop,
    describe_unhandled,
    get_list_filters,
    keep_list_filters,
)
from jobs.admin.job_timeline import (
    PAUSED,
    RAN,
    WAITED,
    TimeSpent,
    build_timeline,
    draw_time_bar,
    estimate_time_left,
    measure_time,
)
from jobs.explain import Handlers, explain
from jobs.explain.reasons import NEEDS_OPERATOR, Reason
from jobs.models import Activity, ConcurrencyLimit, Job, JobEvent, JobGroup, JobLog, JobRun, JobTemplate, Target, Worker
from jobs.models.job import STATUS_IN_SENTENCE
from jobs.payload_visibility import get_public_reason, hide_in_event, hide_in_run
from jobs.process_identity import ProcessIdentity, is_remote
from jobs.services import jobs as job_services
from jobs.states import TERMINAL, JobFacts, Status, StopMode, allowed_actions, is_repeated_stop, refusal

ROWS_SHOWN, SIBLINGS_SHOWN = 50, 10
MAX_BEHIND = 1000  # the count of jobs that wait behind a blocking one stops here
PageSection = Callable[[ActionAdmin, HttpRequest, Job], SafeString | None]
_sections: list[PageSection] = []


def show_on_page(section: PageSection) -> None:
    """Register a section of a job's page for another app; it returns HTML, or None to show nothing."""
    if section not in _sections:
        _sections.append(section)


def page_version(job_id: Any) -> str:
    """Return a string that changes with a job's page, from one statement."""
    # Progress and log lines write no event, limits and workers only activity. The last event is that of any job: jobs
    # ahead may have changed.
    last_log = JobLog.objects.filter(job_id=OuterRef("pk")).order_by("-pk").values("pk")[:1]
    last_event = JobEvent.objects.order_by("-pk").values("pk")[:1]
    columns = ("status", "progress", "progress_message", "tokens_used")
    last_activity = Activity.objects.order_by("-pk").values("pk")[:1]
    last = (Subquery(last_log), Subquery(last_event), Subquery(last_activity))
    return repr(Job.objects.filter(pk=job_id).values_list(*columns, *last).first())


class Verb(NamedTuple):
    """An action that the page offers, with the consequence that its confirmation shows."""

    name: str
    label: Promise | str
    url: str
    consequence: str
    is_primary: bool = False


class Advice(NamedTuple):
    """A reason why the job waits, and the page that helps."""

    message: SafeString | str
    url: str = ""
    label: str = ""


def page_context(admin: ActionAdmin, request: HttpRequest, job: Job) -> dict[str, Any]:
    """Return the context of a job's page, with at most the last ROWS_SHOWN events and log lines."""
    now, payload, facts = timezone.now(), can_view_payload(request), job_services.get_facts(job)
    run: JobRun | None = getattr(job, "run", None)
    explanation = explain(job.pk) if not job.is_terminal and job.status != Status.RUNNING else None
    can_edit = refusal("update", facts) is None and request.user.has_perm(f"{screens.APP}.change_job")
    events = list(JobEvent.objects.filter(job_id=job.pk).order_by("-pk")[:ROWS_SHOWN])[::-1]
    has_more_events = len(events) == ROWS_SHOWN
    submission = next(iter(events), None)
    if has_more_events:
        submission = JobEvent.objects.filter(job_id=job.pk).order_by("pk").first()
    spent = None if has_more_events else measure_time(job, run, events, now)
    chain = load_retry_chain(admin, job, now)
    if not payload:
        hide_texts(run, events, chain)
    behind = _count_waiting_behind(job) if job.blocks_target else None
    latest = facts.superseded_by
    ends = [event.at for event in events if event.kind in TERMINAL]  # a job may end without a run
    ended_at = run.finished_at if run else next(iter(ends), None)
    return {
        "job": job,
        "title": job.job_type,
        "subtitle": None,
        "now": now,
        "zone": f"{timezone.localtime(now):%Z}",
        "back": describe_list(admin, get_list_filters(request)),
        "can_view_payload": payload,
        "badge": state_badge(job, next(iter(explanation.reasons), None) if explanation else None),
        "attempt": format_attempt(job),
        "priority": describe_priority(job.priority),
        "target_link": link(admin.admin_site, Target, job.lane_id, first_line(job.target or "", 200)),
        "resource_url": search_url(admin.admin_site, "resource", job.resource),
        "tags": [(tag, search_url(admin.admin_site, "tag", tag)) for tag in job.tags],
        "submitted_by": format_initiator(submission) if submission else "",
        "verbs": list_verbs(admin, request, job, facts, behind.jobs if behind else 0),
        "edit_url": keep_list_filters(request, screens.screen_url(admin.admin_site, "edit", job.pk))
        if can_edit
        else "",
        "retried_as": link(admin.admin_site, Job, latest.id, short_id(latest.id)) if latest else None,
        "latest_status": STATUS_IN_SENTENCE[latest.status] if latest else "",
        "explanation": explanation,
        "advice": [advise(admin, request, reason, job) for reason in explanation.reasons] if explanation else [],
        "needs_operator": bool(explanation and {reason.code for reason in explanation.reasons} & NEEDS_OPERATOR),
        "behind": behind,
        "stop_request": _describe_stop_request(job),
        "reason": first_line(format_reason(job), 500),
        "stop_effect": describe_stop() if job.status == Status.RUNNING else "",
        "facts": [fact for fact in _list_facts(admin, job, run, spent, ended_at, now) if fact[1] not in (None, "")],
        "percent": None if job.progress is None else round(job.progress * 100),
        "progress_message": first_line(job.progress_message, 500),
        "time_left": estimate_time_left(job, spent.total(RAN)) if spent and job.status == Status.RUNNING else None,
        "ran": spent.total(RAN) if spent else None,
        "time_bar": draw_time_bar(spent) if spent else None,
        "total_time": spent.total() if spent else None,
        "steps": build_timeline(job, events, explanation, now),
        "has_more_events": has_more_events,
        "events_url": _list_of_job_url(admin, JobEvent, job),
        "params": truncate_text(format_json(job.params)) if payload else "",
        "job_context": truncate_text(format_json(job.context)) if payload and job.context is not None else "",
        "checkpoint": truncate_text(format_json(job.checkpoint)) if payload and job.checkpoint is not None else "",
        "artifacts": truncate_text(format_json(run.artifacts)) if payload and run and run.artifacts else "",
        **_error_context(run),
        "similar": count_similar_failures(admin, job, run, with_texts=payload) if job.status == Status.FAILED else None,
        "chain": chain,
        "siblings": _list_siblings(admin, job),
        "logs": [*reversed(JobLog.objects.filter(job_id=job.pk).order_by("-pk")[:ROWS_SHOWN])] if payload else [],
        "logs_url": _list_of_job_url(admin, JobLog, job),
        "rows_shown": ROWS_SHOWN,
        "sections": [html for section in _sections if (html := section(admin, request, job)) is not None],
    }


def list_verbs(
    admin: ActionAdmin, request: HttpRequest, job: Job, facts: JobFacts, waiting_behind: int = 0
) -> list[Verb]:
    """Return the actions that make sense now: the one that helps first, and cancel last."""
    verbs = []
    allowed = allowed_actions(facts)
    is_handled = Handlers().can_handle(job)
    for name, action in JOB_ACTIONS.items():
        if action.verb not in allowed or is_repeated_stop(action.verb, facts) or not admin.can_run(request, action):
            continue
        if action.verb == "retry" and facts.superseded_by is not None:
            continue  # an attempt that has been retried leads to its retry
        if (name == RETRY_FRESH and job.checkpoint is None) or (name == "resume" and _is_plain_retry(job)):
            continue  # the same as a retry
        label = _("Retry next for this target") if name == "resume" and job.status == Status.FAILED else action.label
        consequence = describe_consequence(name, job, waiting_behind)
        if action.verb in STARTING_VERBS and not is_handled:
            consequence += " " + describe_unhandled(job.job_type, 1)
        verbs.append(Verb(name, label, keep_list_filters(request, admin.action_url(job, name)), consequence))
    if request.user.has_perm(f"{screens.APP}.add_job"):
        url = keep_list_filters(request, screens.screen_url(admin.admin_site, "clone", job.pk))
        consequence = _("A new job with the same type and params is submitted. It is not a retry.")
        if not is_handled:
            consequence += " " + describe_unhandled(job.job_type, 1)
        verbs.append(Verb("clone", pgettext("verb", "Duplicate"), url, consequence))
    primary = next((name for name in ("release", "retry", "resume") if name in {verb.name for verb in verbs}), "")
    if job.status not in (Status.PENDING, Status.FAILED, Status.PAUSED):
        primary = ""  # nothing has to be done
    order = {primary: -1, "cancel": 1}
    verbs = [verb._replace(is_primary=verb.name == primary) for verb in verbs]
    return sorted(verbs, key=lambda verb: order.get(verb.name, 0))


def _is_plain_retry(job: Job) -> bool:
    """Return whether a resume of this job is a retry: it failed, and no other jobs wait for its target."""
    return job.status == Status.FAILED and not job.target


def advise(admin: ActionAdmin, request: HttpRequest, reason: Reason, job: Job) -> Advice:
    """Return the message of a reason with its job as a link, and the page that helps."""
    site, text = admin.admin_site, capfirst(reason.message)
    message = isolate_text(text)
    if reason.blocking_job_id is not None:
        # The sentence names the job by its whole id, which the page shortens.
        before, _id, after = text.partition(str(reason.blocking_job_id))
        other = link(site, Job, reason.blocking_job_id, short_id(reason.blocking_job_id))
        message = format_html("<bdi>{}</bdi>{}<bdi>{}</bdi>", before, other or "", after) if _id else message
        label = _("Show the blocking job") if reason.code in NEEDS_OPERATOR else _("Show that job")
        return Advice(message, change_url(site, Job, reason.blocking_job_id), label)
    pages: dict[str, tuple[type[Model], str]] = {
        "no_worker": (Worker, _("Show workers")),
        "no_slot": (Worker, _("Show workers")),
        "limit": (ConcurrencyLimit, _("Show limits")),
        "rate_limit": (ConcurrencyLimit, _("Show limits")),
        "scope_paused": (ConcurrencyLimit, _("Resume it under limits")),
        "target_paused": (Target, _("Show the target")),
    }
    if reason.code not in pages:
        return Advice(message)
    model, label = pages[reason.code]
    may_view = request.user.has_perm(f"{model._meta.app_label}.view_{model._meta.model_name}")
    if not (site.is_registered(model) and may_view):
        return Advice(message)
    is_target = model is Target and job.lane_id is not None
    return Advice(message, change_url(site, Target, job.lane_id) if is_target else list_url(site, model), label)


class Waiting(NamedTuple):
    """The jobs that wait behind a job which blocks its target."""

    jobs: int  # may be a CappedInt
    oldest_at: datetime | None


def _count_waiting_behind(job: Job) -> Waiting:
    behind = Job.objects.in_lanes().filter(lane_id=job.lane_id).exclude(pk=job.pk)
    times = list(behind.order_by().values_list("created_at", flat=True)[: MAX_BEHIND + 1])
    count = CappedInt(MAX_BEHIND) if len(times) > MAX_BEHIND else len(times)
    return Waiting(count, min(times, default=None))


class Similar(NamedTuple):
    """Other failures with the same error within a day, among the last FAILURES_READ; and their list."""

    jobs: int
    url: str


def count_similar_failures(admin: ActionAdmin, job: Job, run: JobRun | None, *, with_texts: bool) -> Similar | None:
    """Count the other jobs of its type that failed with the same error at the same line within a day."""
    if run is None or not run.error:
        return None
    failures = read_failures(Job.objects.of_rare_status(Status.FAILED), FAILURES_READ, with_texts=with_texts)
    of_type = [failure for failure in failures if failure.job_type == job.job_type]
    causes = {failure.job_id: (failure.error, failure.location) for failure in of_type}
    since = timezone.now() - timedelta(days=1)
    others = [
        failure.job_id
        for failure in of_type
        if failure.job_id != job.pk
        and causes[failure.job_id] == causes.get(job.pk)
        and failure.at is not None
        and failure.at > since
    ]
    if not others:
        return None
    return Similar(len(others), ids_url(list_url(admin.admin_site, Job), others))


def _list_siblings(admin: ActionAdmin, job: Job) -> list[tuple[Any, SafeString, bool]]:
    """Return the members of its group around the job: a link, the status, and whether it is this one."""
    if job.group_id is None:
        return []
    members = Job.objects.filter(group_id=job.group_id, group_index__isnull=False)
    first = max((job.group_index or 0) - SIBLINGS_SHOWN // 2, 0)
    rows = members.filter(group_index__gte=first).order_by("group_index").only("job_type", "status", "group_index")
    site = admin.admin_site
    return [
        (
            link(site, Job, row.pk, f"{(row.group_index or 0) + 1} {row.job_type}"),
            status_badge(row.status),
            row.pk == job.pk,
        )
        for row in rows[:SIBLINGS_SHOWN]
    ]


def _get_place(job: Job) -> str:
    """Return the place of a member in its group, counted from 1 as on the group's page."""
    if job.group is None or job.group_index is None:
        return ""
    is_final = job.group_index == job.group.then_index
    return _("final job") if is_final else _("place %d") % (job.group_index + 1)


def hide_texts(run: JobRun | None, events: Sequence[JobEvent], chain: Sequence[dict[str, Any]]) -> None:
    """Hide what handlers wrote in the rows of a job's page."""
    if run is not None:
        hide_in_run(run)
    for event in events:
        hide_in_event(event)
    for attempt in chain:
        attempt["reason"] = first_line(get_public_reason(attempt["job"]), 200)


def _list_facts(
    admin: ActionAdmin, job: Job, run: JobRun | None, spent: TimeSpent | None, ended_at: datetime | None, now: datetime
) -> Iterator[tuple[Any, Any]]:
    site = admin.admin_site
    has_callout = job.status in (Status.FAILED, Status.PAUSED, Status.SKIPPED, Status.CANCELLED)
    if job.status_reason and not has_callout:
        yield _("Reason"), isolate_text(first_line(format_reason(job), 500))
    yield _("Submitted"), format_relative_time(job.created_at, now)
    if spent is not None:
        yield _("Waited"), _format_total(spent, WAITED)
        yield _("Ran"), _format_total(spent, RAN)
        yield _("Paused"), _format_total(spent, PAUSED)
    yield _("Finished"), format_relative_time(ended_at, now)
    yield _("Not before"), format_relative_time(job.not_before, now)
    yield _("Deadline"), format_relative_time(job.deadline_at, now)
    yield _("Worker"), _worker_link(admin, job.lease_owner or (run.worker if run else ""))
    yield _("Addon"), isolate_text(job.addon_id) if job.addon_id else None
    yield _("Tokens used"), f"{job.tokens_used} / {job.token_limit}" if job.token_limit else str(job.tokens_used or "")
    yield _("Idempotency key"), isolate_text(job.idempotency_key) if job.idempotency_key else None
    yield _("Unique key"), isolate_text(job.unique_key) if job.unique_key else None
    yield _("Template"), link(site, JobTemplate, job.template_id, str(job.template)) if job.template_id else None
    if job.group_id:
        yield _("Group"), link(site, JobGroup, job.group_id, f"{first_line(str(job.group), 100)}, {_get_place(job)}")
    model = Job._meta.get_field("schedule").related_model
    if job.schedule_id is not None and isinstance(model, type):
        yield _("Schedule"), link(site, model, job.schedule_id, first_line(str(job.schedule), 100))
    yield _("Exit code"), str(run.exit_code) if run and run.exit_code else None


def _format_total(spent: TimeSpent, phase: str) -> str | None:
    return format_duration(spent.total(phase)) if any(name == phase for name, _lasted in spent.phases) else None


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


def _describe_stop_request(job: Job) -> str:
    if not job.cancel_requested:
        return ""
    return _("Pause requested.") if job.cancel_mode == StopMode.PAUSE else _("Cancel requested.")


def _error_context(run: JobRun | None) -> dict[str, Any]:
    """Return the class and the message of the error, the site's own innermost frame, and the whole traceback."""
    if run is None or not run.error:
        return {}
    lines = [line for line in run.error[-4000:].splitlines() if line.strip()]
    _class, location = parse_error(run.error[-ERROR_TAIL:])
    last_line = first_line(lines[-1], 300) if lines else ""
    error_class, colon, message = last_line.partition(": ")
    error_class = shorten_error(error_class)
    return {
        "error_line": last_line,
        "error_class": error_class + ":" if colon else error_class,
        "error_message": message,
        "error_location": location,
        "error_frame": find_own_frame(run.error[-ERROR_TAIL:]),
        "error": truncate_text(run.error),
        "error_lines": len(run.error.splitlines()),
    }


def _list_of_job_url(admin: ActionAdmin, model: type[JobEvent] | type[JobLog], job: Job) -> str:
    return f"{list_url(admin.admin_site, model)}?q={job.pk}" if admin.admin_site.is_registered(model) else ""


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
        name = link(admin.admin_site, Job, attempt.pk, short_id(attempt.pk))
        reason = first_line(attempt.status_reason, 200)
        rows.append({"job": attempt, "link": name, "ran": ran, "reason": reason, "is_this": attempt.pk == job.pk})
    return rows
