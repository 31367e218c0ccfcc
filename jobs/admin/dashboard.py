"""The dashboard: what needs somebody, what goes on, what was lately, and what comes next."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.contrib.admin import ModelAdmin
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs import census, figures
from jobs.admin import live, plots, rollups
from jobs.admin.alerts import alerts
from jobs.admin.console import APP, render, screen, url_of
from jobs.admin.failures import recent
from jobs.admin.marks import ICONS
from jobs.admin.resources import CHANGE_LIMITS, rows
from jobs.admin.rollups import WINDOWS, Slot, Window
from jobs.admin.showing import link, list_url, short_id
from jobs.census import Census
from jobs.models import Gate, Job, Worker
from jobs.models.job import STATUS_LABELS
from jobs.states import Status

if TYPE_CHECKING:
    from django.utils.safestring import SafeString

DAY, HOUR = timedelta(days=1), timedelta(hours=1)
Section = Callable[[ModelAdmin, HttpRequest], "SafeString | None"]
_sections: list[Section] = []


def show_on_dashboard(section: Section) -> None:
    """Register what another app shows there: HTML, or None where there is nothing to show."""
    if section not in _sections:
        _sections.append(section)


@screen("dashboard", gettext_lazy("Dashboard"))
def dashboard(admin: ModelAdmin, request: HttpRequest) -> HttpResponse:
    if live.is_unchanged(request, mark := live.latest_event()):
        return live.not_modified(request, mark)
    window = WINDOWS.get(request.GET.get("window", ""), WINDOWS["1h"])
    context = {**_now(admin, request), **_lately(admin, request, window)}
    context["sections"] = [html for section in _sections if (html := section(admin, request)) is not None]
    return render(admin, request, "jobs/console/dashboard.html", context, title=_("Dashboard"), mark=mark)


def _now(admin: ModelAdmin, request: HttpRequest) -> dict[str, Any]:
    now, counted, force = timezone.now(), census.take(), figures.workforce()
    hour, day = rollups.ended(HOUR, now), rollups.ended(DAY, now)
    return {
        "alerts": alerts(admin.admin_site, request, counted, force, hour, day),
        "cards": _cards(admin, counted, day),
        "workforce": force,
        "workers_url": _workers_url(admin, request),
        "resources": rows(admin, counted, rollups.per_resource(now)),
        "may_pause": request.user.has_perm(CHANGE_LIMITS),
        "pause_url": url_of(admin.admin_site, "resource", "pause"),
        "resume_url": url_of(admin.admin_site, "resource", "resume"),
        "is_new": not counted.ever,
    }


def _workers_url(admin: ModelAdmin, request: HttpRequest) -> str:
    is_shown = admin.admin_site.is_registered(Worker) and request.user.has_perm(f"{APP}.view_worker")
    return f"{list_url(admin.admin_site, Worker)}?present=1" if is_shown else ""


def _lately(admin: ModelAdmin, request: HttpRequest, window: Window) -> dict[str, Any]:
    now = timezone.now()
    slots = rollups.slots(window, now)
    return {
        "window": window.name,
        "windows": list(WINDOWS),
        "throughput": plots.throughput(slots, _deploys(slots[0].start)),
        "waits": plots.latency(slots, "waits"),
        "runs": plots.latency(slots, "runs"),
        "table": [_numbers(slot) for slot in slots if slot.outcomes],
        "total": rollups.total(slots),
        "failures": [(each, link(admin.admin_site, Job, each.sample, short_id(each.sample))) for each in recent()],
        "may_retry": request.user.has_perm(f"{APP}.retry_job"),
        "list_url": list_url(admin.admin_site, Job),
    }


def _cards(admin: ModelAdmin, counted: Census, day: Any) -> list[dict[str, Any]]:
    """Each number is a link to the list that it counts."""
    statuses, jobs = counted.statuses(), list_url(admin.admin_site, Job)
    timed = sum(kind.jobs for kind in counted.live if kind.gate == Gate.TIME)
    live_ones = (Status.QUEUED, Status.RUNNING, Status.PAUSED, Status.PENDING)
    cards = [
        {"title": STATUS_LABELS[each], "icon": ICONS[each], "count": statuses[each], "url": f"{jobs}?status={each}"}
        for each in live_ones
    ]
    cards.insert(1, {"title": _("Wait for their time"), "icon": "◷", "count": timed, "url": f"{jobs}?attention=timed"})
    blocking = figures.blocked_targets()
    cards.append({"title": _("Block a target"), "icon": "⊗", "count": blocking, "url": f"{jobs}?attention=blocking"})
    for each in (Status.COMPLETED, Status.FAILED):
        title = _("%s (24 h)") % STATUS_LABELS[each]
        url = f"{jobs}?status={each}&ended=24h"
        cards.append({"title": title, "icon": ICONS[each], "count": day[each], "url": url})
    return cards


def _deploys(since: datetime) -> list[tuple[datetime, str]]:
    """When a worker of another version than the one before it was started."""
    workers = Worker.objects.filter(started_at__gte=since).order_by("-started_at")
    found, version = [], None
    for started_at, name in reversed(workers.values_list("started_at", "version")[:200]):
        if name and name != version:
            found.append((started_at, _("A worker of version %s was started") % name))
        version = name or version
    return found


def _numbers(slot: Slot) -> dict[str, Any]:
    shown = {"start": slot.start, "completed": slot.completed, "failed": slot.failed, "others": slot.others}
    for name, buckets in (("waits", slot.waits), ("runs", slot.runs)):
        bucket = rollups.percentile(buckets, 0.95)
        shown[name] = "" if bucket is None else rollups.bound(bucket)
    return shown
