"""Alerts at the top of the overview: conditions that need an operator, each with links and verbs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any

from django.contrib.admin import AdminSite
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.db import DatabaseError
from django.db.migrations.loader import MigrationLoader
from django.db.migrations.recorder import MigrationRecorder
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext, pgettext

from jobs import db
from jobs.admin.base import count_capped
from jobs.admin.charts import finished_query
from jobs.admin.columns import link, list_url, search_url, short_id
from jobs.admin.formatting import first_line, format_count, format_duration, format_percent, isolate_text
from jobs.conf import get_raw_settings, read_settings
from jobs.models import ConcurrencyLimit, Job, LimitScope, Worker
from jobs.payload_visibility import get_public_reason
from jobs.roles import APP_LABELS
from jobs.services.limits import LimitState
from jobs.states import Status
from jobs.stats import queries
from jobs.stats.ready_jobs import ReadyJobs, is_claiming, is_online

LATE_AFTER = timedelta(minutes=5)  # that a ready job has waited
MIN_FAILURES, FAILURE_RATIO = 10, 2  # in the last hour; against the day before
NAMES_SHOWN = 3  # of targets, limits and job types in one alert
BLOCKING_READ = 100


@dataclass(frozen=True)
class AlertVerb:
    """A button of an alert: a link, or with `fields` a form that posts them."""

    text: str
    url: str
    fields: Sequence[tuple[str, Any]] = ()


@dataclass(frozen=True)
class Alert:
    """One line: a badge, the message, details as escaped HTML, since when, a link and verbs."""

    message: str
    url: str = ""
    link_text: str = ""
    is_bad: bool = True  # red, and before the others
    badge: str = ""
    icon: str = "!"
    detail: SafeString | str = ""
    since: datetime | None = None
    verbs: Sequence[AlertVerb] = ()

    @property
    def label(self) -> str:
        return self.badge or (_("Problem") if self.is_bad else _("Warning"))


AlertSource = Callable[[AdminSite, HttpRequest], Iterator[Alert]]
_sources: list[AlertSource] = []


def alert_from(source: AlertSource) -> None:
    """Register a source of alerts of another app."""
    if source not in _sources:
        _sources.append(source)


@dataclass(frozen=True)
class AlertFacts:
    """The facts that the overview has read already, and its alerts need as well."""

    now: datetime
    waiting: int  # jobs whose time has come
    ready: ReadyJobs
    workers: Sequence[Worker]  # those online
    limits: Sequence[LimitState]
    hour: Counter[str]  # how jobs ended since `hour_start`
    hour_start: datetime
    day: Counter[str]


def find_alerts(site: AdminSite, request: HttpRequest, facts: AlertFacts) -> list[Alert]:
    """Return what needs attention, the worst first."""
    found = [Alert(str(problem), badge=_("Settings")) for problem in read_settings(get_raw_settings()).problems[:3]]
    found += _migration_alerts()
    found += _blocked_target_alerts(site, request)
    found += _worker_alerts(site, facts)
    found += _heartbeat_alerts(site)
    found += _failure_rate_alerts(site, facts)
    found += _pause_alerts(site, request, facts)
    found += _late_start_alerts(site, facts)
    for source in _sources:
        found += source(site, request)
    return sorted(found, key=lambda alert: not alert.is_bad)


def join_names(names: Iterable[SafeString | str], hidden: int = 0) -> SafeString:
    """Return names separated by middle dots, with the number of those that are left out."""
    parts = [*names, *([_("%d more") % hidden] if hidden > 0 else [])]
    return format_html_join(" · ", "{}", ((part,) for part in parts))


# -- database ----------------------------------------------------------------------------------------------------------


def _migration_alerts() -> Iterator[Alert]:
    if missing := _known_migrations() - _applied_migrations():
        names = ", ".join(sorted(f"{app} {name}" for app, name in missing)[:3])
        message = ngettext(
            "%(n)d migration is not applied (%(names)s): run manage.py migrate.",
            "%(n)d migrations are not applied (%(names)s): run manage.py migrate.",
            len(missing),
        )
        yield Alert(message % {"n": len(missing), "names": names}, badge=_("Database"))


@cache
def _known_migrations() -> frozenset[tuple[str, str]]:
    loader = MigrationLoader(None, load=False)
    loader.load_disk()
    return frozenset(key for key in loader.disk_migrations if key[0] in APP_LABELS)


def _applied_migrations() -> set[tuple[str, str]]:
    """Return the applied migrations; all of them if the web's database role may not read their table."""
    rows = MigrationRecorder(db.connection()).migration_qs.filter(app__in=APP_LABELS)
    try:
        return set(rows.values_list("app", "name"))
    except DatabaseError:
        return set(_known_migrations())


# -- targets -----------------------------------------------------------------------------------------------------------


