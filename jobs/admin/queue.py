"""The queue: what starts next, of all tenants and priorities; the waiting jobs of one tenant and priority, or of one
target, in dispatch order, and moves within it."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.contrib import messages
from django.contrib.admin import ModelAdmin
from django.db.models import Count
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs import actors, clock, db, explain, ids
from jobs.admin.base import can_view_payload, count_capped, log_history
from jobs.admin.columns import link, load_params_lines, short_id
from jobs.admin.formatting import first_line
from jobs.admin.screens import APP, SCREENS, latest_event_id, render, screen, screen_url
from jobs.errors import JobSchedulerError
from jobs.explain.next_starts import list_ready_jobs, predict_starts
from jobs.models import Job
from jobs.models.job import JobQuerySet
from jobs.services import jobs as job_services
from jobs.stats.cache import RateLimitedCache

PAGE_SIZE, MAX_OFFSET = 100, 10_000
QUEUES_SHOWN = 20
NEXT_READ, NEXT_SHOWN = 200, 50  # jobs of the list of what starts next
REORDER = f"{APP}.reorder_job"


@screen("queue", gettext_lazy("Queue"))
def queue(admin: ModelAdmin, request: HttpRequest) -> HttpResponse:
    def context() -> dict[str, Any]:
        may_submit = request.user.has_perm(SCREENS["enqueue"].permission)
        new_job_url = screen_url(admin.admin_site, "enqueue") if may_submit else ""
        return {**_build_context(admin, request), "new_job_url": new_job_url}

    return render(admin, request, "jobs/console/queue.html", context, title=_("Queue"), version=latest_event_id())


def _build_context(admin: ModelAdmin, request: HttpRequest) -> dict[str, Any]:
    queue_url = screen_url(admin.admin_site, "queue")
    queues = _queue_cache.get(db.alias(), _count_queues, lambda queues: sum(queue["jobs"] for queue in queues))
    if not any(request.GET.get(name) for name in ("tenant", "priority", "target", "from")):
        return _build_next_context(admin, request, queue_url, queues)
    filters = _parse_filters(request, queues)
    current = {name: filters[name] for name in ("tenant", "priority")}
    counted = [queue["jobs"] for queue in queues if current.items() <= queue.items()]
    rows = _load_rows(admin, filters, can_view_payload(request))
    tabs = _build_tabs(queue_url, queues, {} if filters["target"] else current)
    next_url = _page_url(admin, filters, filters["from"] + PAGE_SIZE) if len(rows) > PAGE_SIZE else ""
    return {
        "queues": tabs,
        "queue_limit": QUEUES_SHOWN if len(queues) > QUEUES_SHOWN else None,
        "filters": filters,
        # Counted already, except for a target and for a queue beyond those that are shown.
        "total": counted[0] if counted and not filters["target"] else count_capped(_filter_jobs(filters)),
        "depth_limit": MAX_OFFSET + PAGE_SIZE if len(rows) > PAGE_SIZE and not next_url else None,
        "rows": rows[:PAGE_SIZE],
        "can_move": request.user.has_perm(REORDER),
        "next_url": next_url,
        "first_url": _page_url(admin, filters, 0) if filters["from"] else "",
        "queue_url": queue_url,
    }


def _build_tabs(queue_url: str, queues: list[dict[str, Any]], current: dict[str, Any]) -> list[dict[str, Any]]:
    tabs = []
    for queue in queues[:QUEUES_SHOWN]:
        params = {"tenant": queue["tenant"], "priority": queue["priority"]}
        tabs.append({**queue, "url": f"{queue_url}?{urlencode(params)}", "is_current": params == current})
    return tabs


def _build_next_context(
    admin: ModelAdmin, request: HttpRequest, queue_url: str, queues: list[dict[str, Any]]
) -> dict[str, Any]:
    """Return what starts next: the jobs with an expected start by it, then the others in dispatch order."""
    now = clock.now()
    jobs = list(list_ready_jobs()[: NEXT_READ + 1])
    starts = predict_starts(jobs[:NEXT_READ], now)
    shown = sorted(jobs[:NEXT_READ], key=lambda job: (job.pk not in starts, starts.get(job.pk, now)))[:NEXT_SHOWN]
    whys = explain.explain_briefly([job for job in shown if job.pk not in starts])
    params = load_params_lines(shown) if can_view_payload(request) else {}
    rows = [
        {
            "job": job,
            "position": number,
            "link": link(admin.admin_site, Job, job.pk, first_line(job.job_type, 60)),
            "tail": short_id(job.pk),
            "params": params.get(job.pk, ""),
            "start": starts.get(job.pk),
            "is_now": starts.get(job.pk) == now,
            "why": whys.get(job.pk, ""),
            "queue_url": f"{queue_url}?{urlencode({'tenant': job.tenant, 'priority': job.priority})}#job-{job.pk}",
        }
        for number, job in enumerate(shown, 1)
    ]
    return {
        "next_rows": rows,
        "shows_next": True,
        "has_more": len(jobs) > len(shown),
        "queues": _build_tabs(queue_url, queues, {}),
        "queue_limit": QUEUES_SHOWN if len(queues) > QUEUES_SHOWN else None,
        "filters": {"tenant": "", "priority": "", "target": "", "from": 0},
        "can_move": request.user.has_perm(REORDER),
        "queue_url": queue_url,
    }


@screen("move", gettext_lazy("Move"), permission=REORDER, route="<uuid:job_id>/move/", methods=("POST",), listed=False)
def move(admin: ModelAdmin, request: HttpRequest, job_id: UUID) -> HttpResponse:
    """Move one job, and redirect to the page of the queue that the request came from."""
    position: Any = {name: request.POST[name] for name in ("before", "after", "to") if request.POST.get(name)}
    reason = request.POST.get("reason", "").strip()
    try:
        job = job_services.move(job_id, **position, reason=reason, actor=actors.make_user_actor(request.user))
    except JobSchedulerError as error:
        messages.error(request, str(error))
    else:
        log_history(request, [job], f"move {' '.join(position)}")
        name = f"{first_line(job.job_type, 60)} {short_id(job.pk)}"
        messages.success(request, _describe_move(position) % {"job": name})
    filters = {name: request.POST.get(name, "")[:200] for name in ("tenant", "priority", "target", "from")}
    query = urlencode({name: text for name, text in filters.items() if text})
    return HttpResponseRedirect(f"{screen_url(admin.admin_site, 'queue')}?{query}#job-{job_id}")


def _describe_move(position: dict[str, Any]) -> str:
    if "to" in position:
        return _("%(job)s moved to the top.") if position["to"] == "top" else _("%(job)s moved to the bottom.")
    return _("%(job)s moved up.") if "before" in position else _("%(job)s moved down.")


_queue_cache: RateLimitedCache[list[dict[str, Any]]] = RateLimitedCache()


def _count_queues() -> list[dict[str, Any]]:
    """Count the waiting jobs by tenant and priority, along the index of waiting jobs."""
    counted: Any = Job.objects.waiting().order_by("tenant", "-priority")
    counted = counted.values("tenant", "priority").annotate(jobs=Count("pk"))
    return list(counted[: QUEUES_SHOWN + 1])


def _parse_filters(request: HttpRequest, queues: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the filters of the URL; the first queue replaces missing and invalid ones."""
    query = request.GET
    first: dict[str, Any] = queues[0] if queues else {"tenant": "default", "priority": 50}
    tenant, target = query.get("tenant", "")[:64] or first["tenant"], query.get("target", "")[:200].replace("\0", "")
    default = next((queue["priority"] for queue in queues if queue["tenant"] == tenant), first["priority"])
    priority = _parse_number(query.get("priority", ""), default, 100)
    offset = _parse_number(query.get("from", ""), 0, MAX_OFFSET)
    return {"tenant": tenant.replace("\0", ""), "priority": priority, "target": target, "from": offset}


