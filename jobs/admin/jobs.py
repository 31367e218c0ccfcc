"""Jobs: the list with its columns, tabs and counts, and the fields of a job's page."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from functools import partial
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.contrib.admin import AdminSite, ModelAdmin
from django.contrib.admin.exceptions import DisallowedModelAdminLookup
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.utils import unquote
from django.db.models import Max, Model, Q, QuerySet
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils import timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext, pgettext

from jobs import db, explain
from jobs.admin import filters, job_detail, screens
from jobs.admin.base import (
    CappedInt,
    ConsoleChangeList,
    can_view_payload,
    count_capped,
    fieldset,
    find_key_query,
    list_parameters,
    split_terms,
)
from jobs.admin.columns import column, computed_column, link, link_column, list_url, load_params_lines, short_id
from jobs.admin.filters import (
    AttentionFilter,
    CheckedTypeFilter,
    EndedFilter,
    IdsFilter,
    SortFilter,
    StatusFilter,
    SubmittedFilter,
    TimesFilter,
    get_statuses,
    order_by_end,
)
from jobs.admin.formatting import (
    first_line,
    format_attempt,
    format_count,
    format_duration,
    format_reason,
    format_relative_time,
    format_whole_percent,
    isolate_text,
    json_block,
    state_badge,
    truncate_text,
)
from jobs.admin.job_actions import FILTERS, JobActionAdmin
from jobs.admin.job_search import CHECK_LIMIT, QUALIFIERS, JobSearch, is_tag_or_target, limit_rows
from jobs.admin.navigation import VIEW_DIAGNOSTICS
from jobs.admin.screens import screen
from jobs.conf import conf
from jobs.models import ConcurrencyLimit, Gate, Job, JobEvent, Target
from jobs.payload_visibility import hide_in_job
from jobs.states import ACTIVE, CRASH_RECOVERY_REASON, LEASE_EXPIRED_REASON, OVERLAP_REASON, TERMINAL, Status
from jobs.stats.cache import RateLimitedCache
from jobs.time_text import format_exact

PAUSED_SHOWN = 3
INTERNAL_FIELDS = ("gate", "holds_lane", "position", "fence")  # for who may view diagnostics
_folded = partial(fieldset, folded=True)


class JobChangeList(ConsoleChangeList):
    """The job list: tabs, orders, checks of what has no index, and skipped runs of a schedule folded into one row."""

    check_limit = CHECK_LIMIT

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Any]:
        """Check conditions without an index on the first CHECK_LIMIT rows of the list alone."""
        checks: list[Q] = []
        request.__dict__["_job_checks"] = checks
        queryset = super().get_queryset(request, exclude_parameters)
        self.are_rows_unchecked = False
        job_type = request.GET.get("job_type", "").replace("\0", "")
        if job_type:
            checks.append(Q(job_type=job_type))
        if not checks:
            return queryset
        self.are_rows_unchecked = isinstance(count_capped(queryset, CHECK_LIMIT), CappedInt)
        return limit_rows(queryset, CHECK_LIMIT).filter(*checks)

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        return SortFilter.orderings.get(request.GET.get("sort", ""), ["-pk"])

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        if not is_unfolded(request):
            self.result_list = fold_skipped_runs(list(self.result_list))
            _name_schedules(self.result_list)

    def read_page(self, page: QuerySet[Any]) -> list[Any]:
        """Read the ids of the page first: an index has them, and to sort whole rows reads all jobs that match."""
        ids, admin = _read_ids(page), self.model_admin
        rows = self.root_queryset.select_related(*admin.list_select_related).defer(*admin.list_defer)
        by_id = rows.order_by().in_bulk(ids)
        return [by_id[pk] for pk in ids if pk in by_id]

    @property
    def tabs(self) -> list[dict[str, Any]]:
        """The tabs, which keep the search and the filters."""
        value = self.params.get("status", "")
        tabs = [{"name": "all", "title": _now("All"), "query": self._query(status=None), "is_current": not value}]
        for name, title in filters.TABS.items():
            is_current = value == name or (name == "running" and value in ACTIVE)
            tabs.append({"name": name, "title": title, "query": self._query(status=name), "is_current": is_current})
        return tabs

    @property
    def sorts(self) -> list[dict[str, Any]]:
        current = self.params.get("sort") or "newest"
        return [
            {"title": title, "query": self._query(sort=name), "is_current": name == current}
            for name, title in SortFilter.known_choices
        ]

    @property
    def chips(self) -> list[dict[str, Any]]:
        """The filters in force, each with the query that removes it."""
        chips = []
        for spec in self.filters:
            if text := spec.value():
                names = list_parameters(spec)
                label = dict(getattr(spec, "lookup_choices", ())).get(text, text)
                chips.append({"title": spec.title, "value": label, "query": self._query(**dict.fromkeys(names))})
        return chips

    @property
    def count_query(self) -> str:
        return self._query(sort=None)

    @property
    def other_params(self) -> list[tuple[str, str]]:
        """The query parameters that the search form does not have."""
        names = {name for spec in self.filters for name in list_parameters(spec)} | {"q"}
        return [(name, value) for name, value in self.params.items() if name not in names]

    @property
    def type_filter(self) -> Any:
        return self._spec("job_type")

    @property
    def job_types(self) -> list[str]:
        """The choices of the filter by type, with the types of the rows."""
        names = {name for name, _label in self._spec("job_type").lookup_choices}
        return sorted(names | {job.job_type for job in self.result_list})

    @property
    def attention_filter(self) -> Any:
        return self._spec("attention")

    @property
    def times_filters(self) -> list[Any]:
        return [spec for spec in self.filters if isinstance(spec, TimesFilter)]

    def _spec(self, name: str) -> Any:
        return next(spec for spec in self.filter_specs if spec.parameter_name == name)  # type: ignore[attr-defined]

    def _query(self, **values: str | None) -> str:
        return self.get_query_string(values)


class CountedJobs(JobChangeList):
    """The number of jobs in a list; its rows are not read."""

    def get_results(self, request: HttpRequest) -> None:
        self.result_list = []
        self.result_count = count_capped(self.queryset)
        self.show_full_result_count = self.show_admin_actions = self.can_show_all = self.multi_page = False
        self.full_result_count, self.paginator = None, None


def _read_ids(page: QuerySet[Any]) -> list[UUID]:
    """Return the ids of a page. Those that another table finds are sorted without the jobs.

    For a join with a limit, PostgreSQL walks all jobs that are newer than the first one found.
    """
    keys, order = find_key_query(page), tuple(page.query.order_by)
    if keys is None or keys.model is Job or order not in (("-pk",), ("pk",)):
        return list(page.values_list("pk", flat=True))
    connection = db.connection()
    sql, params = keys.get_compiler(connection=connection).as_sql()
    limit = connection.ops.limit_offset_sql(page.query.low_mark, page.query.high_mark)
    with connection.cursor() as cursor:
        direction = "DESC" if order == ("-pk",) else "ASC"
        cursor.execute(f"SELECT job_id FROM ({sql}) found ORDER BY job_id {direction} {limit}", params)  # noqa: S608
        return [UUID(str(job_id)) for (job_id,) in cursor.fetchall()]


def is_unfolded(request: HttpRequest) -> bool:
    """Return whether skipped runs are shown one by one: the list is about one schedule, or about chosen jobs."""
    return "schedule:" in request.GET.get("q", "") or "ids" in request.GET


def fold_skipped_runs(jobs: list[Any]) -> list[Any]:
    """Leave one row of all runs of a schedule that were skipped because the previous one was unfinished.

    Its `folded` are the keys of the rows that it stands for.
    """
    first_of: dict[Any, Any] = {}
    rows = []
    for job in jobs:
        job.folded = [job.pk]
        is_overlap = job.status == Status.SKIPPED and job.status_reason.startswith(OVERLAP_REASON)
        first = first_of.setdefault(job.schedule_id, job) if is_overlap and job.schedule_id is not None else job
        if first is job:
            rows.append(job)
        else:
            first.folded.append(job.pk)
    return rows


def _name_schedules(jobs: list[Job]) -> None:
    """Set `schedule_name` of the rows that stand for several skipped runs."""
    folded = [job for job in jobs if len(job.folded) > 1]  # type: ignore[attr-defined]
    if folded:
        model: Any = Job._meta.get_field("schedule").related_model
        names = dict(model.objects.filter(pk__in=[job.schedule_id for job in folded]).values_list("pk", "name"))
        for job in folded:
            job.schedule_name = names.get(job.schedule_id, "")  # type: ignore[attr-defined]


class JobAdmin(JobActionAdmin):
    change_form_template = "jobs/job_page.html"
    change_list_template = "jobs/job_list.html"
    empty_text = _("No jobs yet: submit one from your code, through the API or with “manage.py enqueue”.")
    list_display = ("shown_status", "job_and_params", "shown_target", "details", "shown_priority", "status_time")
    list_display_links = ("job_and_params",)
    list_filter = (
        StatusFilter,
        AttentionFilter,
        SubmittedFilter,
        EndedFilter,
        CheckedTypeFilter,
        IdsFilter,
        SortFilter,
    )
    sortable_by = ()
    list_select_related = ("run",)
    list_defer = ("params", "tags", "constraints", "checkpoint", "retry_policy", "run__error", "run__artifacts")
    qualifiers = dict.fromkeys(QUALIFIERS, "")
    fieldsets = (
        _folded(
            _("All fields"),
            *("id", "job_type", "template", "tenant", "lane_link", "addon_id", "shown_tags"),
            *("status", "shown_reason", "hold", "stop_request", "shown_progress", "resolved_at"),
            ("priority", "base_priority"),
            ("created_at", "not_before", "recheck_at", "dispatched_at"),
            ("deadline_at", "time_sensitive"),
            ("expected_duration_sec", "max_runtime_sec"),
            *(("resource", "cost_units"), "shown_constraints", ("token_limit", "tokens_used")),
            *(("remote", "lease_owner"), ("lease_expires_at", "heartbeat_at", "reserved_until")),
            *(("retry_of_link", "retried_by_link"), ("attempt", "max_retries", "snooze_count"), "shown_retry_policy"),
            *(("group", "group_index"), ("schedule", "fire_time")),
            *("idempotency_key", ("unique_key", "unique_until"), *INTERNAL_FIELDS),
        ),
    )

    shown_tags = column(_("tags"), "tags", lambda value: json_block(value or None))
    shown_constraints = column(_("constraints"), "constraints", lambda value: json_block(value or None))
    shown_retry_policy = column(_("retry policy"), "retry_policy", lambda value: json_block(value or None))
    retry_of_link = link_column(_("retry of"), Job, "retry_of_id")
    shown_target = column(_("target"), "target", lambda key: None if key is None else isolate_text(first_line(key, 60)))

    def describe_search(self) -> Any:
        return _("Search by id, job type, target or tag, or with a qualifier. Use * as a wildcard at the end.")

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[JobChangeList]:
        return CountedJobs if request.__dict__.get("_counts_only") else JobChangeList

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        if request.GET.get("sort") == "finished":
            statuses = get_statuses(request.GET.get("status", "")) or TERMINAL
            if not (ends := statuses & TERMINAL):
                return queryset.none(), False
            queryset = order_by_end(queryset, ends, is_bounded=EndedFilter.is_used(request))
        terms, problem = split_terms(search_term, QUALIFIERS, is_word=is_tag_or_target)
        if problem:
            self.report_search_problem(request, problem)
            return queryset.none(), False
        search = JobSearch(queryset, can_view_payload(request), request.__dict__.get("_job_checks", []))
        for term in terms:
            search.add(term)
        self.report_search_problem(request, search.problem)
        return search.rows, False

    def complete_rows(self, request: HttpRequest, rows: QuerySet[Any]) -> None:
        """Set what computed columns show: `brief_params`, `wait` (why it waits), `is_recovery_retry`, `since`."""
        jobs = list(rows)
        params = load_params_lines(jobs) if can_view_payload(request) else {}
        retried = [job.retry_of_id for job in jobs if job.retry_of_id is not None]
        lost = Job.objects.filter(pk__in=retried, status_reason__in=(LEASE_EXPIRED_REASON, CRASH_RECOVERY_REASON))
        lost_ids = set(lost.order_by().values_list("pk", flat=True))
        reasons, since = explain.find_first_reasons(jobs), _find_last_changes(jobs)
        for job in jobs:
            job.is_recovery_retry = job.retry_of_id in lost_ids
            job.brief_params = params.get(job.pk, "")
            job.wait = reasons.get(job.pk)
            job.since = since.get(job.pk)

    def describe_missing(self, object_id: str) -> str:
        text = _now("Job %s is not here.") % object_id[:100]
        if (days := conf.RETENTION_DAYS) is None:
            return text
        rule = ngettext(
            "Jobs are deleted %s day after they finish.", "Jobs are deleted %s days after they finish.", round(days)
        )
        return f"{text} {rule % format(days, 'g')}"

    def hide_payload(self, row: Job) -> None:
        hide_in_job(row)

    def list_version(self) -> str:
        return f"{screens.latest_event_id()} {screens.latest_activity_id()}"  # a pause of a limit is no event

    def list_context(self, request: HttpRequest) -> dict[str, Any]:
        """Return the paused limits, URLs, the qualifiers of the search, and the time zone of the fields."""
        paused = ConcurrencyLimit.objects.filter(paused=True).order_by("scope", "key")[: PAUSED_SHOWN + 1]
        context: dict[str, Any] = {
            "paused": list(paused[:PAUSED_SHOWN]),
            "paused_url": _paused_url(self.admin_site),
            "counts_url": screens.screen_url(self.admin_site, "counts"),
            "qualifiers": [f"{name}:" for name in QUALIFIERS],
            "zone": timezone.localtime().strftime("%Z"),
        }
        if request.user.has_perm(screens.SCREENS["enqueue"].permission):
            query = {FILTERS: request.GET.urlencode()} if request.GET else {}
            if job_type := request.GET.get("job_type"):
                query["job_type"] = job_type
            url = screens.screen_url(self.admin_site, "enqueue")
            context["new_job_url"] = f"{url}?{urlencode(query)}" if query else url
        return context

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        view, job = super().change_view, self.get_object(request, unquote(object_id))
        if job is None or not self.has_view_permission(request, job) or request.method != "GET":
            return view(request, object_id, form_url, extra_context)

        def build(shared: dict[str, Any]) -> HttpResponse:
            context = {**shared, **job_detail.page_context(self, request, job), **(extra_context or {})}
            return view(request, object_id, form_url, context)

        return screens.live_page(self.admin_site, request, job_detail.page_version(job.pk), build)

    def get_fieldsets(self, request: HttpRequest, obj: Model | None = None) -> list[Any]:
        fieldsets = super().get_fieldsets(request, obj)
        if request.user.has_perm(VIEW_DIAGNOSTICS):
            return fieldsets
        return [
            (title, {**options, "fields": [name for name in options["fields"] if name not in INTERNAL_FIELDS]})
            for title, options in fieldsets
        ]

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Job | None:
        """Read the job once per request, not once for each part of the page."""
        cache: dict[str, Job | None] = request.__dict__.setdefault("_jobs_of_page", {})
        if object_id not in cache:
            cache[object_id] = super().get_object(request, object_id, from_field)
        return cache[object_id]

    @computed_column(_("job"))
    def job_and_params(self, job: Job) -> SafeString:
        """Show the job type, and below it the end of the id, and the params if the user may see them."""
        params = getattr(job, "brief_params", "")
        second = format_html(" · <bdi>{}</bdi>", params) if params not in ("", "{}") else ""
        two_lines = '<bdi>{}</bdi><samp class="jc-line jc-small jc-muted"><span title="{}">{}</span>{}</samp>'
        return format_html(two_lines, job.job_type, job.pk, short_id(job.pk), second)

    @computed_column(_("state"))
    def shown_status(self, job: Job) -> SafeString:
        return state_badge(job, getattr(job, "wait", None))

    @computed_column(_("details"))
    def details(self, job: Job) -> SafeString | None:
        """Show why the job waits, its progress or the reason of its status, its attempt and other marks."""
        folded: list[UUID] = getattr(job, "folded", [])
        if len(folded) > 1:
            return _fold_link(job, folded)
        badges = format_html_join(" ", '<span class="jc-mark">{}</span>', ((label,) for label in _list_marks(job)))
        css_class = "jc-error" if job.status == Status.FAILED else "jc-muted"
        texts = [text for text in (_describe(job), _describe_attempt(job)) if text]
        line = format_html('<span class="{}"><bdi>{}</bdi></span> ', css_class, " · ".join(texts)) if texts else ""
        return format_html("{}{}", line, badges) if line or badges else None

    @computed_column(_("priority"))
    def shown_priority(self, job: Job) -> int:
        return job.priority

    @computed_column(_("time"))
    def status_time(self, job: Job) -> SafeString | None:
        """Show a time that depends on the status: due in, running for, paused or finished ago, else submitted ago."""
        now, run = timezone.now(), getattr(job, "run", None)
        since = getattr(job, "since", None)
        if run is not None and run.finished_at is not None:
            return format_relative_time(run.finished_at, now)
        if job.status == Status.RUNNING and run is not None:
            started_at = since or run.started_at
            return format_html(
                '<span title="{}">{}</span>', format_exact(started_at), format_duration(now - started_at)
            )
        if job.gate == Gate.TIME and job.not_before is not None and job.not_before > now:
            return format_relative_time(job.not_before, now)
        return format_relative_time(since or job.created_at, now)

    @computed_column(_("target"))
    def lane_link(self, job: Job) -> SafeString | str | None:
        return link(self.admin_site, Target, job.lane_id, job.target or "")

    @computed_column(_("reason"))
    def shown_reason(self, job: Job) -> SafeString | None:
        return isolate_text(truncate_text(format_reason(job))) if job.status_reason else None

    @computed_column(_("stop request"))
    def stop_request(self, job: Job) -> str | None:
        return job.get_cancel_mode_display() if job.cancel_requested else None

    @computed_column(_("progress"))
    def shown_progress(self, job: Job) -> SafeString | None:
        if job.progress is None:
            return isolate_text(job.progress_message) if job.progress_message else None
        return format_html("{} % {}", f"{job.progress * 100:.0f}", isolate_text(job.progress_message))

    @computed_column(_("retried by"))
    def retried_by_link(self, job: Job) -> SafeString | str | None:
        retry: Job | None = getattr(job, "retried_by", None)
        return None if retry is None else link(self.admin_site, Job, retry.pk)


def _find_last_changes(jobs: list[Job]) -> dict[UUID, datetime]:
    """Return when running and paused jobs last became so, and when others finished without having run."""
    ids = [job.pk for job in jobs if job.status in (Status.RUNNING, Status.PAUSED) or _ended_without_run(job)]
    if not ids:
        return {}
    kinds = [str(status) for status in (Status.RUNNING, Status.PAUSED, *sorted(TERMINAL))]
    events = JobEvent.objects.filter(job_id__in=ids, kind__in=kinds).order_by()
    rows = events.values_list("job_id", "kind").annotate(Max("at"))
    status_of = {job.pk: job.status for job in jobs}
    return {job_id: at for job_id, kind, at in rows if kind == status_of[job_id]}


def _ended_without_run(job: Job) -> bool:
    return job.is_terminal and getattr(job, "run", None) is None


def _describe(job: Job) -> str:
    """Return why the job waits, how far it is, or the reason of its status."""
    if (wait := getattr(job, "wait", None)) is not None:
        return str(wait.message)
    if job.status == Status.RUNNING:
        percent = [] if job.progress is None else [format_whole_percent(job.progress)]
        message = [first_line(job.progress_message)] if job.progress_message else []
        owner = [(job.lease_owner or "").partition("@")[0]] if job.lease_owner else []
        return ", ".join([*percent, *message, *owner])
    if job.status == Status.SKIPPED and job.status_reason.startswith(OVERLAP_REASON):
        return _now("previous run of the schedule still unfinished")
    return first_line(format_reason(job))


def _describe_attempt(job: Job) -> str:
    return _now("attempt %s") % format_attempt(job) if job.attempt > 1 else ""


def _fold_link(job: Job, folded: list[UUID]) -> SafeString:
    """Return the number of the skipped runs that a row stands for, as a link to them."""
    text = ngettext("%(count)d skipped run of %(name)s", "%(count)d skipped runs of %(name)s", len(folded))
    values = {"count": len(folded), "name": job.schedule_name}  # type: ignore[attr-defined]
    return format_html('<a href="?ids={}"><bdi>{}</bdi></a>', ",".join(map(str, folded)), text % values)


def _list_marks(job: Job) -> Iterator[str]:
    if job.lease_expires_at is not None and job.lease_expires_at < timezone.now():
        yield _now("missed heartbeat")
    if getattr(job, "is_recovery_retry", False):
        yield _now("recovered")
    if job.blocks_target:
        yield _now("blocks its target")
    if job.cancel_requested and not job.is_terminal:
        yield _now("stopping")
    if job.resolved_at is not None:
        yield _now("resolved")
    if job.schedule_id is not None:
        yield pgettext("mark of a job", "scheduled")
    if job.group_id is not None:
        yield _now("group")


def _paused_url(site: AdminSite) -> str:
    return f"{list_url(site, ConcurrencyLimit)}?paused=1" if site.is_registered(ConcurrencyLimit) else ""


@screen("counts", _("Counts"), listed=False)
def counts(admin: ModelAdmin, request: HttpRequest) -> HttpResponse:
    """Return the counts of the tabs of a list with this query; each is that of the tab's own list."""
    query = request.GET.copy()
    for name in ("p", "sort"):
        query.pop(name, None)

    def count_tabs() -> dict[str, int]:
        numbers = {}
        for name in ("", *filters.TABS):
            tab_query = query.copy()
            tab_query["status"] = name
            request.GET = tab_query  # type: ignore[assignment]
            request.__dict__["_counts_only"] = True
            numbers[name or "all"] = admin.get_changelist_instance(request).result_count
        return numbers

    key = (db.alias(), query.urlencode(), can_view_payload(request))
    try:
        by_tab = _count_cache.get(key, count_tabs, lambda by_tab: sum(map(int, by_tab.values())))
    except (IncorrectLookupParameters, DisallowedModelAdminLookup):
        return JsonResponse({})
    return JsonResponse({name: format_count(count) for name, count in by_tab.items()})


_count_cache: RateLimitedCache[dict[str, int]] = RateLimitedCache()
