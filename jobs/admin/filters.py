"""Filters with fixed choices, so that no page queries the database for the values of a column."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar, NamedTuple
from uuid import UUID

from django.contrib.admin import ListFilter, ModelAdmin, SimpleListFilter
from django.db.models import Max, Q, QuerySet, Subquery
from django.db.models.functions import Coalesce, Now
from django.http import HttpRequest
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.translation import gettext, pgettext_lazy
from django.utils.translation import gettext_lazy as _

from jobs import clock, db
from jobs.admin.base import COUNT_LIMIT, CappedInt, count_capped, parse_uuid
from jobs.ids import min_id_at
from jobs.models import Gate, Job, JobEvent, JobRun, Target
from jobs.models.expressions import SqlLiteral, is_one_of, sql_literals
from jobs.models.job import RARE_STATUSES, STATUS_CHOICES, STATUS_LABELS
from jobs.models.run import RARE_END_KINDS
from jobs.registry import registry
from jobs.states import ACTIVE, TERMINAL, Status
from jobs.stats import queries, ready_jobs
from jobs.stats.cache import RateLimitedCache
from jobs.stats.event_times import CLOCK_LEEWAY, find_first_event_id
from jobs.time_text import format_clock

RECENT_EVENTS = 50_000  # those in which the jobs that finished last are looked for
MAX_IDS = 200  # in a URL
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


class CheckedTypeFilter(ChoiceFilter):
    """Filters jobs by their type, which has no index: the list checks it on a bounded number of rows."""

    title = _("job type")
    parameter_name = field = "job_type"

    def lookups(self, request: HttpRequest, model_admin: ModelAdmin) -> list[tuple[Any, Any]]:
        """Return the types of the registry and of the workers; the list adds those of its rows."""
        served = (name for worker in queries.online_workers() for name in worker.serves.get("types", ()))
        chosen = [name for name in [request.GET.get("job_type", "").replace("\0", "")] if name]
        return [(name, name) for name in sorted({*registry.names(), *served, *chosen})]

    def filter_by_choice(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        return queryset


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


class TimesFilter(ListFilter):
    """Filters by a choice of ages, or from one moment to another: `name`, `name_from` and `name_to` in the URL.

    A moment is an ISO date and time; without an offset, in the time zone of the site.
    """

    name = ""
    template = "jobs/console/no_filter.html"
    known_choices = CreatedFilter.known_choices  # of ages

    def __init__(self, request: HttpRequest, params: dict[str, Any], model: Any, model_admin: Any) -> None:
        super().__init__(request, params, model, model_admin)
        self.parameter_name = self.parameters()[0]
        self.texts = {
            name: params.pop(name)[-1].replace("\0", "").strip()
            for name in self.expected_parameters()
            if name in params
        }
        self.problem = ""
        self.start = self._parse_moment(f"{self.name}_from")
        self.end = self._parse_moment(f"{self.name}_to")
        self.age = CreatedFilter.ages.get(self.chosen_age)

    @classmethod
    def parameters(cls) -> list[str]:
        return [cls.name, f"{cls.name}_from", f"{cls.name}_to"]

    def expected_parameters(self) -> list[str | None]:
        return list(self.parameters())

    def has_output(self) -> bool:
        return True

    def choices(self, changelist: Any) -> Iterator[Mapping[str, object]]:
        return iter(())

    def value(self) -> str:
        """Return the choice in words."""
        if any(self.texts.get(name) for name in self.parameters()[1:]):
            limits = (format_clock(moment) if moment is not None else "…" for moment in (self.start, self.end))
            return " – ".join(limits)
        return str(dict(self.known_choices).get(self.chosen_age, ""))

    @property
    def chosen_age(self) -> str:
        return self.texts.get(self.parameters()[0], "")

    @property
    def fields(self) -> list[tuple[str, Any, str]]:
        """Return name, label and value of the two fields of the form, in the time zone of the site."""
        labels = (pgettext_lazy("time range", "from"), pgettext_lazy("time range", "to"))
        moments = (self.start, self.end)
        return [
            (name, label, "" if moment is None else f"{timezone.localtime(moment):%Y-%m-%dT%H:%M:%S}")
            for name, label, moment in zip(self.parameters()[1:], labels, moments, strict=True)
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if self.problem:
            return queryset.none()
        start = self.start
        if self.age is not None and start is None:
            start = timezone.now() - self.age
        if start is None and self.end is None:
            return queryset
        return self.filter_by_times(queryset, start, self.end)

    def filter_by_times(self, queryset: QuerySet[Any], start: datetime | None, end: datetime | None) -> QuerySet[Any]:
        raise NotImplementedError

    def _parse_moment(self, name: str) -> datetime | None:
        text = self.texts.get(name, "")
        if not text:
            return None
        moment = parse_moment(text)
        if moment is None:
            values = {"field": name, "value": text[:40]}
            self.problem = gettext("%(field)s: “%(value)s” is no date and time, such as 2026-11-18T09:30.") % values
        return moment


def parse_moment(text: str) -> datetime | None:
    """Parse an ISO date and time; without an offset, in the time zone of the site. A plus may have become a space."""
    try:
        moment = parse_datetime(re.sub(r" (\d\d:?\d\d)$", r"+\1", text))
    except ValueError:
        return None
    if moment is None or not 1970 < moment.year < 9000:
        return None
    return moment if timezone.is_aware(moment) else timezone.make_aware(moment)


class SubmittedFilter(TimesFilter):
    """Filters by the time of submission, along the primary key: ids are ordered by time."""

    title = _("submitted")
    name = "submitted"

    @classmethod
    def parameters(cls) -> list[str]:
        return ["created", "submitted_from", "submitted_to"]

    def filter_by_times(self, queryset: QuerySet[Any], start: datetime | None, end: datetime | None) -> QuerySet[Any]:
        if start is not None:
            queryset = queryset.filter(pk__gte=min_id_at(start))
        return queryset if end is None else queryset.filter(pk__lt=min_id_at(end))


class EndedFilter(TimesFilter):
    """Filters by the time when jobs finished. Of many jobs, the newest are found.

    An age begins at a full minute, like the rollup.
    """

    title = pgettext_lazy("filter of jobs", "finished")
    name = "ended"

    def __init__(self, request: HttpRequest, params: dict[str, Any], model: Any, model_admin: Any) -> None:
        super().__init__(request, params, model, model_admin)
        self.statuses = get_statuses(request.GET.get("status", ""))
        self.job_type = request.GET.get("job_type", "").replace("\0", "")

    @classmethod
    def is_used(cls, request: HttpRequest) -> bool:
        return any(request.GET.get(name) for name in cls.parameters())

    def filter_by_times(self, queryset: QuerySet[Any], start: datetime | None, end: datetime | None) -> QuerySet[Any]:
        ends = self.statuses & TERMINAL
        if self.statuses and not ends:
            return queryset.none()
        since = start or datetime(1970, 1, 2, tzinfo=UTC)
        if self.start is None and self.age is not None:
            minute = since.replace(second=0, microsecond=0)
            since = minute if minute == since else minute + timedelta(minutes=1)
        return queryset.filter(pk__in=find_ended_jobs(since, end, sorted(ends), self.job_type))


# The tabs of the job list, by what an operator asks; each is a value of `status`, beside the statuses themselves.
TABS: dict[str, Any] = {
    "running": pgettext_lazy("tab of the job list", "Running"),
    "waiting": pgettext_lazy("tab of the job list", "Waiting"),
    "blocked": pgettext_lazy("tab of the job list", "Blocked"),
    "scheduled": pgettext_lazy("tab of the job list", "Scheduled"),
    "stopped": pgettext_lazy("tab of the job list", "Paused or held"),
    "FAILED": STATUS_LABELS[Status.FAILED],
    "COMPLETED": STATUS_LABELS[Status.COMPLETED],
    "dropped": pgettext_lazy("tab of the job list", "Skipped, cancelled"),
}
_STATUSES_OF_TAB = {
    "running": ACTIVE,
    "waiting": frozenset({Status.PENDING, Status.QUEUED}),
    "blocked": frozenset({Status.QUEUED}),
    "scheduled": frozenset({Status.QUEUED}),
    "stopped": frozenset({Status.PENDING, Status.PAUSED}),
    "dropped": frozenset({Status.SKIPPED, Status.CANCELLED}),
}


def get_statuses(value: str) -> frozenset[Status]:
    """Return the statuses of a tab or of one status; none for an unknown value."""
    if value in _STATUSES_OF_TAB:
        return _STATUSES_OF_TAB[value]
    return frozenset({Status(value)}) if value in STATUS_LABELS else frozenset()


class StatusFilter(ChoiceFilter):
    """Filters by a tab or by one status, each along its own index."""

    title = _("status")
    parameter_name = field = "status"
    known_choices = (*STATUS_CHOICES, *TABS.items())
    has_tabs = True

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        """Leave an ended status to EndedFilter: the status's own index would read all jobs that ever ended so."""
        if EndedFilter.is_used(request) and get_statuses(self.value() or "") & TERMINAL:
            return queryset
        return super().queryset(request, queryset)

    def filter_by_choice(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        return filter_by_status(queryset, value)


def filter_by_status(queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
    """Filter by a status or a tab along its index; the planner uses a partial one only if its condition is repeated."""
    waiting = Q(status__in=sql_literals([Status.PENDING, Status.QUEUED]))
    match value:
        case "running":
            return _filter_by_partial_index(queryset, Q(status__in=sql_literals(sorted(ACTIVE))))
        case "waiting":
            is_due = Q(gate__in=[Gate.LANE, Gate.READY]) & ~_is_blocked(queryset)
            return _filter_by_partial_index(queryset, waiting & (is_due | Q(status=Status.PENDING, hold=False)))
        case "blocked":
            return _filter_by_partial_index(queryset, waits_for_operator(queryset))
        case "scheduled":
            return _filter_by_partial_index(queryset, Q(gate=SqlLiteral(Gate.TIME)))
        case "stopped":
            stopped = Q(status__in=[Status.PAUSED, Status.PENDING]) & (Q(status=Status.PAUSED) | Q(hold=True))
            return _filter_by_partial_index(queryset, is_one_of("status", RARE_STATUSES) & stopped)
        case "dropped":
            dropped = Q(status__in=[Status.SKIPPED, Status.CANCELLED])
            return _filter_by_partial_index(queryset, is_one_of("status", RARE_STATUSES) & dropped)
    if value in RARE_STATUSES:  # its index has the jobs of one status in the order of ids
        return queryset.filter(is_one_of("status", RARE_STATUSES), status=value)
    for indexed in ([Status.PENDING, Status.QUEUED], sorted(ACTIVE)):
        if value in indexed:
            return _filter_by_partial_index(queryset, Q(status__in=sql_literals(indexed), status=value))
    # COMPLETED: start at the newest completed run, since many newer jobs may be waiting.
    ran = JobRun.objects.using(queryset.db).filter(status=Status.COMPLETED).order_by("-pk")
    return queryset.filter(status=Status.COMPLETED, pk__lte=Subquery(ran.values("pk")[:1]))


def waits_for_operator(queryset: QuerySet[Any]) -> Q:
    """Return the condition of the tab "blocked", along the index of lanes."""
    return Q(gate__in=sql_literals([Gate.LANE, Gate.READY]), lane__isnull=False) & _is_blocked(queryset)


def _is_blocked(queryset: QuerySet[Any]) -> Q:
    """Return the condition that the target of a job waits for an operator."""
    holders = Job.objects.using(queryset.db).filter(
        holds_lane=True, status__in=[Status.PAUSED, Status.FAILED], lane__isnull=False
    )
    paused = Target.objects.using(queryset.db).filter(paused=True)
    in_blocked = Q(lane__in=holders.order_by().values("lane")) | Q(lane__in=paused.order_by().values("pk"))
    return Q(lane__isnull=False) & in_blocked


class AttentionFilter(ChoiceFilter):
    """Filters jobs that may need an operator, and jobs that wait."""

    title = _("needs attention")
    parameter_name = "attention"
    known_choices = (
        ("unhandled", _("Failed, neither retried nor resolved")),
        ("blocking", _("Blocks its target")),
        ("unserved", _("No worker handles it")),
        ("stuck", _("Missed heartbeat")),
        ("timed", _("Scheduled for later")),
        ("late", _("Ready for more than 1 min")),
    )

    def filter_by_choice(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        if value == "unhandled":
            return queryset.filter(queries.unhandled_failures())
        if value == "unserved":
            unserved = ready_jobs.unserved_jobs(queries.list_workers(), clock.now())
            return _filter_by_partial_index(queryset, unserved)
        if value == "blocking":
            return _filter_by_partial_index(queryset, Q(holds_lane=True, status__in=[Status.PAUSED, Status.FAILED]))
        if value == "stuck":
            expired = Q(status=Status.RUNNING, lease_expires_at__lt=Now())
            return _filter_by_partial_index(queryset, Q(status__in=sql_literals(sorted(ACTIVE))) & expired)
        if value == "timed":
            return _filter_by_partial_index(queryset, Q(gate=SqlLiteral(Gate.TIME)))
        late = Q(remote=False, created_at__lt=clock.now() - timedelta(minutes=1))
        return _filter_by_partial_index(queryset, Q(gate=SqlLiteral(Gate.READY)) & late)


class SortFilter(ChoiceFilter):
    """The order of the list. An order other than by id lists only the jobs that have the time it is by."""

    title = _("order")
    parameter_name = "sort"
    known_choices = (
        ("newest", _("Newest first")),
        ("oldest", _("Oldest first")),
        ("running", _("Longest running")),
        ("due", _("Next due")),
        ("finished", _("Last finished")),
    )
    has_tabs = True
    orderings: ClassVar[dict[str, list[Any]]] = {
        "oldest": ["pk"],
        "running": ["run__started_at", "pk"],
        "due": [Coalesce("recheck_at", "not_before"), "pk"],
        "finished": ["-events__pk"],
    }

    def filter_by_choice(self, queryset: QuerySet[Any], value: str) -> QuerySet[Any]:
        if value == "running":
            return queryset.filter(status__in=sql_literals(sorted(ACTIVE)))
        if value == "due":
            return queryset.filter(gate=SqlLiteral(Gate.TIME))
        return queryset


def order_by_end(queryset: QuerySet[Any], statuses: Collection[Status], *, is_bounded: bool) -> QuerySet[Any]:
    """Order finished jobs by their end, the last one first, along the events: each has one event with which it ended.

    Unless the queryset is bounded, only ends among the newest events are found; of a status with an index of its
    own, the newest ends.
    """
    if is_bounded:
        return queryset.filter(events__kind__in=sorted(statuses)).order_by("-events__pk")
    ends = JobEvent.objects.using(queryset.db)
    if len(statuses) > 1 or not all(status in RARE_END_KINDS for status in statuses):
        last_id = ends.aggregate(last=Max("pk"))["last"] or 0
        recent = {"events__kind__in": sorted(statuses), "events__pk__gt": last_id - RECENT_EVENTS}
        return queryset.filter(**recent).order_by("-events__pk")
    (kind,) = statuses
    newest = ends.filter(is_one_of("kind", RARE_END_KINDS), kind=kind).order_by("-at").values("pk")
    return queryset.filter(events__pk__in=newest[: COUNT_LIMIT + 1]).order_by("-events__pk")


def _filter_by_partial_index(queryset: QuerySet[Any], condition: Q) -> QuerySet[Any]:
    """Filter by the keys in a partial index; with the condition itself, the planner may scan all jobs by id."""
    matching = Job.objects.using(queryset.db).filter(condition).order_by()
    if isinstance(count_capped(matching), CappedInt):  # with so many, a scan by id soon fills a page
        return queryset.filter(condition)
    return queryset.filter(pk__in=matching.values("pk"))


class EventScan(NamedTuple):
    """The events of a time: the ids of the first and the last, and the newest ended jobs among them."""

    first_id: int
    last_id: int
    job_ids: list[UUID]


_scan_cache: RateLimitedCache[EventScan] = RateLimitedCache()


def find_ended_jobs(
    since: datetime, until: datetime | None = None, statuses: Collection[str] = (), job_type: str = ""
) -> Any:
    """Return the ids of jobs that ended in a time, as a list or a subquery; of many, COUNT_LIMIT + 1 of the newest.

    They are found by their events, so that completed jobs need no index of their own. A scan that reads many events to
    find few ends is cached for a while.
    """
    ends = JobEvent.objects.filter(at__gte=since)
    if until is not None:
        ends = ends.filter(at__lt=until)
    if job_type:
        ends = ends.filter(job__job_type=job_type)
    if len(statuses) == 1 and statuses[0] in RARE_END_KINDS:  # type: ignore[index]
        rare_ends = ends.filter(is_one_of("kind", RARE_END_KINDS), kind=statuses[0])  # type: ignore[index]
        return rare_ends.order_by("-at").values("job_id")[: COUNT_LIMIT + 1]
    ends = ends.filter(kind__in=sorted(statuses or TERMINAL)).order_by("-pk")

    def scan_events() -> EventScan:
        first_id = find_first_event_id(since - CLOCK_LEEWAY)
        if until is None:
            last_id = JobEvent.objects.aggregate(last=Max("pk"))["last"] or 0
        else:
            last_id = find_first_event_id(until + CLOCK_LEEWAY)
        between = ends.filter(pk__gte=first_id, pk__lte=last_id)
        job_ids = between.values_list("job_id", flat=True)[: INLINE_IDS_LIMIT + 1]
        return EventScan(first_id, last_id, list(job_ids))

    key = (db.alias(), since, until, tuple(statuses), job_type)
    scan = _scan_cache.get(key, scan_events, lambda scan: scan.last_id - scan.first_id)
    if len(scan.job_ids) <= INLINE_IDS_LIMIT:
        return scan.job_ids
    newest = ends.filter(pk__gte=scan.first_id)
    if until is not None:
        newest = newest.filter(pk__lte=scan.last_id)
    return newest.values("job_id")[: COUNT_LIMIT + 1]


class IdsFilter(ListFilter):
    """Filters by ids in the URL, separated by commas: the jobs that a number of another page counts."""

    title = _("chosen jobs")
    parameter_name = "ids"
    template = "jobs/console/no_filter.html"
    has_tabs = True  # it has no field of its own

    def __init__(self, request: HttpRequest, params: dict[str, Any], model: Any, model_admin: Any) -> None:
        super().__init__(request, params, model, model_admin)
        self.text = params.pop(self.parameter_name, [""])[-1]

    def has_output(self) -> bool:
        return True

    def expected_parameters(self) -> list[str | None]:
        return [self.parameter_name]

    def choices(self, changelist: Any) -> Any:
        return []

    def value(self) -> str:
        return self.text

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        if not self.text:
            return queryset
        job_ids = (parse_uuid(text) for text in self.text.split(",")[:MAX_IDS])
        return queryset.filter(pk__in=[job_id for job_id in job_ids if job_id is not None])