def _parse_number(text: str, default: int, limit: int) -> int:
    return min(int(text), limit) if text.isascii() and text.isdigit() and len(text) < 9 else default


def _filter_jobs(filters: dict[str, Any]) -> JobQuerySet:
    if not filters["target"]:
        return Job.objects.waiting().filter(tenant=filters["tenant"], priority=filters["priority"])
    return Job.objects.in_lanes().filter(lane_id=ids.derive_lane_id(filters["tenant"], filters["target"]))


def _load_rows(admin: ModelAdmin, filters: dict[str, Any], with_payload: bool) -> list[dict[str, Any]]:
    """Return one page in dispatch order and one row more; the neighbours of its first and last job are read, too."""
    start = max(filters["from"] - 1, 0)
    ordered = _filter_jobs(filters).in_dispatch_order().defer("params", "checkpoint")
    jobs = list(ordered[start : filters["from"] + PAGE_SIZE + 1])
    whys = explain.explain_briefly(jobs)
    params = load_params_lines(jobs) if with_payload else {}
    rows: list[dict[str, Any]] = []
    for index, job in enumerate(jobs):
        before, after = _neighbour(jobs, index - 1, job), _neighbour(jobs, index + 1, job)
        name = link(admin.admin_site, Job, job.pk, first_line(job.job_type, 60))
        columns = {"link": name, "tail": short_id(job.pk), "params": params.get(job.pk, "")}
        moves = {"before": before, "after": after, "url": screen_url(admin.admin_site, "move", job.pk)}
        rows.append({"job": job, "position": start + index + 1, "why": whys.get(job.pk, ""), **columns, **moves})
    return rows[filters["from"] - start :]


def _neighbour(jobs: list[Job], index: int, job: Job) -> Job | None:
    """Return the job at `index` if it has the same priority, since a move does not change the priority."""
    other = jobs[index] if 0 <= index < len(jobs) else None
    return other if other is not None and other.priority == job.priority else None


def _page_url(admin: ModelAdmin, filters: dict[str, Any], offset: int) -> str:
    params = {name: value for name, value in {**filters, "from": offset}.items() if value not in ("", None)}
    return f"{screen_url(admin.admin_site, 'queue')}?{urlencode(params)}" if offset <= MAX_OFFSET else ""
