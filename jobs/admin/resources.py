"""Resources on the dashboard: what waits and runs in each, and a switch to stop it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from django.contrib import messages
from django.contrib.admin import ModelAdmin
from django.contrib.admin.models import CHANGE, LogEntry
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs import actors, limits
from jobs.admin import plots
from jobs.admin.console import APP, screen, url_of
from jobs.admin.showing import first_line, list_url
from jobs.census import Census
from jobs.errors import JobSchedulerError
from jobs.limits import LimitState
from jobs.models import ConcurrencyLimit, Job
from jobs.registry import registry
from jobs.states import ACTIVE, Status

if TYPE_CHECKING:
    from django.utils.safestring import SafeString

CHANGE_LIMITS = f"{APP}.change_limits"
SHOWN = 50


@dataclass(frozen=True)
class Row:
    name: str
    url: str
    queued: int
    oldest: timedelta | None
    running: int
    in_use: int  # of its limit: with what was offered to remote workers
    most: int | None
    spark: SafeString
    is_paused: bool = False
    paused_by: str = ""
    paused_at: datetime | None = None
    reason: str = ""


def rows(admin: ModelAdmin, counted: Census, recent: Mapping[str, Sequence[int]]) -> list[Row]:
    """Every resource that has work, a limit or a handler; those with the most work first."""
    states = {each.key: each for each in limits.listing() if each.scope == "resource"}
    handled = {registry.get(name).options.resource or "default" for name in registry.names()}
    names = {*states, *handled, *(kind.resource for kind in counted.live), *recent} - {""}
    found = [_row(admin, name, counted, states.get(name), recent.get(name, [0] * 60)) for name in names]
    return sorted(found, key=lambda row: (-row.queued - row.running, row.name))[:SHOWN]


def _row(admin: ModelAdmin, name: str, counted: Census, state: LimitState | None, recent: Sequence[int]) -> Row:
    here = [kind for kind in counted.live if kind.resource == name]
    due = [kind.since for kind in here if kind.is_due]
    running = sum(kind.jobs for kind in here if kind.status == Status.RUNNING)
    in_use = sum(kind.jobs for kind in here if kind.status in ACTIVE)
    queued = sum(kind.jobs for kind in here if kind.is_queued and kind.status not in ACTIVE)
    oldest = timedelta(seconds=counted.age_sec(min(due))) if due else None
    label = _("%d jobs ended in the last 60 minutes") % sum(recent)
    quoted = quote('resource:"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"')
    url = f"{list_url(admin.admin_site, Job)}?q={quoted}"
    most, spark = state.max if state else None, plots.sparkline(recent, label)
    row = (name, url, queued, oldest, running, in_use, most, spark)
    if state is None or not state.paused:
        return Row(*row)
    return Row(*row, True, state.paused_by, state.paused_at, first_line(state.reason, 200))


@screen(
    "resource",
    gettext_lazy("Pause a resource"),
    permission=CHANGE_LIMITS,
    route="resource/<slug:verb>/",
    methods=("POST",),
    listed=False,
)
def switch(admin: ModelAdmin, request: HttpRequest, verb: str) -> HttpResponse:
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
        _log(request, key, f"{verb}: {reason}".rstrip(": "))
    return HttpResponseRedirect(url_of(admin.admin_site, "dashboard"))


def _log(request: HttpRequest, key: str, message: str) -> None:
    """In Django's own history too, where the limit has a row of its own."""
    found = list(ConcurrencyLimit.objects.filter(scope="resource", key=key))
    if found:
        user_id: Any = request.user.pk
        LogEntry.objects.log_actions(user_id, found, CHANGE, message)