def _blocked_target_alerts(site: AdminSite, request: HttpRequest) -> Iterator[Alert]:
    """Yield one alert for all blocked targets, with the jobs that wait behind them."""
    columns = ("pk", "lane_id", "job_type", "target", "status", "status_reason", "remote", "dispatched_at")
    rows = list(queries.blocking_jobs().select_related(None).only(*columns)[: BLOCKING_READ + 1])
    if not rows:
        return
    count = len(rows) if len(rows) <= BLOCKING_READ else queries.count_blocked_targets()
    rows, jobs_url = rows[:BLOCKING_READ], list_url(site, Job)
    lanes = [job.lane_id for job in rows]
    behind = Job.objects.in_lanes().filter(lane__isnull=False, lane__in=lanes)
    waiting = count_capped(behind)
    names = [_describe_blocking(site, job) for job in rows[:NAMES_SHOWN]]
    yield Alert(
        _describe_blocked(count, {job.status for job in rows}, waiting),
        f"{jobs_url}?attention=blocking",
        ngettext("Show job", "Show jobs", count),
        badge=_("Blocked"),
        icon="✗",
        detail=join_names(names, count - len(names)),
        verbs=list_job_verbs(request, jobs_url, rows),
    )


def _describe_blocked(count: int, statuses: set[str], waiting: int) -> str:
    if statuses == {Status.FAILED}:
        text = ngettext("%d target is blocked by a failed job", "%d targets are blocked by failed jobs", count)
    elif statuses == {Status.PAUSED}:
        text = ngettext("%d target is blocked by a paused job", "%d targets are blocked by paused jobs", count)
    else:
        text = ngettext(
            "%d target is blocked by a failed or paused job", "%d targets are blocked by failed or paused jobs", count
        )
    if not waiting:
        return text % count + "."
    if count == 1:
        behind = ngettext("%s job is waiting behind it", "%s jobs are waiting behind it", waiting)
    else:
        behind = ngettext("%s job is waiting behind them", "%s jobs are waiting behind them", waiting)
    return f"{text % count}; {behind % format_count(waiting)}."


def _describe_blocking(site: AdminSite, job: Job) -> SafeString:
    job_link = link(site, Job, job.pk, f"{job.job_type} {short_id(job.pk)}")
    error = first_line(get_public_reason(job), 60)
    note = format_html(" ({})", isolate_text(error)) if error else ""
    return format_html("{}: {}{}", isolate_text(first_line(job.target or "", 60)), job_link, note)


def list_job_verbs(request: HttpRequest, jobs_url: str, jobs: Sequence[Job]) -> list[AlertVerb]:
    """Return the buttons for jobs that block a target. Each leads to the page that says what would happen."""
    verbs = []
    for action, permission, status, text in (
        ("retry", "retry_job", Status.FAILED, _("Retry…")),
        ("resolve", "resolve_job", Status.FAILED, _("Mark as resolved…")),
        ("resume", "resume_job", Status.PAUSED, pgettext("verb", "Resume…")),
    ):
        job_ids = [job.pk for job in jobs if job.status == status]
        if job_ids and request.user.has_perm(f"{Job._meta.app_label}.{permission}"):
            verbs.append(AlertVerb(text, jobs_url, build_action_fields(action, job_ids)))
    return verbs


def build_action_fields(action: str, job_ids: Iterable[Any]) -> list[tuple[str, Any]]:
    """Return the fields of a form that shows what an action of the job list would do to these jobs."""
    fields = [("action", action), ("index", "0"), ("dry_run", "on")]
    return [*fields, *((ACTION_CHECKBOX_NAME, job_id) for job_id in job_ids)]


# -- workers -----------------------------------------------------------------------------------------------------------


def _worker_alerts(site: AdminSite, facts: AlertFacts) -> Iterator[Alert]:
    """Yield why jobs wait for a worker: none is running, all of them are draining, or none handles their type."""
    url = list_url(site, Worker) if site.is_registered(Worker) else ""
    online = [worker for worker in facts.workers if is_online(worker, facts.now)]
    if facts.waiting and not online:
        message = ngettext(
            "No worker is running; %s job is waiting.", "No worker is running; %s jobs are waiting.", facts.waiting
        )
        yield Alert(message % format_count(facts.waiting), url, _("Show workers"), badge=_("No worker"))
    elif facts.waiting and not any(is_claiming(worker, facts.now) for worker in online):
        message = ngettext(
            "All workers are draining and start no jobs; %s job is waiting.",
            "All workers are draining and start no jobs; %s jobs are waiting.",
            facts.waiting,
        )
        names = [link(site, Worker, worker.pk, worker.name) or worker.name for worker in online]
        yield Alert(
            message % format_count(facts.waiting),
            url,
            _("Show workers"),
            is_bad=False,
            badge=_("Draining"),
            icon="‖",
            detail=join_names(names[:NAMES_SHOWN], len(names) - NAMES_SHOWN),
            since=min((worker.requested_at for worker in online if worker.requested_at), default=None),
        )
    elif facts.ready.unserved:
        yield _unserved_alert(site, facts.ready)
    if rows := [worker for worker in facts.workers if not is_online(worker, facts.now)]:
        silent = len(rows)
        message = ngettext(
            "%d worker has stopped sending heartbeats.", "%d workers have stopped sending heartbeats.", silent
        )
        names = [link(site, Worker, worker.pk, worker.name) or worker.name for worker in rows[:NAMES_SHOWN]]
        yield Alert(
            message % silent,
            f"{url}?present=0" if url else "",
            _("Show workers"),
            is_bad=False,
            badge=_("Worker"),
            detail=join_names(names, len(rows) - NAMES_SHOWN),
            since=min((worker.heartbeat_at for worker in rows), default=None),
        )
    if stuck := sum(worker.stuck for worker in online):
        message = ngettext(
            "%d slot is stuck in a job that ignores stop requests.",
            "%d slots are stuck in jobs that ignore stop requests.",
            stuck,
        )
        yield Alert(message % stuck, url, _("Show workers"), badge=_("Stuck"))


