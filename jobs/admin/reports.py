"""A read-only screen: figures by job type (performance)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.contrib.admin import ModelAdmin
from django.db.models import Sum
from django.http import HttpRequest, HttpResponse
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs import clock, db
from jobs.admin.charts import WINDOWS, Window, format_bucket, percentile, slot_expression, sparkline
from jobs.admin.columns import list_url
from jobs.admin.screens import render, screen
from jobs.models import Job, JobMinute
from jobs.registry import registry
from jobs.states import Status
from jobs.stats.cache import RateLimitedCache

JOB_TYPES_SHOWN = 200  # those with the most jobs


@dataclass
class JobTypeStats:
    """The figures of one job type within the window."""

    name: str
    outcomes: Counter[str] = field(default_factory=Counter)
    waits: Counter[int] = field(default_factory=Counter)
    runs: Counter[int] = field(default_factory=Counter)
    run_sec: float = 0.0
    over_time: list[int] = field(default_factory=list)

    @property
    def ended(self) -> int:
        return self.outcomes.total()

    @property
    def failed_percent(self) -> str:
        """The failed share of the jobs that were not cancelled."""
        failed = self.outcomes[Status.FAILED]
        finished = failed + self.outcomes[Status.COMPLETED] + self.outcomes[Status.SKIPPED]
        return f"{100 * failed / finished:.1f} %" if finished else "-"

    @property
    def mean_run(self) -> str:
        started = sum(jobs for bucket, jobs in self.runs.items() if bucket >= 0)
        return f"{self.run_sec / started:.3g} s" if started else "-"

    def format_percentile(self, part: str, share: float) -> str:
        bucket = percentile(getattr(self, part), share)
        return "-" if bucket is None else format_bucket(bucket)


_stats_cache: RateLimitedCache[list[JobTypeStats]] = RateLimitedCache()


def _load_job_types(window: Window, now: datetime) -> list[JobTypeStats]:
    """Return the job types with the most ended jobs, in two statements."""
    starts = {start: index for index, start in enumerate(window.starts(now))}
    minutes: Any = JobMinute.objects.filter(minute__gte=min(starts)).order_by()
    by_name: dict[str, JobTypeStats] = {}
    key = ("job_type", "outcome", "wait_bucket", "run_bucket")
    for name, outcome, wait, run, jobs, run_sec in minutes.values_list(*key).annotate(Sum("jobs"), Sum("run_sec")):
        stats = by_name.setdefault(name, JobTypeStats(name, over_time=[0] * len(starts)))
        stats.outcomes[outcome] += jobs
        stats.waits[wait] += jobs
        stats.runs[run] += jobs
        stats.run_sec += run_sec
    slots = minutes.annotate(slot=slot_expression(window)).values_list("job_type", "slot").annotate(Sum("jobs"))
    for name, slot, jobs in slots:
        if slot in starts and name in by_name:  # rows may have been added between the two statements
            by_name[name].over_time[starts[slot]] += jobs
    return sorted(by_name.values(), key=lambda stats: (-stats.ended, stats.name))[:JOB_TYPES_SHOWN]


@screen("performance", gettext_lazy("Performance"))
def performance(admin: ModelAdmin, request: HttpRequest) -> HttpResponse:
    """Show how many jobs of each type ended, how many failed, and how long they waited and ran."""
    window = WINDOWS.get(request.GET.get("window", ""), WINDOWS["24h"])
    registered = set(registry.names())
    key = (db.alias(), window.name)
    job_types = _stats_cache.get(
        key, lambda: _load_job_types(window, clock.now()), lambda job_types: sum(stats.ended for stats in job_types)
    )
    context = {
        "windows": [(name, name == window.name) for name in WINDOWS],
        "job_types": [_performance_row(admin, stats, stats.name in registered, window) for stats in job_types],
        "job_type_limit": JOB_TYPES_SHOWN,
    }
    return render(admin, request, "jobs/console/performance.html", context, title=_("Performance"))


def _performance_row(admin: ModelAdmin, stats: JobTypeStats, is_registered: bool, window: Window) -> dict[str, Any]:
    # The list filters by registered job types; any other is searched for.
    params = {"job_type": stats.name} if is_registered else {"q": f'type:"{stats.name}"'}
    params["ended"] = window.name
    return {
        "name": stats.name,
        "url": f"{list_url(admin.admin_site, Job)}?{urlencode(params)}",
        "ended": stats.ended,
        "failed": stats.failed_percent,
        "has_failures": stats.outcomes[Status.FAILED] > 0,
        "run_50": stats.format_percentile("runs", 0.5),
        "run_95": stats.format_percentile("runs", 0.95),
        "mean": stats.mean_run,
        "wait_95": stats.format_percentile("waits", 0.95),
        "spark": sparkline(stats.over_time, _("%(name)s: jobs that ended, over time") % {"name": stats.name}),
    }
