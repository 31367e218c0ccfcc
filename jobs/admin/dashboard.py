"""The dashboard: what needs somebody, what goes on, what was lately, and what comes next."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from urllib.parse import quote
from uuid import UUID

from django.contrib import messages
from django.contrib.admin import ModelAdmin
from django.db.models import CharField, F
from django.db.models.functions import Coalesce, Right
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs import actors
from jobs.admin import charts, screens
from jobs.admin.alerts import find_alerts
from jobs.admin.base import log_history
from jobs.admin.charts import WINDOWS, ChartSlot
from jobs.admin.formatting import ICONS, first_line, link, list_url, short_id
from jobs.admin.screens import APP, render, screen, screen_url
from jobs.errors import JobSchedulerError
from jobs.models import ConcurrencyLimit, Gate, Job, Worker
from jobs.models.expressions import sql_literals
from jobs.models.job import RARE_STATUSES, STATUS_LABELS
from jobs.registry import registry
from jobs.services import limits
from jobs.services.limits import LimitState
from jobs.states import ACTIVE, Status
from jobs.stats import live_counts, queries
from jobs.stats.live_counts import JobCounts

CHANGE_LIMITS = f"{APP}.change_limits"
RESOURCES_SHOWN, FAILURES_SHOWN = 50, 10  # shown at most
FAILURES_READ, ERROR_TAIL = 100, 2000
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+)', re.MULTILINE)
_LIBRARY = re.compile(r"site-packages|dist-packages|/lib/python|<frozen")
DAY, HOUR = timedelta(days=1), timedelta(hours=1)
DashboardSection = Callable[[ModelAdmin, HttpRequest], "SafeString | None"]
_sections: list[DashboardSection] = []


def show_on_dashboard(section: DashboardSection) -> None:
    """Register what another app shows there: HTML, or None where there is nothing to show."""
    if section not in _sections:
        _sections.append(section)


@screen("dashboard", gettext_lazy("Dashboard"))
def dashboard(admin: ModelAdmin, request: HttpRequest) -> HttpResponse:
    context = partial(_build_context, admin, request)
    version = screens.latest_event_id()
    return render(admin, request, "jobs/console/dashboard.html", context, title=_("Dashboard"), version=version)


def _build_context(admin: ModelAdmin, request: HttpRequest) -> dict[str, Any]:
    window = WINDOWS.get(request.GET.get("window", ""), WINDOWS["1h"])
    now, counted, force = timezone.now(), live_counts.count_jobs(), queries.count_workers()
    hour, day, site = charts.count_outcomes(HOUR, now), charts.count_outcomes(DAY, now), admin.admin_site
    may_see_workers = site.is_registered(Worker) and request.user.has_perm(f"{APP}.view_worker")
    slots = charts.load_slots(window, now)
    return {
        "alerts": list(find_alerts(site, request, counted, force, hour, day)),
        "cards": _build_cards(admin, counted, day),
        "workforce": force,
        "workers_url": f"{list_url(site, Worker)}?present=1" if may_see_workers else "",
        "resources": build_resource_rows(admin, counted, charts.count_by_resource(now)),
        "may_pause": request.user.has_perm(CHANGE_LIMITS),
        "pause_url": screen_url(site, "resource", "pause"),
        "resume_url": screen_url(site, "resource", "resume"),
        "is_new": not counted.all_rows,
        "window": window.name,
        "windows": list(WINDOWS),
        "throughput": charts.throughput_chart(slots, _find_deploys(slots[0].start)),
        "waits": charts.latency_chart(slots, "waits"),
        "runs": charts.latency_chart(slots, "runs"),
        "table": [_table_row(slot) for slot in slots if slot.outcomes],
        "total": sum((slot.outcomes for slot in slots), Counter()),
        "failures": [
            (alike, link(site, Job, alike.sample, short_id(alike.sample))) for alike in group_recent_failures()
        ],
        "may_retry": request.user.has_perm(f"{APP}.retry_job"),
        "list_url": list_url(site, Job),
        "sections": [html for section in _sections if (html := section(admin, request)) is not None],
    }


def _build_cards(admin: ModelAdmin, counted: JobCounts, day: Any) -> list[dict[str, Any]]:
    """Each number is a link to the list that it counts."""
    statuses, jobs = counted.by_status(), list_url(admin.admin_site, Job)
    timed = sum(kind.jobs for kind in counted.live if kind.gate == Gate.TIME)
    live_ones = (Status.QUEUED, Status.RUNNING, Status.PAUSED, Status.PENDING)
    cards = [
        {"title": STATUS_LABELS[each], "icon": ICONS[each], "count": statuses[each], "url": f"{jobs}?status={each}"}
        for each in live_ones
    ]
    cards.insert(1, {"title": _("Wait for their time"), "icon": "◷", "count": timed, "url": f"{jobs}?attention=timed"})
    blocking = queries.count_blocked_targets()
    cards.append({"title": _("Block a target"), "icon": "⊗", "count": blocking, "url": f"{jobs}?attention=blocking"})
    for each in (Status.COMPLETED, Status.FAILED):
        title = _("%s (24 h)") % STATUS_LABELS[each]
        url = f"{jobs}?status={each}&ended=24h"
        cards.append({"title": title, "icon": ICONS[each], "count": day[each], "url": url})
    return cards


def _find_deploys(since: datetime) -> list[tuple[datetime, str]]:
    """When a worker of another version than the one before it was started."""
    workers = Worker.objects.filter(started_at__gte=since).order_by("-started_at")
    found, version = [], None
    for started_at, name in reversed(workers.values_list("started_at", "version")[:200]):
        if name and name != version:
            found.append((started_at, _("A worker of version %s was started") % name))
        version = name or version
    return found


def _table_row(slot: ChartSlot) -> dict[str, Any]:
    shown = {"start": slot.start, "completed": slot.completed, "failed": slot.failed, "others": slot.others}
    for name, buckets in (("waits", slot.waits), ("runs", slot.runs)):
        bucket = charts.percentile(buckets, 0.95)
        shown[name] = "" if bucket is None else charts.format_bucket(bucket)
    return shown


@dataclass(frozen=True)
class ResourceRow:
    name: str
    url: str
    queued: int
    oldest: timedelta | None
    running: int
    in_use: int  # of its limit: with what was offered to remote workers
    spark: SafeString
    limit: LimitState
    reason: str  # why it is paused


def build_resource_rows(
    admin: ModelAdmin, counted: JobCounts, recent: Mapping[str, Sequence[int]]
) -> list[ResourceRow]:
    """Every resource that has work, a limit or a handler; those with the most work first."""
    states = {state.key: state for state in limits.listing() if state.scope == "resource"}
    handled = {registry.get(name).options.resource or "default" for name in registry.names()}
    names = {*states, *handled, *(kind.resource for kind in counted.live), *recent} - {""}
    rows = []
    for name in names:
        here = [kind for kind in counted.live if kind.resource == name]
        due = [kind.since for kind in here if kind.is_due]
        ended = recent.get(name, [0] * 60)
        limit = states.get(name) or LimitState("resource", name, max=None, in_use=0)
        quoted = quote('resource:"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"')
        row = ResourceRow(
            name,
            f"{list_url(admin.admin_site, Job)}?q={quoted}",
            queued=sum(kind.jobs for kind in here if kind.is_queued and kind.status not in ACTIVE),
            oldest=timedelta(seconds=counted.age_sec(min(due))) if due else None,
            running=sum(kind.jobs for kind in here if kind.status == Status.RUNNING),
            in_use=sum(kind.jobs for kind in here if kind.status in ACTIVE),
            spark=charts.sparkline(ended, _("%d jobs ended in the last 60 minutes") % sum(ended)),
            limit=limit,
            reason=first_line(limit.reason, 200),
        )
        rows.append(row)
    return sorted(rows, key=lambda row: (-row.queued - row.running, row.name))[:RESOURCES_SHOWN]


@screen(
    "resource",
    gettext_lazy("Pause a resource"),
    permission=CHANGE_LIMITS,
    route="resource/<slug:verb>/",
    methods=("POST",),
    listed=False,
)
def switch_resource(admin: ModelAdmin, request: HttpRequest, verb: str) -> HttpResponse:
    """Pause or resume one resource: what runs goes on, nothing more of it starts."""
    key, actor = request.POST.get("key", ""), actors.user(request.user)
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
        # In Django's own history too, where the limit has a row of its own.
        found = list(ConcurrencyLimit.objects.filter(scope="resource", key=key))
        log_history(request, found, f"{verb}: {reason}".rstrip(": "))
    return HttpResponseRedirect(screen_url(admin.admin_site, "dashboard"))


@dataclass
class FailureGroup:
    """Failures of one kind; the newest one is the sample."""

    job_type: str
    error: str
    place: str
    sample: UUID
    last_at: datetime | None
    job_ids: list[UUID] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.job_ids)


def group_recent_failures() -> list[FailureGroup]:
    """Of the last 100 failures that nobody has retried or resolved, in one statement along their own index."""
    failed = Job.objects.filter(status__in=sql_literals(RARE_STATUSES), status=Status.FAILED)
    open_ones = failed.filter(resolved_at__isnull=True, retried_by__isnull=True)
    tail = Coalesce(Right("run__error", ERROR_TAIL), F("status_reason"), output_field=CharField())
    rows = open_ones.order_by("-pk").values_list("pk", "job_type", "status_reason", "run__finished_at", tail)
    found: dict[tuple[str, str, str], FailureGroup] = {}
    for pk, job_type, reason, at, text in rows[:FAILURES_READ]:
        kind = (job_type, *parse_error(text or reason))
        alike = found.setdefault(kind, FailureGroup(*kind, pk, at))
        alike.job_ids.append(pk)
    return sorted(found.values(), key=lambda each: -each.count)[:FAILURES_SHOWN]


def parse_error(text: str) -> tuple[str, str]:
    """The error's class (or its first words), and the innermost frame that is not a library's."""
    lines = [line for line in text.splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    named = re.match(r"[\w.]+(?=:|$)", last)
    frames = [frame for frame in _FRAME.finditer(text) if not _LIBRARY.search(frame["file"])]
    place = f"{frames[-1]['file'].rpartition('/')[2]}:{frames[-1]['line']}" if frames else ""
    return (named[0] if named else first_line(last, 60)) or _("no words"), place