def _unserved_alert(site: AdminSite, ready: ReadyJobs) -> Alert:
    def build_url(job_type: str) -> str:
        return search_url(site, "type", job_type, attention="unserved")

    message = ngettext(
        "%s job has no worker that handles it.", "%s jobs have no worker that handles them.", ready.unserved
    )
    names = [
        format_html('<a href="{}">{} ({})</a>', build_url(name), isolate_text(name), format_count(jobs))
        for name, jobs in ready.unserved_types
    ]
    left = ready.unserved - sum(jobs for _name, jobs in ready.unserved_types)
    return Alert(
        message % format_count(ready.unserved),
        f"{list_url(site, Job)}?attention=unserved",
        _("Show jobs"),
        badge=_("No worker"),
        detail=join_names(names, left),
        since=ready.unserved_since,
    )


def _heartbeat_alerts(site: AdminSite) -> Iterator[Alert]:
    if missed := queries.count_expired_leases():
        message = ngettext(
            "%d running job has missed its heartbeat.", "%d running jobs have missed their heartbeat.", missed
        )
        url = f"{list_url(site, Job)}?attention=stuck"
        yield Alert(message % missed, url, ngettext("Show job", "Show jobs", missed), badge=_("Heartbeat"))


# -- figures -----------------------------------------------------------------------------------------------------------


def _failure_rate_alerts(site: AdminSite, facts: AlertFacts) -> Iterator[Alert]:
    """Compare the last hour with the rest of the day before it."""
    hour, earlier = facts.hour, facts.day - facts.hour
    failed, failed_earlier = hour[Status.FAILED], earlier[Status.FAILED]
    if failed < MIN_FAILURES:
        return
    usual_rate = failed_earlier / earlier.total() if earlier.total() else 0.0
    if failed / hour.total() > FAILURE_RATIO * usual_rate:
        params = {"failed": format_count(failed), "all": format_count(hour.total())}
        message = _("%(failed)s of %(all)s jobs failed in the last hour, more than usual.") % params
        url = f"{list_url(site, Job)}?{finished_query(facts.hour_start, status=str(Status.FAILED))}"
        detail = _("Usual: %s.") % format_percent(usual_rate)
        yield Alert(message, url, _("Show jobs"), badge=_("Failures"), icon="✗", detail=detail)


def _pause_alerts(site: AdminSite, request: HttpRequest, facts: AlertFacts) -> Iterator[Alert]:
    paused = [limit for limit in facts.limits if limit.paused]
    if not paused:
        return
    is_visible = site.is_registered(ConcurrencyLimit)
    url = f"{list_url(site, ConcurrencyLimit)}?paused=1" if is_visible else ""
    if any(limit.scope == LimitScope.GLOBAL for limit in paused):
        message = _("All jobs are paused.")
    elif all(limit.scope == LimitScope.RESOURCE for limit in paused):
        message = ngettext("%d resource is paused.", "%d resources are paused.", len(paused)) % len(paused)
    else:
        message = ngettext("%d limit is paused.", "%d limits are paused.", len(paused)) % len(paused)
    yield Alert(
        message,
        url,
        _("Review"),
        is_bad=any(limit.scope == LimitScope.GLOBAL for limit in paused),
        badge=_("Paused"),
        icon="‖",
        detail=join_names(
            [_describe_pause(limit, facts.now) for limit in paused[:NAMES_SHOWN]], len(paused) - NAMES_SHOWN
        ),
    )


def _describe_pause(limit: LimitState, now: datetime) -> SafeString:
    """Return the name, the reason, by whom and for how long."""
    name = limit.key if limit.scope == LimitScope.RESOURCE else f"{LimitScope(limit.scope).label} {limit.key}".strip()
    reason = format_html(_(" “{}”"), isolate_text(first_line(limit.reason, 80))) if limit.reason else ""
    age = format_duration(now - limit.paused_at) if limit.paused_at else ""
    by = ", ".join(part for part in (first_line(limit.paused_by, 60), age) if part)
    return format_html("{}{}{}", isolate_text(name), reason, format_html(" ({})", isolate_text(by)) if by else "")


def _late_start_alerts(site: AdminSite, facts: AlertFacts) -> Iterator[Alert]:
    oldest = facts.ready.oldest_at
    if oldest is not None and facts.now - oldest > LATE_AFTER:
        message = _("Oldest ready job: waiting %s.") % format_duration(facts.now - oldest)
        url = f"{list_url(site, Job)}?attention=late"
        yield Alert(message, url, _("Show jobs"), is_bad=False, badge=_("Late"), icon="◷")
