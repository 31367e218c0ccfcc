"""A read-only screen: figures by job type (performance)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.contrib.admin import ModelAdmin
from django.db.models import Sum
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy, ngettext

from jobs import clock, db
from jobs.admin.charts import finished_query, format_percentile, sparkline
from jobs.admin.columns import list_url
from jobs.admin.formatting import format_count, format_duration, format_percent
from jobs.admin.screens import render, screen
from jobs.admin.windows import WINDOWS, Trend, Window, count_started, load_trends, percentile
from jobs.models import Job, JobMinute
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
    trend: Trend = field(default_factory=lambda: Trend([], []))

    @property
    def finished(self) -> int:
        return self.outcomes.total()

    @property
    def failed_share(self) -> float | None:
        """The failed share of the completed and failed jobs."""
        failed = self.outcomes[Status.FAILED]
        ran = failed + self.outcomes[Status.COMPLETED]
        return failed / ran if ran else None

    @property
    def mean_run_sec(self) -> float | None:
        started = count_started(self.runs)
        return self.run_sec / started if started else None


@dataclass(frozen=True)
class Column:
    """A column of the table, with the key by which it is sorted; rows without a value are last."""

    title: Any
    key: Callable[[JobTypeStats], Any]
    is_number: bool = True
    is_wide: bool = False  # left out on a phone


COLUMNS = {
    "type": Column(gettext_lazy("Job type"), lambda stats: stats.name, is_number=False),
    "finished": Column(gettext_lazy("Finished"), lambda stats: stats.finished),
    "failed": Column(gettext_lazy("Failed"), lambda stats: stats.failed_share),
    "wait50": Column(gettext_lazy("Wait p50"), lambda stats: percentile(stats.waits, 0.5), is_wide=True),
    "wait95": Column(gettext_lazy("Wait p95"), lambda stats: percentile(stats.waits, 0.95)),
    "run50": Column(gettext_lazy("Run p50"), lambda stats: percentile(stats.runs, 0.5), is_wide=True),
    "run95": Column(gettext_lazy("Run p95"), lambda stats: percentile(stats.runs, 0.95)),
    "mean": Column(gettext_lazy("Mean run time"), lambda stats: stats.mean_run_sec, is_wide=True),
}
DEFAULT_SORT = "-finished"

_stats_cache: RateLimitedCache[list[JobTypeStats]] = RateLimitedCache()


def _load_job_types(window: Window, now: datetime) -> list[JobTypeStats]:
    """Return the job types with the most finished jobs, in two statements."""
    start = window.starts(now)[0]
    minutes: Any = JobMinute.objects.filter(minute__gte=start).order_by()
    by_name: dict[str, JobTypeStats] = {}
    key = ("job_type", "outcome", "wait_bucket", "run_bucket")
    for name, outcome, wait, run, jobs, run_sec in minutes.values_list(*key).annotate(Sum("jobs"), Sum("run_sec")):
        stats = by_name.setdefault(name, JobTypeStats(name))
        stats.outcomes[outcome] += jobs
        stats.waits[wait] += jobs
        stats.runs[run] += jobs
        stats.run_sec += run_sec
    shown = sorted(by_name.values(), key=lambda stats: (-stats.finished, stats.name))[:JOB_TYPES_SHOWN]
    trends = load_trends("job_type", [stats.name for stats in shown], window, now)
    for stats in shown:
        stats.trend = trends[stats.name]
    return shown


@screen("performance", gettext_lazy("Performance"))
def performance(admin: ModelAdmin, request: HttpRequest) -> HttpResponse:
    """Show how many jobs of each type finished, how many failed, and how long they waited and ran."""
    window = WINDOWS.get(request.GET.get("window", ""), WINDOWS["24h"])
    now = clock.now()
    key = (db.alias(), window.name)
    job_types = _stats_cache.get(
        key, lambda: _load_job_types(window, now), lambda job_types: sum(stats.finished for stats in job_types)
    )
    sort = request.GET.get("sort", "")
    sort = sort if sort.removeprefix("-") in COLUMNS else DEFAULT_SORT
    start = window.starts(now)[0]
    peak = max((jobs for stats in job_types for jobs in stats.trend.finished), default=0)
    rows = [_performance_row(admin, stats, start, peak) for stats in _sort(job_types, sort)]
    context = {
        "window": window,
        "windows": list(WINDOWS.values()),
        "zone": timezone.get_current_timezone_name(),
        "sort": sort,
        "columns": [_build_column(name, window, sort) for name in COLUMNS],
        "job_types": rows,
        "job_type_limit": JOB_TYPES_SHOWN,
    }
    return render(admin, request, "jobs/console/performance.html", context, title=_("Performance"))


def _sort(job_types: list[JobTypeStats], sort: str) -> list[JobTypeStats]:
    """Sort by a column, "-" in front for the largest first; job types without a value come last."""
    key, is_descending = COLUMNS[sort.removeprefix("-")].key, sort.startswith("-")
    with_value = [stats for stats in job_types if key(stats) is not None]
    without = [stats for stats in job_types if key(stats) is None]
    return [*sorted(with_value, key=key, reverse=is_descending), *without]


def _build_column(name: str, window: Window, sort: str) -> dict[str, Any]:
    """Return a heading: its link sorts by it, numbers with the largest first, and a second time the other way round."""
    column = COLUMNS[name]
    first, second = (f"-{name}", name) if column.is_number else (name, f"-{name}")
    order = {name: "ascending", f"-{name}": "descending"}.get(sort, "")
    query = urlencode({"window": window.name, "sort": second if sort == first else first})
    return {"column": column, "url": f"?{query}", "order": order}


def _performance_row(admin: ModelAdmin, stats: JobTypeStats, start: datetime, peak: int) -> dict[str, Any]:
    url = f"{list_url(admin.admin_site, Job)}?{urlencode({'job_type': stats.name})}&"
    share, mean, failed = stats.failed_share, stats.mean_run_sec, stats.outcomes[Status.FAILED]
    label = ngettext("%(finished)s finished, %(failed)d failed", "%(finished)s finished, %(failed)d failed", failed)
    return {
        "name": stats.name,
        "url": url + finished_query(start),
        "failed_url": url + finished_query(start, status=str(Status.FAILED)),
        "finished": stats.finished,
        "failed": "–" if share is None else format_percent(share),
        "has_failures": failed > 0,
        "wait_50": format_percentile(stats.waits, 0.5),
        "wait_95": format_percentile(stats.waits, 0.95),
        "run_50": format_percentile(stats.runs, 0.5),
        "run_95": format_percentile(stats.runs, 0.95),
        "mean": "–" if mean is None else format_duration(timedelta(seconds=mean)),
        "spark": sparkline(
            stats.trend.finished,
            stats.trend.failed,
            peak,
            label % {"finished": format_count(stats.finished), "failed": failed},
        ),
        "last": stats.trend.finished[-1] if stats.trend.finished else 0,
    }
