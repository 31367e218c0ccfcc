"""Two screens to read: what persons did to jobs (audit), and how each job type does (performance)."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.contrib.admin import ModelAdmin
from django.db.models import Max, Sum
from django.http import HttpRequest, HttpResponse
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs import clock, db
from jobs.actors import ActorKind
from jobs.admin.charts import WINDOWS, Window, format_bucket, percentile, slot_expression, sparkline
from jobs.admin.formatting import link, list_url, short_id
from jobs.admin.screens import APP, render, screen
from jobs.models import Job, JobEvent, JobMinute
from jobs.models.run import ACTOR_CHOICES
from jobs.registry import registry
from jobs.states import EventKind, Status
from jobs.stats.cache import RateLimitedCache

OPERATOR_KINDS = (ActorKind.USER, ActorKind.TOKEN, ActorKind.CLI)  # all others are the scheduler itself
EVENTS_SHOWN = 100
EVENTS_READ = 20_000
JOB_TYPES_SHOWN = 200  # job types on the page: the busiest


@screen("audit", gettext_lazy("Audit"), permission=f"{APP}.view_jobevent")
def audit(admin: ModelAdmin, request: HttpRequest) -> HttpResponse:
    """Newest first. A page reads a bounded stretch, so that a long trail costs no more, and says where it ended."""
    newest = JobEvent.objects.aggregate(last=Max("pk"))["last"] or 0
    top = min(_parse_number(request.GET.get("before", "")) or newest + 1, newest + 1)
    bottom = max(top - EVENTS_READ, 0)
    # What narrows it down; anything that is no choice of ours does not.
    who, verb = request.GET.get("who", ""), request.GET.get("verb", "")
    rows = JobEvent.objects.filter(pk__lt=top, pk__gte=bottom)
    rows = rows.filter(actor_kind__in=[who] if who in OPERATOR_KINDS else list(map(str, OPERATOR_KINDS)))
    if verb in set(EventKind):
        rows = rows.filter(kind=verb)
    if name := request.GET.get("name", "").replace("\0", "")[:200]:
        rows = rows.filter(actor_name=name)
    events = list(rows.order_by("-pk").defer("data")[:EVENTS_SHOWN])
    reached = events[-1].pk if len(events) == EVENTS_SHOWN else bottom
    said: dict[str, Any] = {key: value for key in ("who", "name", "verb") if (value := request.GET.get(key, "")[:200])}
    context = {
        "events": [(event, link(admin.admin_site, Job, event.job_id, short_id(event.job_id))) for event in events],
        "older": f"?{urlencode({**said, 'before': reached})}" if reached > 1 else "",
        "stretch": EVENTS_READ,
        "whos": [(kind, word, said.get("who") == kind) for kind, word in ACTOR_CHOICES if kind in OPERATOR_KINDS],
        "verbs": [(str(kind), said.get("verb") == kind) for kind in EventKind],
        "said": said,
    }
    return render(admin, request, "jobs/console/audit.html", context, title=_("Audit"))


def _parse_number(text: str) -> int | None:
    if not (text.isascii() and text.isdigit() and len(text) < 20):
        return None
    return int(text) or None


@dataclass
class JobTypeStats:
    """One job type within the window."""

    name: str
    outcomes: Counter[str] = field(default_factory=Counter)
    waits: Counter[int] = field(default_factory=Counter)
    runs: Counter[int] = field(default_factory=Counter)
    ran_sec: float = 0.0
    over_time: list[int] = field(default_factory=list)

    @property
    def ended(self) -> int:
        return self.outcomes.total()

    @property
    def failed_percent(self) -> str:
        """Of those that came to an end of their own."""
        failed = self.outcomes[Status.FAILED]
        whole = failed + self.outcomes[Status.COMPLETED] + self.outcomes[Status.SKIPPED]
        return f"{100 * failed / whole:.1f} %" if whole else "-"

    @property
    def mean_run(self) -> str:
        started = sum(jobs for bucket, jobs in self.runs.items() if bucket >= 0)
        return f"{self.ran_sec / started:.3g} s" if started else "-"

    def format_percentile(self, part: str, share: float) -> str:
        bucket = percentile(getattr(self, part), share)
        return "-" if bucket is None else format_bucket(bucket)


_stats_cache: RateLimitedCache[list[JobTypeStats]] = RateLimitedCache()


def _load_job_types(window: Window, now: datetime) -> list[JobTypeStats]:
    """The busiest first, in two statements, whatever there is."""
    starts = {start: index for index, start in enumerate(window.starts(now))}
    minutes: Any = JobMinute.objects.filter(minute__gte=min(starts)).order_by()
    found: dict[str, JobTypeStats] = {}
    key = ("job_type", "outcome", "wait_bucket", "run_bucket")
    for name, outcome, wait, run, jobs, ran in minutes.values_list(*key).annotate(Sum("jobs"), Sum("run_sec")):
        kind = found.setdefault(name, JobTypeStats(name, over_time=[0] * len(starts)))
        kind.outcomes[outcome] += jobs
        kind.waits[wait] += jobs
        kind.runs[run] += jobs
        kind.ran_sec += ran
    slots = minutes.annotate(slot=slot_expression(window)).values_list("job_type", "slot").annotate(Sum("jobs"))
    for name, slot, jobs in slots:
        if slot in starts and name in found:  # a slot may have come while we read
            found[name].over_time[starts[slot]] += jobs
    return sorted(found.values(), key=lambda kind: (-kind.ended, kind.name))[:JOB_TYPES_SHOWN]


@screen("performance", gettext_lazy("Performance"))
def performance(admin: ModelAdmin, request: HttpRequest) -> HttpResponse:
    window = WINDOWS.get(request.GET.get("window", ""), WINDOWS["24h"])
    known = set(registry.names())
    # Of a busy time, as of a moment ago.
    key = (db.alias(), window.name)
    kinds = _stats_cache.get(
        key, lambda: _load_job_types(window, clock.now()), lambda found: sum(kind.ended for kind in found)
    )
    context = {
        "windows": [(name, name == window.name) for name in WINDOWS],
        "kinds": [_performance_row(admin, kind, kind.name in known, window) for kind in kinds],
        "most": JOB_TYPES_SHOWN,
    }
    return render(admin, request, "jobs/console/performance.html", context, title=_("Performance"))


def _performance_row(admin: ModelAdmin, kind: JobTypeStats, is_known: bool, window: Window) -> dict[str, Any]:
    """The list can filter by the job types of the registry; any other is searched for."""
    asked = {"job_type": kind.name} if is_known else {"q": f'type:"{kind.name}"'}
    asked["ended"] = window.name
    return {
        "name": kind.name,
        "url": f"{list_url(admin.admin_site, Job)}?{urlencode(asked)}",
        "ended": kind.ended,
        "failed": kind.failed_percent,
        "failing": kind.outcomes[Status.FAILED] > 0,
        "run_50": kind.format_percentile("runs", 0.5),
        "run_95": kind.format_percentile("runs", 0.95),
        "mean": kind.mean_run,
        "wait_95": kind.format_percentile("waits", 0.95),
        "spark": sparkline(kind.over_time, _("%(name)s: jobs that ended, over time") % {"name": kind.name}),
    }
