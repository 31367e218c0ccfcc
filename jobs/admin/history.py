"""The history: runs, events and log lines of jobs, and the rollup by minute."""

from __future__ import annotations

from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from jobs.admin.base import ReadOnlyAdmin
from jobs.admin.columns import column, computed_column, link_column
from jobs.admin.filters import CreatedFilter, JobTypeFilter, choice_filter
from jobs.admin.formatting import (
    first_line,
    format_actor,
    format_duration,
    format_first_line,
    isolate_text,
    json_block,
    text_block,
)
from jobs.models import Job, JobEvent, JobRun
from jobs.models.job import STATUS_LABELS
from jobs.models.run import ACTOR_CHOICES
from jobs.payload_visibility import hide_in_event, hide_in_run
from jobs.states import RUN_STATUSES, TERMINAL, EventKind

RUN_CHOICES = [(str(status), STATUS_LABELS[status]) for status in RUN_STATUSES]
OUTCOME_CHOICES = [(str(status), STATUS_LABELS[status]) for status in sorted(TERMINAL)]
EVENT_CHOICES = [(str(kind), str(kind)) for kind in EventKind]


class JobRecordAdmin(ReadOnlyAdmin):
    """Base of rows that belong to a job; a bare id in the search box is the job's."""

    id_field = "job_id"

    job_link = link_column(_("job"), Job, "job_id")


class JobRunAdmin(JobRecordAdmin):
    list_display = ("pk", "status", "shown_worker", "started_at", "finished_at", "run_time", "first_error")
    list_filter = (choice_filter("status", _("status"), RUN_CHOICES), CreatedFilter)
    list_defer = ("artifacts",)
    sortable_by = ("pk",)
    qualifiers = {"worker": "worker"}
    payload = ("shown_artifacts",)
    fields = ("job_link", "status", "started_at", "finished_at", "run_time", "exit_code", "shown_worker", "shown_error")

    shown_worker = column(_("worker"), "worker", isolate_text)
    first_error = column(_("error"), "error", format_first_line)
    shown_error = column(_("error"), "error", text_block)
    shown_artifacts = column(_("artifacts"), "artifacts", json_block)

    def hide_payload(self, row: JobRun) -> None:
        hide_in_run(row)

    @computed_column(_("run time"))
    def run_time(self, run: JobRun) -> str | None:
        return format_duration(run.finished_at - run.started_at) if run.finished_at else None


class JobEventAdmin(JobRecordAdmin):
    list_display = ("id", "at", "job_link", "kind", "from_status", "to_status", "shown_actor", "shown_reason")
    list_filter = (
        choice_filter("kind", _("kind"), EVENT_CHOICES),
        choice_filter("actor_kind", _("actor kind"), ACTOR_CHOICES),
    )
    list_defer = ("data",)
    sortable_by = ("id",)
    qualifiers = {"actor": "actor_name"}
    fieldsets = (
        (None, {"fields": ("job_link", "at", "kind", "from_status", "to_status")}),
        (_("Who and why"), {"fields": ("shown_actor", "whole_reason", "shown_data")}),
    )

    shown_reason = column(_("reason"), "reason", format_first_line)
    whole_reason = column(_("reason"), "reason", text_block)
    shown_data = column(_("data"), "data", json_block)

    def hide_payload(self, row: JobEvent) -> None:
        hide_in_event(row)

    @computed_column(_("actor"))
    def shown_actor(self, event: JobEvent) -> SafeString:
        return isolate_text(format_actor(event))


class JobLogAdmin(JobRecordAdmin):
    list_display = ("id", "at", "job_link", "level", "shown_line")
    sortable_by = ("id",)
    payload = ("shown_message",)
    payload_columns = ("shown_line",)
    fieldsets = ((None, {"fields": ("job_link", "at", "level")}),)

    shown_line = column(_("message"), "message", lambda text: isolate_text(first_line(text, 200)))
    shown_message = column(_("message"), "message", text_block)


class JobMinuteAdmin(ReadOnlyAdmin):
    list_display = ("minute", "shown_type", "outcome", "jobs", "wait_sec", "run_sec", "shown_worker")
    list_filter = (choice_filter("outcome", _("outcome"), OUTCOME_CHOICES), JobTypeFilter)
    ordering = ("-minute", "-pk")
    qualifiers = {"type": "job_type", "worker": "worker"}
    fieldsets = (
        (None, {"fields": ("minute", "shown_type", "outcome", "shown_worker")}),
        (_("Counted"), {"fields": ("jobs", ("wait_bucket", "wait_sec"), ("run_bucket", "run_sec"))}),
    )

    shown_type = column(_("job type"), "job_type", isolate_text)
    shown_worker = column(_("written by"), "worker", isolate_text)
