"""Jobs: the list with its columns, tabs and counts, and the fields of a job's page."""

from __future__ import annotations

from functools import partial
from typing import Any
from uuid import UUID

from django.contrib.admin import ModelAdmin
from django.contrib.admin.utils import unquote
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.utils import formats, timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _now
from django.utils.translation import gettext_lazy as _

from jobs import db, explain
from jobs.admin import filters, job_detail, screens
from jobs.admin.base import can_view_payload, count_capped, fieldset
from jobs.admin.columns import column, computed_column, link, link_column, list_url, short_id
from jobs.admin.filters import AttentionFilter, CreatedFilter, EndedFilter, JobTypeFilter, StatusFilter
from jobs.admin.formatting import (
    ICONS,
    first_line,
    format_count,
    format_duration,
    format_json,
    format_reason,
    format_relative_time,
    format_rough_duration,
    isolate_text,
    json_block,
    status_badge,
    truncate_text,
)
from jobs.admin.job_actions import JobActionAdmin
from jobs.admin.screens import screen
from jobs.models import ConcurrencyLimit, Gate, Job, JobRun, Target
from jobs.models.expressions import JsonBytes
from jobs.models.job import STATUS_LABELS
from jobs.payload_visibility import hide_in_job
from jobs.states import CRASH_RECOVERY_REASON, LEASE_EXPIRED_REASON, TERMINAL, Status
from jobs.stats import live_counts
from jobs.stats.cache import RateLimitedCache

MAX_PARAMS_BYTES = 2000  # a list does not read larger params
_folded = partial(fieldset, folded=True)


class JobAdmin(JobActionAdmin):
    change_form_template = "jobs/job_page.html"
    change_list_template = "jobs/job_list.html"
    empty_text = _("There are no jobs yet: submit one from your code, by the API or with “manage.py enqueue”.")
    list_display = ("short_id", "type_and_params", "shown_target", "shown_status", "status_time", "run_time")
    list_filter = (StatusFilter, AttentionFilter, CreatedFilter, EndedFilter, JobTypeFilter)
    sortable_by = ("short_id",)
    list_select_related = ("run",)
    list_defer = ("params", "tags", "constraints", "checkpoint", "retry_policy", "run__error", "run__artifacts")
    qualifiers = {
        "type": "job_type",
        "resource": "resource",
        "tenant": "tenant",
        "target": "target",
        "addon": "addon_id",
        "key": "idempotency_key",
        "group": "group",
        "schedule": "schedule",
    }
    fieldsets = (
        _folded(_("What"), "id", "job_type", "template", "tenant", "lane_link", "addon_id", "shown_tags"),
        _folded(
            _("State"),
            *("status", "shown_reason", "gate", "hold", "holds_lane", "stop_request", "shown_progress", "resolved_at"),
        ),
        _folded(
            _("When"),
            ("priority", "base_priority", "position"),
            ("created_at", "not_before", "recheck_at", "dispatched_at"),
            ("deadline_at", "time_sensitive"),
            ("expected_duration_sec", "max_runtime_sec"),
        ),
        _folded(_("How much"), ("resource", "cost_units"), "shown_constraints", ("token_limit", "tokens_used")),
        _folded(
            _("Who runs it"), ("remote", "lease_owner", "fence"), ("lease_expires_at", "heartbeat_at", "reserved_until")
        ),
        _folded(
            _("Where it comes from"),
            ("retry_of_link", "retried_by_link"),
            ("attempt", "max_retries"),
            "shown_retry_policy",
            ("group", "group_index"),
            ("schedule", "fire_time"),
            "idempotency_key",
        ),
    )

    shown_tags = column(_("tags"), "tags", lambda value: json_block(value or None))
    shown_constraints = column(_("constraints"), "constraints", lambda value: json_block(value or None))
    shown_retry_policy = column(_("retry policy"), "retry_policy", lambda value: json_block(value or None))
    retry_of_link = link_column(_("retry of"), Job, "retry_of_id")
    shown_target = column(_("target"), "target", lambda key: None if key is None else isolate_text(first_line(key, 60)))

    def complete_rows(self, request: HttpRequest, rows: QuerySet[Any]) -> None:
        """Set `brief_params`, `why` (it waits) and `is_recovery_retry` (a retry of a job whose worker died)."""
        jobs = list(rows)
        params = _load_params(jobs) if can_view_payload(request) else {}
        retried = [job.retry_of_id for job in jobs if job.retry_of_id is not None]
        lost = Job.objects.filter(pk__in=retried, status_reason__in=(LEASE_EXPIRED_REASON, CRASH_RECOVERY_REASON))
        lost_ids = set(lost.order_by().values_list("pk", flat=True))
        wait_reasons = explain.explain_briefly(jobs)
        for job in jobs:
            job.is_recovery_retry = job.retry_of_id in lost_ids
            job.brief_params = params.get(job.pk, "")
            job.why = wait_reasons.get(job.pk, "")

    def hide_payload(self, row: Job) -> None:
        hide_in_job(row)

    def list_version(self) -> str:
        return screens.latest_event_id()

    def list_context(self, request: HttpRequest) -> dict[str, Any]:
        """Return the tabs by status, and the paused limits."""
        url, current = list_url(self.admin_site, Job), request.GET.get("status", "")
        # A tab drops all other filters.
        tabs = [{"name": "", "title": _now("All"), "icon": "", "url": url, "is_current": not current}]
        for status, label in STATUS_LABELS.items():
            tab = {"name": str(status), "title": label, "icon": ICONS[status], "is_current": current == status}
            tabs.append({**tab, "url": f"{url}?status={status}"})
        paused = ConcurrencyLimit.objects.filter(paused=True).order_by("scope", "key")[:10]
        counts_url = screens.screen_url(self.admin_site, "counts")
        return {"tabs": tabs, "paused": list(paused), "counts_url": counts_url}

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

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Job | None:
        """Read the job once per request, not once for each part of the page."""
        cache: dict[str, Job | None] = request.__dict__.setdefault("_jobs_of_page", {})
        if object_id not in cache:
            cache[object_id] = super().get_object(request, object_id, from_field)
        return cache[object_id]

    @computed_column(_("job"), ordering="id")
    def short_id(self, job: Job) -> SafeString:
        return format_html('<span class="jc-whole" title="{}">{}</span>', job.pk, short_id(job.pk))

    @computed_column(_("job type"))
    def type_and_params(self, job: Job) -> SafeString:
        """Show the job type, and below it the params if the user may see them."""
        params = getattr(job, "brief_params", "")
        if params in ("", "{}"):
            return isolate_text(job.job_type)
        two_lines = '<bdi>{}</bdi><samp class="jc-line jc-small jc-muted"><bdi>{}</bdi></samp>'
        return format_html(two_lines, job.job_type, params)

    @computed_column(_("status"))
    def shown_status(self, job: Job) -> SafeString:
        """Show the status, further badges, and below them why the job waits or the reason of its status."""
        attempt = f"{job.attempt}/{job.max_retries + 1}" if job.attempt > 1 else ""
        badges = format_html_join("", ' <span class="jc-mark">{}</span>', ((label,) for label in _list_badges(job)))
        css_class = "jc-error" if job.status == Status.FAILED else "jc-muted"
        why = getattr(job, "why", "") or first_line(format_reason(job))
        second_line = '<span class="jc-line jc-small {}"><bdi>{}</bdi></span>'
        reason = format_html(second_line, css_class, why) if why else ""
        return format_html("{}{}{}", status_badge(job.status, attempt), badges, reason)

    @computed_column(_("when"))
    def status_time(self, job: Job) -> SafeString | None:
        """Show a time that depends on the status: due in, running for, finished ago."""
        now, run = timezone.now(), getattr(job, "run", None)
        if run is not None and run.finished_at is not None:
            return format_relative_time(run.finished_at, now)
        if job.status == Status.RUNNING and run is not None:
            exact = formats.date_format(timezone.localtime(run.started_at), "Y-m-d H:i:s T")
            run_time = _now("running for %s") % format_rough_duration(now - run.started_at)
            return format_html('<span title="{}">{}</span>', exact, run_time)
        if job.gate == Gate.TIME and job.not_before is not None and job.not_before > now:
            return format_html("{} {}", _now("due"), format_relative_time(job.not_before, now) or "")
        return format_relative_time(job.created_at, now)

    @computed_column(_("run time"))
    def run_time(self, job: Job) -> str | None:
        run: JobRun | None = getattr(job, "run", None)
        return None if run is None else format_duration((run.finished_at or timezone.now()) - run.started_at)

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


