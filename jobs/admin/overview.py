"""The overview: what needs attention, five figures, charts, failures by cause, running jobs, resources and workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.contrib.admin import AdminSite, ModelAdmin
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from jobs.admin import charts, screens, windows
from jobs.admin.alerts import LATE_AFTER, AlertFacts, build_action_fields, find_alerts
from jobs.admin.base import can_view_payload, count_capped
from jobs.admin.columns import ids_url, link, list_url, short_id
from jobs.admin.failures import FAILURES_SCANNED, FailureGroups, find_unhandled, group_failures
from jobs.admin.filters import waits_for_operator
from jobs.admin.formatting import (
    first_line,
    format_count,
    format_decimal,
    format_duration,
    format_json,
    format_percent,
)
from jobs.admin.job_timeline import estimate_time_left
from jobs.admin.limits import can_pause_resources
from jobs.admin.resources import RESOURCES_SHOWN, build_resource_rows, find_paused_names
from jobs.admin.screens import APP, render, screen, screen_url
from jobs.admin.windows import DAY, WINDOWS, ChartSlot, Window
from jobs.admin.workers import describe_state
from jobs.models import Gate, Job, LimitScope, Worker
from jobs.payload_visibility import hide_in_job
from jobs.services import limits
from jobs.services.limits import LimitState
from jobs.states import ACTIVE, Status
from jobs.stats import live_counts, queries
from jobs.stats.live_counts import JobCounts
from jobs.stats.ready_jobs import ReadyJobs, count_ready, is_online

RUNNING_SHOWN, WORKERS_SHOWN, DEPLOYS_READ = 8, 10, 200
WORKER_ORDER = ("bad", "warn", "good")  # the colours of their states, those that need attention first
FAILED_SHARE = 0.05  # of the completed and failed jobs; above it, the figure is red
OverviewSection = Callable[[ModelAdmin, HttpRequest], "SafeString | None"]
_sections: list[OverviewSection] = []


def show_on_overview(section: OverviewSection) -> None:
    """Register a section of another app; it returns HTML, or None to show nothing."""
    if section not in _sections:
        _sections.append(section)


@screen("overview", gettext_lazy("Overview"))
def overview(admin: ModelAdmin, request: HttpRequest) -> HttpResponse:
    context = partial(_build_context, admin, request)
    version = screens.latest_event_id()
    return render(admin, request, "jobs/console/overview.html", context, title=_("Overview"), version=version)


def _build_context(admin: ModelAdmin, request: HttpRequest) -> dict[str, Any]:
    window = WINDOWS.get(request.GET.get("window", ""), WINDOWS["24h"])
    site, now = admin.admin_site, timezone.now()
    states, workers = limits.list_limits(), queries.list_workers()
    online = [worker for worker in workers if is_online(worker, now)]
    counts = live_counts.count_busiest(RESOURCES_SHOWN, find_paused_names(states), now)
    ready = count_ready(workers, [(state.scope, state.key) for state in states if state.paused], now)
    minute = now.replace(second=0, microsecond=0)
    hour_start, start, end = WINDOWS["1h"].starts(now)[0], window.starts(now)[0], minute + 2 * windows.MINUTE
    spans = ((hour_start, end), (minute - DAY, end), (start - window.length, start))
    hour, day, previous = windows.count_outcomes(*spans)
    facts = AlertFacts(
        now=now,
        waiting=sum(count.jobs for count in counts.live if count.is_due),
        ready=ready,
        workers=workers,
        limits=states,
        hour=hour,
        hour_start=hour_start,
        day=day,
    )
    slots, jobs_url = windows.load_slots(window, now), list_url(site, Job)
    failed = sum(slot.failed for slot in slots)
    failures = group_failures(start, failed, with_texts=can_view_payload(request))
    figures = Figures(jobs_url, window, slots, counts, now)
    return {
        "window": window,
        "windows": list(WINDOWS.values()),
        "zone": timezone.get_current_timezone_name(),
        "enqueue_url": screen_url(site, "enqueue") if request.user.has_perm(f"{APP}.add_job") else "",
        "is_new": not counts.all_rows,
        "alerts": find_alerts(site, request, facts),
        "figures": [
            figures.count_finished(previous),
            figures.count_failed(failures),
            figures.count_running(online, states, ready),
            figures.count_waiting(),
            figures.measure_oldest(ready),
        ],
        "throughput": charts.throughput_chart(window, slots, jobs_url, _find_deploys(start)),
        "waits": charts.latency_chart(window, slots, "waits"),
        "runs": charts.latency_chart(window, slots, "runs"),
        "table": [_build_table_row(slot, jobs_url) for slot in slots],
        "failures": [_build_failure(site, group, jobs_url) for group in failures.groups],
        "failures_complete": failures.is_complete,
        "failures_scanned": FAILURES_SCANNED,
        "failed_url": f"{jobs_url}?status={Status.FAILED}",
        "can_retry": request.user.has_perm(f"{APP}.retry_job"),
        "jobs_url": jobs_url,
        "running": list_running(site, request, now),
        "resources": build_resource_rows(admin, counts, states, window, now),
        "can_pause": can_pause_resources(request),
        "pause_url": screen_url(site, "resource", "pause"),
        "resume_url": screen_url(site, "resource", "resume"),
        "workers": list_shown_workers(site, request, workers),
        "workers_total": len(workers) if len(workers) > WORKERS_SHOWN else 0,
        "workers_url": _workers_url(site, request),
        "sections": [html for section in _sections if (html := section(admin, request)) is not None],
    }


# -- figures -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Part:
    """A part of a figure, such as "14 ready"; the parts of one figure add up to it."""

    text: str
    count: int
    url: str = ""


@dataclass(frozen=True)
class Figure:
    """One of the five figures: a value with a link to the list that it counts, a rate beside it, parts and a note."""

    label: str
    value: str
    url: str = ""
    rate: str = ""
    parts: Sequence[Part] = ()
    note: str = ""
    tone: str = ""  # bad or warn, if a threshold is passed
    note_tone: str = ""


@dataclass(frozen=True)
class Figures:
    """Builds the five figures from the facts that the page has read."""

    jobs_url: str
    window: Window
    slots: Sequence[ChartSlot]
    counts: JobCounts
    now: datetime
    outcomes: Counter[str] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "outcomes", sum((slot.outcomes for slot in self.slots), start=Counter()))

    def count_finished(self, previous: Counter[str]) -> Figure:
        """Return the finished jobs, their rate, and how that differs from the window before."""
        minutes = max((self.now - self.slots[0].start) / windows.MINUTE, 1.0)
        rate, rate_before = self.outcomes.total() / minutes, previous.total() / (self.window.length / windows.MINUTE)
        note = ""
        if rate_before:
            params = {"change": f"{100 * (rate - rate_before) / rate_before:+.0f} %", "window": self.window.label}
            note = _("%(change)s vs. previous %(window)s") % params
        return Figure(
            _("Finished (%s)") % self.window.label,
            format_count(self.outcomes.total()),
            self._finished_url(),
            rate=_("%s/min") % (format_decimal(rate) if rate < 100 else format_count(round(rate))),
            note=note,
        )

    def count_failed(self, failures: FailureGroups) -> Figure:
        failed = self.outcomes[Status.FAILED]
        ended = failed + self.outcomes[Status.COMPLETED]
        unhandled, url = len(failures.job_ids), ids_url(self.jobs_url, failures.job_ids)
        if not failures.is_complete:
            unhandled = count_capped(find_unhandled(self.slots[0].start))
            url = f"{self._finished_url(str(Status.FAILED))}&attention=unhandled"
        part = Part(_("unhandled"), unhandled, url) if unhandled else None
        return Figure(
            _("Failed (%s)") % self.window.label,
            format_count(failed),
            self._finished_url(str(Status.FAILED)),
            rate=format_percent(failed / ended) if ended else "",
            parts=[part] if part else [],
            note="" if unhandled else _("none unhandled"),
            tone="bad" if ended and failed / ended >= FAILED_SHARE else "",
        )

    def count_running(self, online: Sequence[Worker], states: Iterable[LimitState], ready: ReadyJobs) -> Figure:
        """Return the running jobs beside slots and the global limit, and which of the two holds ready jobs back."""
        running = self._count_live(*ACTIVE)
        limit = next((state for state in states if state.scope == LimitScope.GLOBAL and state.max is not None), None)
        slots, busy = sum(worker.slots for worker in online), sum(worker.busy for worker in online)
        rate = ngettext("of %s slot", "of %s slots", slots) % format_count(slots)
        if limit is not None:
            rate += " · " + _("limit %s") % format_count(limit.max or 0)
        note = ""
        if ready.startable:
            is_limit_full = limit is not None and (limit.in_use or 0) >= (limit.max or 0)
            if is_limit_full:
                note = (
                    _("The limit, not the slots, holds jobs back")
                    if busy < slots
                    else _("Slots and limit hold jobs back")
                )
            elif busy >= slots:
                note = _("Slots, not the limit, hold jobs back") if limit else _("No free slots: jobs wait")
        url = f"{self.jobs_url}?status=running"
        return Figure(_("Running now"), format_count(running), url, rate=rate, note=note, note_tone="warn")

    def count_waiting(self) -> Figure:
        """Return the jobs that wait for something, by what they wait for."""
        waiting = {status: self._count_live(status) for status in (Status.QUEUED, Status.PENDING, Status.PAUSED)}
        scheduled = sum(count.jobs for count in self.counts.live if count.gate == Gate.TIME)
        blocked = Job.objects.filter(waits_for_operator(Job.objects.all())).count()
        held = Job.objects.of_rare_status(Status.PENDING).filter(hold=True).count() if waiting[Status.PENDING] else 0
        ready = waiting[Status.QUEUED] - scheduled - blocked + waiting[Status.PENDING] - held
        parts = [
            Part(_("ready"), max(ready, 0), f"{self.jobs_url}?status=waiting"),
            Part(_("scheduled"), scheduled, f"{self.jobs_url}?status=scheduled"),
            Part(_("blocked"), blocked, f"{self.jobs_url}?status=blocked"),
            Part(_("paused or held"), waiting[Status.PAUSED] + held, f"{self.jobs_url}?status=stopped"),
        ]
        total = sum(part.count for part in parts)
        return Figure(_("Waiting"), format_count(total), parts=[part for part in parts if part.count])

    def _count_live(self, *statuses: str) -> int:
        return sum(count.jobs for count in self.counts.live if count.status in statuses)

    def measure_oldest(self, ready: ReadyJobs) -> Figure:
        """Return how long the oldest job that could start has waited, against the p95 of the window."""
        waits: Counter[int] = sum((slot.waits for slot in self.slots), start=Counter())
        params = {"p95": charts.format_percentile(waits, 0.95), "window": self.window.label}
        note = _("wait p95 %(p95)s over %(window)s") % params
        if ready.oldest_at is None:
            return Figure(_("Oldest ready job"), "–", note=note)
        age = max(self.now - ready.oldest_at, timedelta(0))
        url = f"{self.jobs_url}?attention=late" if age > windows.MINUTE else f"{self.jobs_url}?status=waiting"
        tone = "warn" if age > LATE_AFTER else ""
        return Figure(_("Oldest ready job"), format_duration(age), url, note=note, tone=tone)

    def _finished_url(self, status: str = "") -> str:
        return f"{self.jobs_url}?{charts.finished_query(self.slots[0].start, status=status)}"


# -- charts ------------------------------------------------------------------------------------------------------------


def _find_deploys(since: datetime) -> list[tuple[datetime, str]]:
    """Return when a worker started with another version than the one before it, and that version."""
    workers = Worker.objects.filter(started_at__gte=since).order_by("-started_at")
    deploys, last_version = [], None
    for started_at, version in reversed(workers.values_list("started_at", "version")[:DEPLOYS_READ]):
        if version and version != last_version:
            deploys.append((started_at, version))
        last_version = version or last_version
    return deploys


def _build_table_row(slot: ChartSlot, jobs_url: str) -> dict[str, Any]:
    """Return a row of the table that has all series of the charts; its links are those of the bars."""
    cells = [
        (slot.completed, str(Status.COMPLETED)),
        (slot.failed, str(Status.FAILED)),
        (slot.skipped, str(Status.SKIPPED)),
        (slot.cancelled, str(Status.CANCELLED)),
    ]
    numbers = [
        (count, f"{jobs_url}?{charts.finished_query(slot.start, slot.end, status)}" if count else "")
        for count, status in cells
    ]
    shares = [(slot.waits, 0.5), (slot.waits, 0.95), (slot.runs, 0.5), (slot.runs, 0.95)]
    return {
        "span": charts.format_span(slot),
        "numbers": numbers,
        "percentiles": [charts.format_percentile(buckets, share) for buckets, share in shares],
    }


# -- failures, running jobs, workers -----------------------------------------------------------------------------------


def _build_failure(site: AdminSite, group: Any, jobs_url: str) -> dict[str, Any]:
    return {
        "group": group,
        "count": len(group.job_ids),
        "url": ids_url(jobs_url, group.job_ids),
        "sample": link(site, Job, group.sample, short_id(group.sample)),
        "fields": build_action_fields("retry", group.job_ids),
    }


def list_running(site: AdminSite, request: HttpRequest, now: datetime) -> list[dict[str, Any]]:
    """Return the running jobs that started first, with progress and the time left."""
    rows = []
    with_payload = can_view_payload(request)
    running = queries.running_jobs().defer(None).defer("checkpoint", "run__artifacts", "run__error")
    for job in running[:RUNNING_SHOWN]:
        if not with_payload:
            hide_in_job(job)
        elapsed = max(now - job.run.started_at, timedelta(0))
        rows.append(
            {
                "job": job,
                "link": link(site, Job, job.pk, job.job_type),
                "target": first_line(job.target or "", 60),
                "params": first_line(format_json(job.params, indent=None), 60) if with_payload and job.params else "",
                "worker": job.run.worker,
                "percent": None if job.progress is None else round(100 * job.progress),
                "elapsed": elapsed,
                "left": estimate_time_left(job, elapsed),
            }
        )
    return rows


def list_shown_workers(site: AdminSite, request: HttpRequest, workers: Sequence[Worker]) -> list[dict[str, Any]]:
    """Return one line for each worker, those that need attention first."""
    if not request.user.has_perm(f"{APP}.view_worker"):
        return []
    rows = []
    for worker in workers:
        kind, state = describe_state(worker)
        name = link(site, Worker, worker.pk, worker.name)
        rows.append((WORKER_ORDER.index(kind), worker.name, {"link": name, "state": state, "worker": worker}))
    return [row for _rank, _name, row in sorted(rows, key=lambda row: row[:2])[:WORKERS_SHOWN]]


def _workers_url(site: AdminSite, request: HttpRequest) -> str:
    can_view = site.is_registered(Worker) and request.user.has_perm(f"{APP}.view_worker")
    return list_url(site, Worker) if can_view else ""
