"""Filters with fixed choices, so that no page queries the database for the values of a column."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django.contrib.admin import ModelAdmin, SimpleListFilter
from django.db.models import Max, QuerySet, Subquery
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils import timezone
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from jobs import clock, db
from jobs.admin.base import COUNT_LIMIT, CappedInt, count_capped
from jobs.models import Gate, Job, JobEvent, JobRun
from jobs.models.expressions import SqlLiteral, sql_literals
from jobs.models.job import RARE_STATUSES, STATUS_CHOICES
from jobs.models.run import RARE_END_KINDS
from jobs.registry import registry
from jobs.states import ACTIVE, LIVE, TERMINAL, Status
from jobs.stats.cache import RateLimitedCache
from jobs.stats.event_times import CLOCK_LEEWAY, find_first_event_id

INLINE_IDS_LIMIT = 500  # ids listed in a statement; above it, a subquery


class ChoiceFilter(SimpleListFilter):
    """A column equals one of the choices; any other value in the URL is ignored."""

    field = ""
    known_choices: Iterable[tuple[Any, Any]] = ()

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin) -> list[tuple[Any, Any]]:
        return list(self.known_choices)

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        value = self.value()
        if value is None or value not in {str(choice) for choice, _label in self.lookup_choices}:
            return queryset
        return self.filter_by_choice(queryset, value)

    def filter_by_choice(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        return queryset.filter(**{self.field: value})


def choice_filter(field: str, title: Any, choices: Iterable[tuple[Any, Any]]) -> type[ChoiceFilter]:
    """Return a filter on a column with choices; its parameter has the name of the column."""
    attributes = {"title": title, "parameter_name": field, "field": field, "known_choices": list(choices)}
    return type(f"{field.title()}Filter", (ChoiceFilter,), attributes)


YES_NO = (("1", _("Yes")), ("0", _("No")))
EnabledFilter = choice_filter("enabled", _("enabled"), YES_NO)
PausedFilter = choice_filter("paused", _("paused"), YES_NO)


class JobTypeFilter(ChoiceFilter):
    """Filters by the job types of the registry."""

    title = _("job type")
    parameter_name = field = "job_type"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin) -> list[tuple[Any, Any]]:
        return [(name, name) for name in registry.names()]


class CreatedFilter(ChoiceFilter):
    """Filters by age, along the primary key: ids are ordered by time."""

    title = _("created")
    parameter_name = "created"
    known_choices = (
        ("15m", _("Last 15 minutes")),
        ("1h", _("Last hour")),
        ("24h", _("Last 24 hours")),
        ("7d", _("Last 7 days")),
    )
    ages = {"15m": timedelta(minutes=15), "1h": timedelta(hours=1), "24h": timedelta(days=1), "7d": timedelta(days=7)}

    def filter_by_choice(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        milliseconds = int((timezone.now() - self.ages[value]).timestamp() * 1000)
        return queryset.filter(pk__gte=UUID(int=milliseconds << 80))


class EndedFilter(ChoiceFilter):
    """Filters by the time since jobs ended, rounded to minutes like the rollup."""

    title = pgettext_lazy("filter of jobs", "ended")
    parameter_name = "ended"
    known_choices, ages = CreatedFilter.known_choices, CreatedFilter.ages

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Keep the status and the job type: only the newest matching jobs are found if there are many."""
        self.status, self.job_type = request.GET.get("status", ""), request.GET.get("job_type", "")
        return super().queryset(request, queryset)

    def filter_by_choice(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        if self.status in LIVE:
            return queryset.none()
        status = self.status if self.status in TERMINAL else ""
        job_type = self.job_type if self.job_type in registry.names() else ""
        start = timezone.now() - self.ages[value]
        minute = start.replace(second=0, microsecond=0)
        since = minute if minute == start else minute + timedelta(minutes=1)
        return queryset.filter(pk__in=find_ended_jobs(since, status, job_type))


class StatusFilter(ChoiceFilter):
    """Filters by status, each along its own index."""

    title = _("status")
    parameter_name = field = "status"
    known_choices = STATUS_CHOICES
    has_tabs = True

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Leave an ended status to EndedFilter: the status's own index would read all jobs that ever ended so."""
        if request.GET.get("ended") in EndedFilter.ages and self.value() in TERMINAL:
            return queryset
        return super().queryset(request, queryset)

    def filter_by_choice(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        return filter_by_status(queryset, value)


def filter_by_status(queryset: QuerySet[Any], status: str) -> QuerySet[Any]:
    """Filter along the index of the status; the planner uses a partial one only if its condition is repeated."""
    for indexed in (RARE_STATUSES, [Status.PENDING, Status.QUEUED], sorted(ACTIVE)):
        if status in indexed:
            return _filter_by_partial_index(queryset, status__in=sql_literals(indexed), status=status)
    # COMPLETED: start at the newest completed run, since many newer jobs may be waiting.
    ran = JobRun.objects.using(queryset.db).filter(status=Status.COMPLETED).order_by("-pk")
    return queryset.filter(status=Status.COMPLETED, pk__lte=Subquery(ran.values("pk")[:1]))


class AttentionFilter(ChoiceFilter):
    """Filters jobs that may need an operator, and jobs that wait."""

    title = _("attention")
    parameter_name = "attention"
    known_choices = (
        ("blocking", _("Blocks its target")),
        ("stuck", _("Runs without a sign of life")),
        ("timed", _("Waits for its time")),
        ("late", _("Ready for over a minute")),
    )

    def filter_by_choice(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        if value == "blocking":
            return _filter_by_partial_index(queryset, holds_lane=True, status__in=[Status.PAUSED, Status.FAILED])
        if value == "stuck":
            expired = {"status": Status.RUNNING, "lease_expires_at__lt": Now()}
            return _filter_by_partial_index(queryset, status__in=sql_literals(sorted(ACTIVE)), **expired)
        if value == "timed":
            return _filter_by_partial_index(queryset, gate=SqlLiteral(Gate.TIME))
        late = {"remote": False, "created_at__lt": clock.now() - timedelta(minutes=1)}
        return _filter_by_partial_index(queryset, gate=SqlLiteral(Gate.READY), **late)


def _filter_by_partial_index(queryset: QuerySet[Any], **condition: Any) -> QuerySet[Any]:
    """Filter by the keys in a partial index; with the condition itself, the planner may scan all jobs by id."""
    matching = Job.objects.using(queryset.db).filter(**condition).order_by()
    if isinstance(count_capped(matching), CappedInt):  # with so many, a scan by id soon fills a page
        return queryset.filter(**condition)
    return queryset.filter(pk__in=matching.values("pk"))


class EventScan(NamedTuple):
    """The events since a time: the first one's id, how many there are, and the first ended jobs among them."""

    first_id: int
    events: int
    job_ids: list[UUID]


_scan_cache: RateLimitedCache[EventScan] = RateLimitedCache()


def find_ended_jobs(since: datetime, status: str = "", job_type: str = "") -> Any:
    """Return the ids of jobs that ended since a time, as a list or a subquery; of many, COUNT_LIMIT + 1 of the newest.

    They are found by their events, so that completed jobs need no index of their own. A scan that reads many events to
    find few ends is cached for a while.
    """
    ends = JobEvent.objects.filter(at__gte=since)
    if job_type:
        ends = ends.filter(job__job_type=job_type)
    if status in RARE_END_KINDS:
        rare_ends = ends.filter(kind__in=sql_literals(RARE_END_KINDS), kind=status)
        return rare_ends.order_by("-at").values("job_id")[: COUNT_LIMIT + 1]
    ends = ends.filter(kind__in=[status] if status else sorted(TERMINAL)).order_by("-pk")

    def scan_events() -> EventScan:
        first_id = find_first_event_id(since - CLOCK_LEEWAY)
        last_id = JobEvent.objects.aggregate(last=Max("pk"))["last"] or 0
        job_ids = ends.filter(pk__gte=first_id).values_list("job_id", flat=True)[: INLINE_IDS_LIMIT + 1]
        return EventScan(first_id, last_id - first_id, list(job_ids))

    scan = _scan_cache.get((db.alias(), since, status, job_type), scan_events, lambda scan: scan.events)
    if len(scan.job_ids) <= INLINE_IDS_LIMIT:
        return scan.job_ids
    return ends.filter(pk__gte=scan.first_id).values("job_id")[: COUNT_LIMIT + 1]
