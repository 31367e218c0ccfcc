"""Jobs: the list, and the page of one job with its run, its last events and logs, and the buttons for its verbs."""

from __future__ import annotations

from typing import Any

from django.contrib.admin.utils import unquote
from django.contrib.admin.views.main import ChangeList
from django.http import HttpRequest, HttpResponse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from jobs.admin import console, job_list, job_page, live
from jobs.admin.acting import JobVerbs
from jobs.admin.filters import AttentionFilter, CreatedFilter, EndedFilter, JobTypeFilter, StatusFilter
from jobs.admin.showing import duration, first_line, isolated, json_block, link, reason_of, short_id, shortened, shown
from jobs.models import Job, JobRun, Target

FOLDED = ("collapse",)


class JobAdmin(JobVerbs):
    change_form_template = "jobs/job_page.html"
    change_list_template = "jobs/job_list.html"
    nothing_yet = _("There are no jobs yet: submit one from your code, by the API or with “manage.py enqueue”.")
    list_display = ("short_id", "work", "shown_target", "shown_status", "when", "run_time")
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
        (
            _("What"),
            {
                "fields": ("id", "job_type", "template", "tenant", "lane_link", "addon_id", "shown_tags"),
                "classes": FOLDED,
            },
        ),
        (
            _("State"),
            {
                "fields": (
                    "status",
                    "shown_reason",
                    "gate",
                    "hold",
                    "holds_lane",
                    "stop_request",
                    "shown_progress",
                    "resolved_at",
                ),
                "classes": FOLDED,
            },
        ),
        (
            _("When"),
            {
                "fields": (
                    ("priority", "base_priority", "position"),
                    ("created_at", "not_before", "recheck_at", "dispatched_at"),
                    ("deadline_at", "time_sensitive"),
                    ("expected_duration_sec", "max_runtime_sec"),
                ),
                "classes": FOLDED,
            },
        ),
        (
            _("How much"),
            {
                "fields": (("resource", "cost_units"), "shown_constraints", ("token_limit", "tokens_used")),
                "classes": FOLDED,
            },
        ),
        (
            _("Who runs it"),
            {
                "fields": (("remote", "lease_owner", "fence"), ("lease_expires_at", "heartbeat_at", "reserved_until")),
                "classes": FOLDED,
            },
        ),
        (
            _("Where it comes from"),
            {
                "fields": (
                    ("retry_of_link", "retried_by_link"),
                    ("attempt", "max_retries"),
                    "shown_retry_policy",
                    ("group", "group_index"),
                    ("schedule", "fire_time"),
                    "idempotency_key",
                ),
                "classes": FOLDED,
            },
        ),
    )

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        return job_list.JobChangeList

    def live_mark(self) -> str:
        return live.latest_event()

    def above_list(self, request: HttpRequest) -> dict[str, Any]:
        counts = console.url_of(self.admin_site, "counts")
        return {"tabs": job_list.tabs(self, request), "paused": job_list.paused(), "counts_url": counts}

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        job = self.get_object(request, unquote(object_id))
        if job is None or not self.has_view_permission(request, job) or request.method != "GET":
            return super().change_view(request, object_id, form_url, extra_context)
        mark = job_page.mark(job.pk)
        if live.is_unchanged(request, mark):
            return live.not_modified(request, mark)
        shown = {**live.context(request, mark), "places": console.places(self.admin_site, request)}
        shown |= job_page.page(self, request, job)
        response = super().change_view(request, object_id, form_url, {**shown, **(extra_context or {})})
        return live.stamped(response, request, mark)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Job | None:
        """Once per page, not once for each part of it."""
        known: dict[str, Job | None] = request.__dict__.setdefault("_jobs_of_page", {})
        if object_id not in known:
            known[object_id] = super().get_object(request, object_id, from_field)
        return known[object_id]

    @shown(_("target"))
    def shown_target(self, job: Job) -> SafeString | None:
        return isolated(first_line(job.target, 60)) if job.target is not None else None

    @shown(_("job"), ordering="id")
    def short_id(self, job: Job) -> SafeString:
        return format_html('<span class="jc-whole" title="{}">{}</span>', job.pk, short_id(job.pk))

    @shown(_("job type"))
    def work(self, job: Job) -> SafeString:
        return job_list.work(job)

    @shown(_("status"))
    def shown_status(self, job: Job) -> SafeString:
        return job_list.state(job, timezone.now())

    @shown(_("when"))
    def when(self, job: Job) -> SafeString | None:
        return job_list.moment(job, timezone.now())

    @shown(_("run time"))
    def run_time(self, job: Job) -> str | None:
        run: JobRun | None = getattr(job, "run", None)
        return None if run is None else duration((run.finished_at or timezone.now()) - run.started_at)

    @shown(_("target"))
    def lane_link(self, job: Job) -> SafeString | str | None:
        return link(self.admin_site, Target, job.lane_id, job.target or "")

    @shown(_("tags"))
    def shown_tags(self, job: Job) -> SafeString | None:
        return json_block(job.tags or None)

    @shown(_("reason"))
    def shown_reason(self, job: Job) -> SafeString | None:
        return isolated(shortened(reason_of(job))) if job.status_reason else None

    @shown(_("stop request"))
    def stop_request(self, job: Job) -> str | None:
        return job.get_cancel_mode_display() if job.cancel_requested else None

    @shown(_("progress"))
    def shown_progress(self, job: Job) -> SafeString | None:
        if job.progress is None:
            return isolated(job.progress_message) if job.progress_message else None
        return format_html("{} % {}", f"{job.progress * 100:.0f}", isolated(job.progress_message))

    @shown(_("constraints"))
    def shown_constraints(self, job: Job) -> SafeString | None:
        return json_block(job.constraints or None)

    @shown(_("retry policy"))
    def shown_retry_policy(self, job: Job) -> SafeString | None:
        return json_block(job.retry_policy or None)

    @shown(_("retry of"))
    def retry_of_link(self, job: Job) -> SafeString | str | None:
        return link(self.admin_site, Job, job.retry_of_id)

    @shown(_("retried by"))
    def retried_by_link(self, job: Job) -> SafeString | str | None:
        newer: Job | None = getattr(job, "retried_by", None)
        return None if newer is None else link(self.admin_site, Job, newer.pk)
