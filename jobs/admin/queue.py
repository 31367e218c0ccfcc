"""The queue as it will be worked off: the waiting jobs of one priority or one target, to be moved by hand."""

from __future__ import annotations

from functools import partial
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.contrib import messages
from django.contrib.admin import ModelAdmin
from django.db.models import Count
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs import actors, db, explain, ids
from jobs.admin.base import capped_count, log_history
from jobs.admin.formatting import first_line, link, short_id
from jobs.admin.screens import APP, latest_event, render, screen, url_of
from jobs.errors import JobSchedulerError
from jobs.models import Job
from jobs.models.expressions import sql_literals
from jobs.models.job import JobQuerySet
from jobs.services import jobs as job_services
from jobs.states import Status
from jobs.stats import queries
from jobs.stats.cache import RateLimitedCache

SHOWN, DEEPEST, FARTHEST = 100, 10_000, 20
REORDER = f"{APP}.reorder_job"


@screen("queue", gettext_lazy("Queue"))
def queue(admin: ModelAdmin, request: HttpRequest) -> HttpResponse:
    context = partial(_context, admin, request)
    return render(admin, request, "jobs/console/queue.html", context, title=_("Queue"), mark=latest_event())


def _context(admin: ModelAdmin, request: HttpRequest) -> dict[str, Any]:
    queue_url = url_of(admin.admin_site, "queue")
    queues = _kept.get(db.alias(), _count_queues, lambda found: sum(each["jobs"] for each in found))
    asked = _asked(request, queues)
    here = {name: asked[name] for name in ("tenant", "priority")}
    known = [each["jobs"] for each in queues if here.items() <= each.items()]
    rows, shown = _rows(admin, asked), []
    for each in queues[:FARTHEST]:
        place = {"tenant": each["tenant"], "priority": each["priority"]}
        is_current = not asked["target"] and place == here
        shown.append({**each, "url": f"{queue_url}?{urlencode(place)}", "is_current": is_current})
    next_url = _page(admin, asked, asked["from"] + SHOWN) if len(rows) > SHOWN else ""
    return {
        "queues": shown,
        "farthest": FARTHEST if len(queues) > FARTHEST else None,
        "asked": asked,
        # Known already, unless it is a target's or stands beyond the queues that are shown.
        "total": known[0] if known and not asked["target"] else capped_count(_jobs(asked)),
        "deepest": DEEPEST + SHOWN if len(rows) > SHOWN and not next_url else None,
        "rows": rows[:SHOWN],
        "may_move": request.user.has_perm(REORDER),
        "next_url": next_url,
        "first_url": _page(admin, asked, 0) if asked["from"] else "",
        "queue_url": queue_url,
    }


@screen("move", gettext_lazy("Move"), permission=REORDER, route="<uuid:job_id>/move/", methods=("POST",), listed=False)
def move(admin: ModelAdmin, request: HttpRequest, job_id: UUID) -> HttpResponse:
    """One move, and back to where it was asked for."""
    where: Any = {name: request.POST[name] for name in ("before", "after", "to") if request.POST.get(name)}
    reason = request.POST.get("reason", "").strip()
    try:
        job = job_services.move(job_id, **where, reason=reason, actor=actors.user(request.user))
    except JobSchedulerError as error:
        messages.error(request, str(error))
    else:
        log_history(request, [job], f"move {' '.join(where)}")
    back = {name: request.POST.get(name, "")[:200] for name in ("tenant", "priority", "target", "from")}
    told = urlencode({name: text for name, text in back.items() if text})
    return HttpResponseRedirect(f"{url_of(admin.admin_site, 'queue')}?{told}#job-{job_id}")


def _waiting() -> JobQuerySet:
    return Job.objects.filter(status__in=sql_literals([Status.PENDING, Status.QUEUED]))


_kept: RateLimitedCache[list[dict[str, Any]]] = RateLimitedCache()


def _count_queues() -> list[dict[str, Any]]:
    """Which tenants and priorities have jobs that wait, and how many: along the index of what waits."""
    counted: Any = _waiting().order_by("tenant", "-priority").values("tenant", "priority").annotate(jobs=Count("pk"))
    return list(counted[: FARTHEST + 1])


def _asked(request: HttpRequest, queues: list[dict[str, Any]]) -> dict[str, Any]:
    """What the address says, else the first queue that there is; what makes no sense there is as if not said."""
    get = request.GET
    first: dict[str, Any] = queues[0] if queues else {"tenant": "default", "priority": 50}
    tenant, target = get.get("tenant", "")[:64] or first["tenant"], get.get("target", "")[:200].replace("\0", "")
    own = next((each["priority"] for each in queues if each["tenant"] == tenant), first["priority"])
    priority = _number(get.get("priority", ""), own, 100)
    start = _number(get.get("from", ""), 0, DEEPEST)
    return {"tenant": tenant.replace("\0", ""), "priority": priority, "target": target, "from": start}


def _number(text: str, default: int, most: int) -> int:
    return min(int(text), most) if text.isascii() and text.isdigit() and len(text) < 9 else default


def _jobs(asked: dict[str, Any]) -> JobQuerySet:
    if not asked["target"]:
        return _waiting().filter(tenant=asked["tenant"], priority=asked["priority"])
    in_lane = Job.objects.filter(gate__in=sql_literals(queries.LANE_GATES))
    return in_lane.filter(lane_id=ids.lane_id(asked["tenant"], asked["target"]))


def _rows(admin: ModelAdmin, asked: dict[str, Any]) -> list[dict[str, Any]]:
    """One page in dispatch order, with one more before and after it: they are the neighbours of its ends."""
    start = max(asked["from"] - 1, 0)
    found = list(_jobs(asked).in_dispatch_order().defer("params", "checkpoint")[start : asked["from"] + SHOWN + 1])
    whys = explain.explain_briefly(found)
    rows = []
    for index, job in enumerate(found):
        before, after = _peer(found, index - 1, job), _peer(found, index + 1, job)
        shown = {"link": link(admin.admin_site, Job, job.pk, short_id(job.pk)), "type": first_line(job.job_type, 60)}
        moves = {"before": before, "after": after, "url": url_of(admin.admin_site, "move", job.pk)}
        rows.append({"job": job, "place": start + index + 1, "why": whys.get(job.pk, ""), **shown, **moves})
    return rows[asked["from"] - start :]


def _peer(jobs: list[Job], index: int, job: Job) -> Job | None:
    """The neighbour, if a job moves past it without changing its priority."""
    other = jobs[index] if 0 <= index < len(jobs) else None
    return other if other is not None and other.priority == job.priority else None


def _page(admin: ModelAdmin, asked: dict[str, Any], start: int) -> str:
    told = {name: value for name, value in {**asked, "from": start}.items() if value not in ("", None)}
    return f"{url_of(admin.admin_site, 'queue')}?{urlencode(told)}" if start <= DEEPEST else ""
