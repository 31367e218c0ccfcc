"""The history: runs, events and log lines of jobs, and the rollup by minute."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, ClassVar

from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from jobs.admin.base import ReadOnlyAdmin
from jobs.admin.columns import column, computed_column, link, link_column, short_id
from jobs.admin.filters import CreatedFilter, JobTypeFilter, choice_filter
from jobs.admin.formatting import (
    first_line,
    format_actor,
    format_duration,
    format_exact_time,
    format_first_line,
    isolate_text,
    json_block,
    status_badge,
    text_block,
)
from jobs.models import Job, JobEvent, JobRun
from jobs.models.job import STATUS_LABELS
from jobs.models.run import ACTOR_CHOICES
from jobs.payload_visibility import hide_in_event, hide_in_run, hide_lease_id
from jobs.services.permissions import CHANGE_JOB
from jobs.states import RUN_STATUSES, TERMINAL, EventKind

ERROR_TAIL = 2000  # characters of an error that are searched for its last line
RUN_CHOICES = [(str(status), STATUS_LABELS[status]) for status in RUN_STATUSES]
OUTCOME_CHOICES = [(str(status), STATUS_LABELS[status]) for status in sorted(TERMINAL)]
EVENT_CHOICES = [(str(kind), str(kind)) for kind in EventKind]


class JobRecordAdmin(ReadOnlyAdmin):
    """Base of rows that belong to a job; a bare id in the search box is the job's."""

    id_field = "job_id"
    change_form_template = "jobs/facts_page.html"
    list_select_related = ("job",)
    list_defer: ClassVar[tuple[str, ...]] = ("job__params", "job__checkpoint")

    job_link = link_column(_("job"), Job, "job_id")
    exact_time = column(_("time"), "at", format_exact_time)

    @computed_column(_("job"))
    def short_job(self, row: Any) -> SafeString | str | None:
        """Show the type and the end of the id, with a link to the job."""
        name = link(self.admin_site, Job, row.job_id, f"{first_line(row.job.job_type, 60)} {short_id(row.job_id)}")
        return None if name is None else format_html('<span title="{}">{}</span>', row.job_id, name)


class JobRunAdmin(JobRecordAdmin):
    list_display = ("short_job", "shown_status", "shown_worker", "started", "finished", "run_time", "error_line")
    list_filter = (choice_filter("status", _("status"), RUN_CHOICES), CreatedFilter)
    list_defer = ("artifacts", *JobRecordAdmin.list_defer)
    list_display_links = ("started",)
    qualifiers = {"worker": "worker"}
    payload = ("shown_artifacts",)
    fields = ("job_link", "shown_status", "started", "finished", "run_time", "exit_code", "shown_worker", "shown_error")

    started = column(_("started"), "started_at", format_exact_time)
    finished = column(_("finished"), "finished_at", format_exact_time)
    shown_status = column(_("status"), "status", status_badge)

    shown_worker = column(_("worker"), "worker", isolate_text)
    shown_error = column(_("error"), "error", text_block)
    shown_artifacts = column(_("artifacts"), "artifacts", json_block)

    def hide_payload(self, row: JobRun) -> None:
        hide_in_run(row)

    @computed_column(_("error"))
    def error_line(self, run: JobRun) -> SafeString | None:
        """Show the last line of a traceback, which names the exception."""
        lines = [line for line in (run.error or "")[-ERROR_TAIL:].splitlines() if line.strip()]
        return format_first_line(lines[-1]) if lines else None

    @computed_column(_("run time"))
    def run_time(self, run: JobRun) -> str | None:
        return format_duration(run.finished_at - run.started_at) if run.finished_at else None


class JobEventAdmin(JobRecordAdmin):
    list_display = ("exact_time", "short_job", "kind", "shown_change", "shown_actor", "shown_reason")
    list_filter = (
        choice_filter("kind", _("kind"), EVENT_CHOICES),
        choice_filter("actor_kind", _("actor kind"), ACTOR_CHOICES),
    )
    list_defer = ("data", *JobRecordAdmin.list_defer)
    qualifiers = {"actor": "actor_name"}
    fieldsets = (
        (None, {"fields": ("exact_time", "job_link", "kind", "shown_change", "shown_actor", "whole_reason")}),
        (_("Data"), {"fields": ("shown_data",)}),
    )

    shown_reason = column(_("reason"), "reason", format_first_line)
    whole_reason = column(_("reason"), "reason", text_block)
    shown_data = column(_("data"), "data", json_block)

    def get_object(self, request: HttpRequest, object_id: str, from_field: str | None = None) -> Any:
        row = super().get_object(request, object_id, from_field)
        if row is not None and not request.user.has_perm(CHANGE_JOB):
            hide_lease_id(row)
        return row

    def hide_payload(self, row: JobEvent) -> None:
        hide_in_event(row)

    @computed_column(_("change"))
    def shown_change(self, event: JobEvent) -> str | None:
        before, after = event.get_from_status_display(), event.get_to_status_display()
        return f"{before} → {after}" if before and before != after else after or None

    @computed_column(_("actor"))
    def shown_actor(self, event: JobEvent) -> SafeString:
        return isolate_text(format_actor(event))


class JobLogAdmin(JobRecordAdmin):
    list_display = ("exact_time", "short_job", "level", "shown_line")
    payload = ("shown_message",)
    payload_columns = ("shown_line",)
    fieldsets = ((None, {"fields": ("exact_time", "job_link", "level")}),)

    shown_line = column(_("message"), "message", lambda text: isolate_text(first_line(text, 200)))
    shown_message = column(_("message"), "message", text_block)


class JobMinuteAdmin(ReadOnlyAdmin):
    list_display = ("shown_minute", "shown_type", "outcome", "jobs", "waited", "ran", "shown_worker")
    change_form_template = "jobs/facts_page.html"
    list_filter = (choice_filter("outcome", _("outcome"), OUTCOME_CHOICES), JobTypeFilter)
    ordering = ("-minute", "-pk")
    qualifiers = {"type": "job_type", "worker": "worker"}
    fieldsets = (
        (None, {"fields": ("shown_minute", "shown_type", "outcome", "shown_worker")}),
        (_("Counted"), {"fields": ("jobs", "waited", "wait_bucket", "ran", "run_bucket")}),
    )

    shown_minute = column(_("minute"), "minute", format_exact_time)
    waited = column(_("waited in total"), "wait_sec", lambda seconds: format_duration(timedelta(seconds=seconds)))
    ran = column(_("ran in total"), "run_sec", lambda seconds: format_duration(timedelta(seconds=seconds)))
    shown_type = column(_("job type"), "job_type", isolate_text)
    shown_worker = column(_("written by"), "worker", isolate_text)
