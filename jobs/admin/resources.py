"""The resources of the overview: what waits and runs in each, its limit and recent jobs; and its pause."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.contrib import messages
from django.contrib.admin import ModelAdmin
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs import actors
from jobs.admin import charts
from jobs.admin.base import log_history
from jobs.admin.columns import search_url
from jobs.admin.formatting import first_line, format_count, format_percent
from jobs.admin.limits import can_pause_resources
from jobs.admin.screens import render, screen, screen_url
from jobs.admin.windows import Trend, Window, list_active_resources, load_trends
from jobs.errors import JobSchedulerError
from jobs.models import ConcurrencyLimit
from jobs.registry import registry
from jobs.services import jobs as job_services
from jobs.services import limits
from jobs.services.limits import LimitState
from jobs.states import ACTIVE, Status
from jobs.stats.live_counts import JobCounts, LiveCount

RESOURCES_SHOWN = 50


@dataclass(frozen=True)
class ResourceRow:
    name: str
    url: str
    queued: int
    oldest: timedelta | None  # how long the first of its ready jobs has waited
    running: int
    in_use: int  # of its limit, with offers to remote workers
    trend: Trend
    spark: SafeString
    finished_url: str
    failed_url: str
    limit: LimitState
    reason: str  # why it is paused

    @property
    def failed_percent(self) -> str:
        """The failed share of the finished jobs of the window."""
        return format_percent(self.trend.failed_total / self.trend.total) if self.trend.total else "–"


def find_paused_names(states: Iterable[LimitState]) -> dict[str, set[str]]:
    """Return the names that have a paused limit, by column: alerts ignore the jobs that wait for one."""
    columns = {"resource": "resource", "job_type": "job_type", "addon": "addon_id"}
    names: dict[str, set[str]] = {column: set() for column in columns.values()}
    for state in states:
        if state.paused and state.scope in columns:
            names[columns[state.scope]].add(state.key)
    return names


def build_resource_rows(
    admin: ModelAdmin, counts: JobCounts, states: Iterable[LimitState], window: Window, now: datetime
) -> list[ResourceRow]:
    """Return the resources that have jobs, a limit or a handler, those with the most jobs first."""
    limit_of = {state.key: state for state in states if state.scope == "resource"}
    live: dict[str, list[LiveCount]] = {}
    for count in counts.live:
        live.setdefault(count.resource, []).append(count)
    handled = {registry.get(name).options.resource or "default" for name in registry.names()}
    start = window.starts(now)[0]
    names = {*limit_of, *handled, *live, *list_active_resources(start, RESOURCES_SHOWN)} - {""}
    busy: Counter[str] = Counter()
    for count in counts.live:
        busy[count.resource] += count.jobs if count.status in (Status.QUEUED, Status.RUNNING) else 0
    shown = sorted(names, key=lambda name: (-busy[name], name))[:RESOURCES_SHOWN]
    trends = load_trends("resource", shown, window, now)
    peak = max((jobs for trend in trends.values() for jobs in trend.finished), default=0)
    urls = {name: search_url(admin.admin_site, "resource", name) for name in shown}
    return [
        _build_row(name, urls[name], counts, live.get(name, ()), limit_of, trends[name], peak, start) for name in shown
    ]


def _build_row(
    name: str,
    url: str,
    counts: JobCounts,
    live: Sequence[LiveCount],
    limit_of: Mapping[str, LimitState],
    trend: Trend,
    peak: int,
    start: datetime,
) -> ResourceRow:
    due = [count.since for count in live if count.is_due]
    limit = limit_of.get(name) or LimitState("resource", name, max=None, in_use=0)
    params = {"finished": format_count(trend.total), "failed": format_count(trend.failed_total)}
    return ResourceRow(
        name,
        url,
        queued=sum(count.jobs for count in live if count.status == Status.QUEUED),
        oldest=timedelta(seconds=counts.age_sec(min(due))) if due else None,
        running=sum(count.jobs for count in live if count.status == Status.RUNNING),
        in_use=sum(count.jobs for count in live if count.status in ACTIVE),
        trend=trend,
        spark=charts.sparkline(
            trend.finished, trend.failed, peak, _("%(finished)s finished, %(failed)s failed") % params
        ),
        finished_url=f"{url}&{charts.finished_query(start)}",
        failed_url=f"{url}&{charts.finished_query(start, status=str(Status.FAILED))}",
        limit=limit,
        reason=first_line(limit.reason, 200),
    )


@screen(
    "resource",
    gettext_lazy("Pause a resource"),
    route="resource/<slug:verb>/",
    methods=("GET", "HEAD", "POST"),
    listed=False,
)
def switch_resource(admin: ModelAdmin, request: HttpRequest, verb: str) -> HttpResponse:
    """Pause or resume one resource. Running jobs continue; a paused resource starts no more jobs.

    A GET asks for the reason of a pause and changes nothing.
    """
    if not can_pause_resources(request):
        raise PermissionDenied
    if verb not in ("pause", "resume"):
        raise Http404
    overview_url = screen_url(admin.admin_site, "overview")
    if request.method != "POST":
        return _ask_for_reason(admin, request, overview_url) if verb == "pause" else HttpResponseRedirect(overview_url)
    key, actor = request.POST.get("key", ""), actors.make_user_actor(request.user)
    reason = request.POST.get("reason", "").strip()
    try:
        if verb == "pause":
            limits.pause("resource", key, reason=reason, actor=actor)
            messages.success(request, _("%s paused. Running jobs continue.") % key)
        else:
            limits.unpause("resource", key, actor=actor)
            messages.success(request, _("%s resumed.") % key)
    except JobSchedulerError as error:
        messages.error(request, str(error))
    else:
        # Django's own history needs a row; a limit of the settings may have none.
        rows = list(ConcurrencyLimit.objects.filter(scope="resource", key=key))
        log_history(request, rows, f"{verb}: {reason}".rstrip(": "))
    return HttpResponseRedirect(overview_url)


def _ask_for_reason(admin: ModelAdmin, request: HttpRequest, overview_url: str) -> HttpResponse:
    context: dict[str, Any] = {
        "key": request.GET.get("key", "")[:200],
        "reason_length": job_services.REASON_LENGTH,
        "action_url": screen_url(admin.admin_site, "resource", "pause"),
        "overview_url": overview_url,
    }
    return render(admin, request, "jobs/console/pause_resource.html", context, title=_("Pause a resource"))