def _load_params(jobs: list[Job]) -> dict[UUID, str]:
    """Return each job's params in one line. Large ones are not read; secrets are masked before a text is cut."""
    rows = Job.objects.filter(pk__in=[job.pk for job in jobs]).order_by()
    small = rows.annotate(size=JsonBytes("params")).filter(size__lte=MAX_PARAMS_BYTES)
    lines = {pk: first_line(format_json(params, indent=None), 80) for pk, params in small.values_list("pk", "params")}
    return {job.pk: lines.get(job.pk, _now("(long params)")) for job in jobs}


def _list_badges(job: Job) -> list[str]:
    badges = (
        (_now("stuck"), job.lease_expires_at is not None and job.lease_expires_at < timezone.now()),
        (_now("rescued"), getattr(job, "is_recovery_retry", False)),
        (_now("blocks its target"), job.blocks_target),
        (_now("asked to stop"), job.cancel_requested and not job.is_terminal),
        (_now("resolved"), job.resolved_at is not None),
        (_now("by schedule"), job.schedule_id is not None),
        (_now("in a group"), job.group_id is not None),
    )
    return [label for label, is_shown in badges if is_shown]


@screen("counts", _("Counts"), listed=False)
def counts(admin: ModelAdmin, request: HttpRequest) -> HttpResponse:
    """Return the counts of the tabs: exact for live statuses, capped for ended ones, as in their lists."""

    def count_ended() -> dict[str, int]:
        by_status = {status: filters.filter_by_status(Job.objects.all(), status) for status in sorted(TERMINAL)}
        return {str(status): count_capped(rows) for status, rows in by_status.items()}

    ended = _count_cache.get(db.alias(), count_ended, lambda by_status: sum(map(int, by_status.values())))
    by_status = {**live_counts.count_jobs().by_status(), **ended}
    return JsonResponse({status: format_count(count) for status, count in by_status.items()})


_count_cache: RateLimitedCache[dict[str, int]] = RateLimitedCache()
