"""Filters whose choices are known beforehand: no page ever asks the database which values there are."""

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

INLINE_IDS_LIMIT = 500  # ids that a statement may name
CLOCK_LEEWAY = timedelta(minutes=10)  # numbers are given before a commit, and times may be of another clock
# Events are numbered as they happen: the first one since a moment is found by halving, a few dozen looks along the key.
_EVENT_TIME = "(SELECT at FROM jobscheduler_jobevent WHERE id >= (low + high) / 2 ORDER BY id LIMIT 1)"
_FIRST_EVENT = f"""
    WITH RECURSIVE half (low, high) AS (
        SELECT coalesce((SELECT min(id) FROM jobscheduler_jobevent), 0),
               coalesce((SELECT max(id) FROM jobscheduler_jobevent), 0)
        UNION ALL
        SELECT CASE WHEN {_EVENT_TIME} < %s THEN (low + high) / 2 + 1 ELSE low END,
               CASE WHEN {_EVENT_TIME} < %s THEN high ELSE (low + high) / 2 END
        FROM half WHERE low < high
    )
    SELECT max(low) FROM half
"""  # noqa: S608 — nothing that anybody typed


class ChoiceFilter(SimpleListFilter):
    """One column equals one of the choices; any other value in the URL is no filter at all."""

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
    """A filter on a column with choices; its parameter is named like the column."""
    return type(
        f"{field.title()}Filter",
        (ChoiceFilter,),
        {"title": title, "parameter_name": field, "field": field, "known_choices": list(choices)},
    )


YES_NO = (("1", _("Yes")), ("0", _("No")))
EnabledFilter = choice_filter("enabled", _("enabled"), YES_NO)
PausedFilter = choice_filter("paused", _("paused"), YES_NO)


class JobTypeFilter(ChoiceFilter):
    """The job types of the registry."""

    title = _("job type")
    parameter_name = field = "job_type"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin) -> list[tuple[Any, Any]]:
        return [(name, name) for name in registry.names()]


class CreatedFilter(ChoiceFilter):
    """By age. The ids are time-ordered, so the primary key is the index for it."""

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
    """By when jobs ended, counted from the same minute as the rollup counts."""

    title = pgettext_lazy("filter of jobs", "ended")
    parameter_name = "ended"
    known_choices, ages = CreatedFilter.known_choices, CreatedFilter.ages

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """With the status and the job type, which decide among many which are the newest."""
        self.status, self.job_type = request.GET.get("status", ""), request.GET.get("job_type", "")
        return super().queryset(request, queryset)

    def filter_by_choice(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        if self.status in LIVE:
            return queryset.none()
        status = self.status if self.status in TERMINAL else ""
        job_type = self.job_type if self.job_type in registry.names() else ""
        began = timezone.now() - self.ages[value]
        minute = began.replace(second=0, microsecond=0)
        moment = minute if minute == began else minute + timedelta(minutes=1)
        return queryset.filter(pk__in=find_ended_jobs(moment, status, job_type))


class StatusFilter(ChoiceFilter):
    """Each status along its own index: the condition of a partial one must be repeated word for word."""

    title = _("status")
    parameter_name = field = "status"
    known_choices = STATUS_CHOICES
    has_tabs = True

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """A time of ending comes with the status; its index, too, would lead through all that ever ended so."""
        if request.GET.get("ended") in EndedFilter.ages and self.value() in TERMINAL:
            return queryset
        return super().queryset(request, queryset)

    def filter_by_choice(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        return filter_by_status(queryset, value)


def filter_by_status(queryset: QuerySet[Any], status: str) -> QuerySet[Any]:
    for part in (RARE_STATUSES, [Status.PENDING, Status.QUEUED], sorted(ACTIVE)):
        if status in part:
            return _filter_by_partial_index(queryset, status__in=sql_literals(part), status=status)
    # Completed, from the newest that ran: those that wait are newer, and may be many.
    ran = JobRun.objects.using(queryset.db).filter(status=Status.COMPLETED).order_by("-pk")
    return queryset.filter(status=Status.COMPLETED, pk__lte=Subquery(ran.values("pk")[:1]))


class AttentionFilter(ChoiceFilter):
    """What a person may have to look after."""

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
            over = {"status": Status.RUNNING, "lease_expires_at__lt": Now()}
            return _filter_by_partial_index(queryset, status__in=sql_literals(sorted(ACTIVE)), **over)
        if value == "timed":
            return _filter_by_partial_index(queryset, gate=SqlLiteral(Gate.TIME))
        late = {"remote": False, "created_at__lt": clock.now() - timedelta(minutes=1)}
        return _filter_by_partial_index(queryset, gate=SqlLiteral(Gate.READY), **late)


def _filter_by_partial_index(queryset: QuerySet[Any], **condition: Any) -> QuerySet[Any]:
    """Those few that a partial index knows. Asked in one piece, a database may rather look through all jobs by id."""
    few = Job.objects.using(queryset.db).filter(**condition).order_by()
    if isinstance(count_capped(few), CappedInt):  # of so many, a page is soon found by id
        return queryset.filter(**condition)
    return queryset.filter(pk__in=few.values("pk"))


class EventScan(NamedTuple):
    """Along the events since a moment, up to a few ends."""

    first: int
    events: int
    jobs: list[UUID]


_scan_cache: RateLimitedCache[EventScan] = RateLimitedCache()


def find_ended_jobs(moment: datetime, status: str = "", job_type: str = "") -> Any:
    """The ids of those that ended since then, of many the newest: one more than a list counts.

    From their events, so that no index has to be kept for the many that completed.
    Where ends are few among much else that happened, they are looked for once, for a while and for all statements.
    """
    ends = JobEvent.objects.filter(at__gte=moment)
    if job_type:
        ends = ends.filter(job__job_type=job_type)
    if status in RARE_END_KINDS:
        return (
            ends.filter(kind__in=sql_literals(RARE_END_KINDS), kind=status)
            .order_by("-at")
            .values("job_id")[: COUNT_LIMIT + 1]
        )
    ends = ends.filter(kind__in=[status] if status else sorted(TERMINAL)).order_by("-pk")

    def walk() -> EventScan:
        first = find_first_event_id(moment - CLOCK_LEEWAY)
        last = JobEvent.objects.aggregate(last=Max("pk"))["last"] or 0
        found = ends.filter(pk__gte=first).values_list("job_id", flat=True)[: INLINE_IDS_LIMIT + 1]
        return EventScan(first, last - first, list(found))

    walked = _scan_cache.get((db.alias(), moment, status, job_type), walk, lambda found: found.events)
    if len(walked.jobs) <= INLINE_IDS_LIMIT:
        return walked.jobs
    return ends.filter(pk__gte=walked.first).values("job_id")[: COUNT_LIMIT + 1]


def find_first_event_id(moment: datetime) -> int:
    """The number of the first event since then, or of the last one before."""
    connection = db.connection()
    at = connection.ops.adapt_datetimefield_value(moment)
    with connection.cursor() as cursor:
        cursor.execute(_FIRST_EVENT, [at, at])
        return int(cursor.fetchone()[0])
