"""Audit: what people, tokens and commands did to jobs, newest first. A page looks through a bounded stretch of the
trail and says where it ended, so that it costs the same however long the trail is."""

from __future__ import annotations

from typing import Any

from django.contrib.admin import ModelAdmin
from django.db.models import Max
from django.http import HttpRequest, HttpResponse
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs.actors import ActorKind
from jobs.admin.console import APP, render, screen
from jobs.admin.showing import link, short_id
from jobs.models import Job, JobEvent
from jobs.models.audit import ACTOR_CHOICES
from jobs.states import EventKind

WHO = (ActorKind.USER, ActorKind.TOKEN, ActorKind.CLI)  # all others are the scheduler itself
SHOWN = 100
STRETCH = 20_000


@screen("audit", gettext_lazy("Audit"), permission=f"{APP}.view_jobevent")
def audit(admin: ModelAdmin, request: HttpRequest) -> HttpResponse:
    newest = _newest()
    top = min(_number(request.GET.get("before", "")) or newest + 1, newest + 1)
    bottom = max(top - STRETCH, 0)
    asked = _asked(request)
    rows = JobEvent.objects.filter(pk__lt=top, pk__gte=bottom)
    events = list(rows.filter(**asked).order_by("-pk").defer("data")[:SHOWN])
    reached = events[-1].pk if len(events) == SHOWN else bottom
    said: dict[str, Any] = {
        name: value for name in ("who", "name", "verb") if (value := request.GET.get(name, "")[:200])
    }
    context = {
        "events": [(event, link(admin.admin_site, Job, event.job_id, short_id(event.job_id))) for event in events],
        "older": f"?{urlencode({**said, 'before': reached})}" if reached > 1 else "",
        "stretch": STRETCH,
        "whos": [(kind, word, said.get("who") == kind) for kind, word in ACTOR_CHOICES if kind in WHO],
        "verbs": [(str(kind), said.get("verb") == kind) for kind in EventKind],
        "said": said,
    }
    return render(admin, request, "jobs/console/audit.html", context, title=_("Audit"))


def _asked(request: HttpRequest) -> dict[str, Any]:
    """What narrows it down; anything that is no choice of ours does not."""
    who, verb = request.GET.get("who", ""), request.GET.get("verb", "")
    found: dict[str, Any] = {"actor_kind__in": [who] if who in WHO else list(map(str, WHO))}
    if verb in set(EventKind):
        found["kind"] = verb
    if name := request.GET.get("name", "").replace("\0", "")[:200]:
        found["actor_name"] = name
    return found


def _number(text: str) -> int | None:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        return None
    return int(text) or None


def _newest() -> int:
    return JobEvent.objects.aggregate(last=Max("pk"))["last"] or 0
