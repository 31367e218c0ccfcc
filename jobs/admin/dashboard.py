"""The dashboard: alerts, counts, resources, charts of recent activity, recent failures, and sections of other apps."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from urllib.parse import quote
from uuid import UUID

from django.contrib import messages
from django.contrib.admin import ModelAdmin
from django.db.models.functions import Left, Right
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs import actors
from jobs.admin import charts, screens
from jobs.admin.alerts import find_alerts
from jobs.admin.base import can_view_payload, log_history
from jobs.admin.charts import WINDOWS
from jobs.admin.columns import link, list_url, short_id
from jobs.admin.formatting import ICONS, first_line
from jobs.admin.limits import CHANGE_LIMITS
from jobs.admin.screens import APP, render, screen, screen_url
from jobs.errors import JobSchedulerError
from jobs.models import ConcurrencyLimit, Gate, Job, Worker
from jobs.models.expressions import sql_literals
from jobs.models.job import RARE_STATUSES, STATUS_LABELS
from jobs.payload_visibility import get_public_reason, summarize_traceback
from jobs.registry import registry
from jobs.services import limits
from jobs.services.limits import LimitState
from jobs.states import ACTIVE, Status
from jobs.stats import live_counts, queries
from jobs.stats.live_counts import JobCounts, LiveCount

RESOURCES_SHOWN, FAILURES_SHOWN = 50, 10
FAILURES_READ = 100
ERROR_TAIL = 2000  # characters of a traceback's end
ERROR_HEAD = 8000  # characters of its beginning, up to the first exception
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+)', re.MULTILINE)
_LIBRARY = re.compile(r"site-packages|dist-packages|/lib/python|<frozen")
DAY, HOUR = timedelta(days=1), timedelta(hours=1)
DashboardSection = Callable[[ModelAdmin, HttpRequest], "SafeString | None"]
_sections: list[DashboardSection] = []


def show_on_dashboard(section: DashboardSection) -> None:
    """Register a section of another app; it returns HTML, or None to show nothing."""
    if section not in _sections:
        _sections.append(section)


@screen("dashboard", gettext_lazy("Dashboard"))
def dashboard(admin: ModelAdmin, request: HttpRequest) -> HttpResponse:
    context = partial(_build_context, admin, request)
    version = screens.latest_event_id()
    return render(admin, request, "jobs/console/dashboard.html", context, title=_("Dashboard"), version=version)


def _build_context(admin: ModelAdmin, request: HttpRequest) -> dict[str, Any]:
    window = WINDOWS.get(request.GET.get("window", ""), WINDOWS["1h"])
    now, workers, states = timezone.now(), queries.count_workers(), limits.list_limits()
    counts = live_counts.count_busiest(RESOURCES_SHOWN, _find_paused_names(states))
    hour, day, site = charts.count_outcomes(HOUR, now), charts.count_outcomes(DAY, now), admin.admin_site
    can_view_workers = site.is_registered(Worker) and request.user.has_perm(f"{APP}.view_worker")
    slots = charts.load_slots(window, now)
    failures = group_failures(with_texts=can_view_payload(request))
    return {
        "alerts": list(find_alerts(site, request, counts, workers, hour, day)),
        "cards": _build_cards(admin, counts, day),
        "workers": workers,
        "workers_url": f"{list_url(site, Worker)}?present=1" if can_view_workers else "",
        "resources": build_resource_rows(admin, counts, states, now),
        "can_pause": request.user.has_perm(CHANGE_LIMITS),
        "pause_url": screen_url(site, "resource", "pause"),
        "resume_url": screen_url(site, "resource", "resume"),
        "is_new": not counts.all_rows,
        "window": window.name,
        "windows": list(WINDOWS),
        "throughput": charts.throughput_chart(slots, _find_deploys(slots[0].start)),
        "waits": charts.latency_chart(slots, "waits"),
        "runs": charts.latency_chart(slots, "runs"),
        "table": [(slot, _p95(slot.waits), _p95(slot.runs)) for slot in slots if slot.outcomes],
        "failures": [(group, link(site, Job, group.sample, short_id(group.sample))) for group in failures],
        "can_retry": request.user.has_perm(f"{APP}.retry_job"),
        "list_url": list_url(site, Job),
        "sections": [html for section in _sections if (html := section(admin, request)) is not None],
    }


def _build_cards(admin: ModelAdmin, counts: JobCounts, day: Any) -> list[dict[str, Any]]:
    """Return the cards; the number on each links to the list that it counts."""
    by_status, jobs_url = counts.by_status(), list_url(admin.admin_site, Job)
    timed = sum(count.jobs for count in counts.live if count.gate == Gate.TIME)
    blocking = queries.count_blocked_targets()

    def card(title: Any, icon: str, count: int, query: str) -> dict[str, Any]:
        return {"title": title, "icon": icon, "count": count, "url": f"{jobs_url}?{query}"}

    live = (Status.QUEUED, Status.RUNNING, Status.PAUSED, Status.PENDING)
    cards = [card(STATUS_LABELS[status], ICONS[status], by_status[status], f"status={status}") for status in live]
    cards.insert(1, card(_("Wait for their time"), "◷", timed, "attention=timed"))
    cards.append(card(_("Block a target"), "⊗", blocking, "attention=blocking"))
    for status in (Status.COMPLETED, Status.FAILED):
        title = _("%s (24 h)") % STATUS_LABELS[status]
        cards.append(card(title, ICONS[status], day[status], f"status={status}&ended=24h"))
    return cards


def _find_deploys(since: datetime) -> list[tuple[datetime, str]]:
    """Return when a worker started with another version than the one before it, and a text for each."""
    workers = Worker.objects.filter(started_at__gte=since).order_by("-started_at")
    deploys, last_version = [], None
    for started_at, version in reversed(workers.values_list("started_at", "version")[:200]):
        if version and version != last_version:
            deploys.append((started_at, _("A worker of version %s was started") % version))
        last_version = version or last_version
    return deploys


def _p95(buckets: Mapping[int, int]) -> str:
    bucket = charts.percentile(buckets, 0.95)
    return "" if bucket is None else charts.format_bucket(bucket)


@dataclass(frozen=True)
class ResourceRow:
    name: str
    url: str
    queued: int
    oldest: timedelta | None
    running: int
    in_use: int  # of its limit, with offers to remote workers
    spark: SafeString
    limit: LimitState
    reason: str  # why it is paused


def _find_paused_names(states: Iterable[LimitState]) -> dict[str, set[str]]:
    """Return the names that have a paused limit, by column: alerts ignore the jobs that wait for one."""
    columns = {"resource": "resource", "job_type": "job_type", "addon": "addon_id"}
    names: dict[str, set[str]] = {column: set() for column in columns.values()}
    for state in states:
        if state.paused and state.scope in columns:
            names[columns[state.scope]].add(state.key)
    return names


def build_resource_rows(
    admin: ModelAdmin, counts: JobCounts, states: Iterable[LimitState], now: datetime
) -> list[ResourceRow]:
    """Return the resources that have jobs, a limit or a handler, those with the most jobs first."""
    limit_of = {state.key: state for state in states if state.scope == "resource"}
    live: dict[str, list[LiveCount]] = {}
    for count in counts.live:
        live.setdefault(count.resource, []).append(count)
    handled = {registry.get(name).options.resource or "default" for name in registry.names()}
    names = {*limit_of, *handled, *live, *charts.list_active_resources(now, RESOURCES_SHOWN)} - {""}
    busy: Counter[str] = Counter()
    for count in counts.live:
        busy[count.resource] += count.jobs if count.status in (Status.QUEUED, Status.RUNNING) else 0
    shown = sorted(names, key=lambda name: (-busy[name], name))[:RESOURCES_SHOWN]
    ended = charts.count_by_resource(now, shown)
    jobs_url = list_url(admin.admin_site, Job)
    return [_build_resource_row(name, jobs_url, counts, live.get(name, ()), limit_of, ended[name]) for name in shown]


def _build_resource_row(
    name: str,
    jobs_url: str,
    counts: JobCounts,
    live: Sequence[LiveCount],
    limit_of: Mapping[str, LimitState],
    ended: Sequence[int],
) -> ResourceRow:
    """Return the row of one resource; `ended` has its ended jobs by minute."""
    due = [count.since for count in live if count.is_due]
    limit = limit_of.get(name) or LimitState("resource", name, max=None, in_use=0)
    quoted = quote('resource:"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"')
    return ResourceRow(
        name,
        f"{jobs_url}?q={quoted}",
        queued=sum(count.jobs for count in live if count.status == Status.QUEUED),
        oldest=timedelta(seconds=counts.age_sec(min(due))) if due else None,
        running=sum(count.jobs for count in live if count.status == Status.RUNNING),
        in_use=sum(count.jobs for count in live if count.status in ACTIVE),
        spark=charts.sparkline(ended, _("%d jobs ended in the last 60 minutes") % sum(ended)),
        limit=limit,
        reason=first_line(limit.reason, 200),
    )


@screen(
    "resource",
    gettext_lazy("Pause a resource"),
    permission=CHANGE_LIMITS,
    route="resource/<slug:verb>/",
    methods=("POST",),
    listed=False,
)
def switch_resource(admin: ModelAdmin, request: HttpRequest, verb: str) -> HttpResponse:
    """Pause or resume one resource. Running jobs continue; a paused resource starts no more jobs."""
    key, actor = request.POST.get("key", ""), actors.make_user_actor(request.user)
    if verb not in ("pause", "resume"):
        raise Http404
    reason = request.POST.get("reason", "").strip()
    try:
        if verb == "pause":
            limits.pause("resource", key, reason=reason, actor=actor)
            messages.success(request, _("Resource %s is paused; what runs goes on.") % key)
        else:
            limits.unpause("resource", key, actor=actor)
            messages.success(request, _("Resource %s goes on.") % key)
    except JobSchedulerError as error:
        messages.error(request, str(error))
    else:
        # Django's own history needs a row; a limit of the settings may have none.
        rows = list(ConcurrencyLimit.objects.filter(scope="resource", key=key))
        log_history(request, rows, f"{verb}: {reason}".rstrip(": "))
    return HttpResponseRedirect(screen_url(admin.admin_site, "dashboard"))


@dataclass
class FailureGroup:
    """Failures of one job type with the same error at the same line; the sample is the newest one."""

    job_type: str
    error: str
    location: str
    sample: UUID
    last_at: datetime | None
    job_ids: list[UUID] = field(default_factory=list)


def group_failures(*, with_texts: bool) -> list[FailureGroup]:
    """Group the last failures that were neither retried nor resolved; one statement along their own index.

    Without texts, nothing that a handler wrote is part of a group.
    """
    failed = Job.objects.filter(status__in=sql_literals(RARE_STATUSES), status=Status.FAILED)
    unhandled = failed.filter(resolved_at__isnull=True, retried_by__isnull=True)
    columns = ("pk", "job_type", "status", "status_reason", "remote", "dispatched_at", "run__finished_at")
    text = Right("run__error", ERROR_TAIL) if with_texts else Left("run__error", ERROR_HEAD)
    rows = unhandled.order_by("-pk").annotate(text=text).values_list(*columns, "text", named=True)
    groups: dict[tuple[str, str, str], FailureGroup] = {}
    for job in rows[:FAILURES_READ]:
        error, location = parse_error(job.text or job.status_reason) if with_texts else hide_error(job)
        key = (job.job_type, error, location)
        groups.setdefault(key, FailureGroup(*key, job.pk, job.run__finished_at)).job_ids.append(job.pk)
    return sorted(groups.values(), key=lambda group: -len(group.job_ids))[:FAILURES_SHOWN]


def hide_error(job: Any) -> tuple[str, str]:
    """Return the class and the place of an exception, or the reason of the scheduler itself."""
    error_class, place = ("", "") if job.remote else summarize_traceback(job.text or "")
    return error_class or get_public_reason(job) or _("no words"), place


def parse_error(text: str) -> tuple[str, str]:
    """Return the error's class (or the start of its last line), and the innermost frame outside of libraries."""
    lines = [line for line in text.splitlines() if line.strip()]
    last_line = lines[-1] if lines else ""
    error_class = re.match(r"[\w.]+(?=:|$)", last_line)
    frames = [frame for frame in _FRAME.finditer(text) if not _LIBRARY.search(frame["file"])]
    location = f"{frames[-1]['file'].rpartition('/')[2]}:{frames[-1]['line']}" if frames else ""
    return (error_class[0] if error_class else first_line(last_line, 60)) or _("no words"), location
