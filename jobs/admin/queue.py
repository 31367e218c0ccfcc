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
from jobs.admin.base import count_capped, log_history
from jobs.admin.formatting import first_line, link, short_id
from jobs.admin.screens import APP, latest_event_id, render, screen, screen_url
from jobs.errors import JobSchedulerError
from jobs.models import Job
from jobs.models.expressions import sql_literals
from jobs.models.job import JobQuerySet
from jobs.services import jobs as job_services
from jobs.states import Status
from jobs.stats import queries
from jobs.stats.cache import RateLimitedCache

PAGE_SIZE, MAX_OFFSET, QUEUES_SHOWN = 100, 10_000, 20
REORDER = f"{APP}.reorder_job"


@screen("queue", gettext_lazy("Queue"))
def queue(admin: ModelAdmin, request: HttpRequest) -> HttpResponse:
    context = partial(_build_context, admin, request)
    return render(admin, request, "jobs/console/queue.html", context, title=_("Queue"), version=latest_event_id())


def _build_context(admin: ModelAdmin, request: HttpRequest) -> dict[str, Any]:
    queue_url = screen_url(admin.admin_site, "queue")
    queues = _queue_cache.get(db.alias(), _count_queues, lambda found: sum(each["jobs"] for each in found))
    asked = _parse_filters(request, queues)
    here = {name: asked[name] for name in ("tenant", "priority")}
    known = [each["jobs"] for each in queues if here.items() <= each.items()]
    rows, shown = _load_rows(admin, asked), []
    for each in queues[:QUEUES_SHOWN]:
        place = {"tenant": each["tenant"], "priority": each["priority"]}
        is_current = not asked["target"] and place == here
        shown.append({**each, "url": f"{queue_url}?{urlencode(place)}", "is_current": is_current})
    next_url = _page_url(admin, asked, asked["from"] + PAGE_SIZE) if len(rows) > PAGE_SIZE else ""
    return {
        "queues": shown,
        "farthest": QUEUES_SHOWN if len(queues) > QUEUES_SHOWN else None,
        "asked": asked,
        # Known already, unless it is a target's or stands beyond the queues that are shown.
        "total": known[0] if known and not asked["target"] else count_capped(_filter_jobs(asked)),
        "deepest": MAX_OFFSET + PAGE_SIZE if len(rows) > PAGE_SIZE and not next_url else None,
        "rows": rows[:PAGE_SIZE],
        "may_move": request.user.has_perm(REORDER),
        "next_url": next_url,
        "first_url": _page_url(admin, asked, 0) if asked["from"] else "",
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
    return HttpResponseRedirect(f"{screen_url(admin.admin_site, 'queue')}?{told}#job-{job_id}")


def _waiting() -> JobQuerySet:
    return Job.objects.filter(status__in=sql_literals([Status.PENDING, Status.QUEUED]))


_queue_cache: RateLimitedCache[list[dict[str, Any]]] = RateLimitedCache()


def _count_queues() -> list[dict[str, Any]]:
    """Which tenants and priorities have jobs that wait, and how many: along the index of what waits."""
    counted: Any = _waiting().order_by("tenant", "-priority").values("tenant", "priority").annotate(jobs=Count("pk"))
    return list(counted[: QUEUES_SHOWN + 1])


def _parse_filters(request: HttpRequest, queues: list[dict[str, Any]]) -> dict[str, Any]:
    """What the address says, else the first queue that there is; what makes no sense there is as if not said."""
    get = request.GET
    first: dict[str, Any] = queues[0] if queues else {"tenant": "default", "priority": 50}
    tenant, target = get.get("tenant", "")[:64] or first["tenant"], get.get("target", "")[:200].replace("\0", "")
    own = next((each["priority"] for each in queues if each["tenant"] == tenant), first["priority"])
    priority = _parse_number(get.get("priority", ""), own, 100)
    start = _parse_number(get.get("from", ""), 0, MAX_OFFSET)
    return {"tenant": tenant.replace("\0", ""), "priority": priority, "target": target, "from": start}


def _parse_number(text: str, default: int, most: int) -> int:
    return min(int(text), most) if text.isascii() and text.isdigit() and len(text) < 9 else default


def _filter_jobs(asked: dict[str, Any]) -> JobQuerySet:
    if not asked["target"]:
        return _waiting().filter(tenant=asked["tenant"], priority=asked["priority"])
    in_lane = Job.objects.filter(gate__in=sql_literals(queries.LANE_GATES))
    return in_lane.filter(lane_id=ids.lane_id(asked["tenant"], asked["target"]))


def _load_rows(admin: ModelAdmin, asked: dict[str, Any]) -> list[dict[str, Any]]:
    """One page in dispatch order, with one more before and after it: they are the neighbours of its ends."""
    start = max(asked["from"] - 1, 0)
    found = list(
        _filter_jobs(asked).in_dispatch_order().defer("params", "checkpoint")[start : asked["from"] + PAGE_SIZE + 1]
    )
    whys = explain.explain_briefly(found)
    rows = []
    for index, job in enumerate(found):
        before, after = _neighbour(found, index - 1, job), _neighbour(found, index + 1, job)
        shown = {"link": link(admin.admin_site, Job, job.pk, short_id(job.pk)), "type": first_line(job.job_type, 60)}
        moves = {"before": before, "after": after, "url": screen_url(admin.admin_site, "move", job.pk)}
        rows.append({"job": job, "place": start + index + 1, "why": whys.get(job.pk, ""), **shown, **moves})
    return rows[asked["from"] - start :]


def _neighbour(jobs: list[Job], index: int, job: Job) -> Job | None:
    """The neighbour, if a job moves past it without changing its priority."""
    other = jobs[index] if 0 <= index < len(jobs) else None
    return other if other is not None and other.priority == job.priority else None


def _page_url(admin: ModelAdmin, asked: dict[str, Any], start: int) -> str:
    told = {name: value for name, value in {**asked, "from": start}.items() if value not in ("", None)}
    return f"{screen_url(admin.admin_site, 'queue')}?{urlencode(told)}" if start <= MAX_OFFSET else ""
