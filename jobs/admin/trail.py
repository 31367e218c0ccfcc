"""What happened: runs, events and log lines, as they were written."""

from __future__ import annotations

from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from jobs.admin.filters import CreatedFilter, one_of
from jobs.admin.reading import StateAdmin
from jobs.admin.showing import duration, first_line, isolated, json_block, link, shown, text_block
from jobs.models import Job, JobEvent, JobLog, JobRun
from jobs.models.audit import ACTOR_CHOICES
from jobs.models.job import STATUS_LABELS
from jobs.states import RUN_STATUSES, EventKind

RUN_CHOICES = [(str(status), STATUS_LABELS[status]) for status in RUN_STATUSES]
EVENT_CHOICES = [(str(kind), str(kind)) for kind in EventKind]


class OfJobAdmin(StateAdmin):
    """A bare id in the search box is the job's."""

    id_field = "job_id"

    @shown(_("job"))
    def job_link(self, row: JobRun | JobEvent | JobLog) -> SafeString | str | None:
        return link(self.admin_site, Job, row.job_id)


class JobRunAdmin(OfJobAdmin):
    list_display = ("pk", "status", "shown_worker", "started_at", "finished_at", "run_time", "first_error")
    list_filter = (one_of("status", _("status"), RUN_CHOICES), CreatedFilter)
    list_defer = ("artifacts",)
    sortable_by = ("pk",)
    qualifiers = {"worker": "worker"}
    payload = ("shown_artifacts",)
    fieldsets = (
        (
            None,
            {
                "fields": (
                    "job_link",
                    "status",
                    "started_at",
                    "finished_at",
                    "run_time",
                    "exit_code",
                    "shown_worker",
                    "shown_error",
                )
            },
        ),
    )

    @shown(_("worker"))
    def shown_worker(self, run: JobRun) -> SafeString:
        return isolated(run.worker)

    @shown(_("run time"))
    def run_time(self, run: JobRun) -> str | None:
        return duration(run.finished_at - run.started_at) if run.finished_at else None

    @shown(_("error"))
    def first_error(self, run: JobRun) -> SafeString | None:
        return isolated(first_line(run.error)) if run.error else None

    @shown(_("error"))
    def shown_error(self, run: JobRun) -> SafeString | None:
        return text_block(run.error)

    @shown(_("artifacts"))
    def shown_artifacts(self, run: JobRun) -> SafeString | None:
        return json_block(run.artifacts)


class JobEventAdmin(OfJobAdmin):
    list_display = ("id", "at", "job_link", "kind", "from_status", "to_status", "shown_actor", "shown_reason")
    list_filter = (one_of("kind", _("kind"), EVENT_CHOICES), one_of("actor_kind", _("actor kind"), ACTOR_CHOICES))
    list_defer = ("data",)
    sortable_by = ("id",)
    qualifiers = {"actor": "actor_name"}
    fieldsets = (
        (None, {"fields": ("job_link", "at", "kind", "from_status", "to_status")}),
        (_("Who and why"), {"fields": ("shown_actor", "whole_reason", "shown_data")}),
    )

    @shown(_("actor"))
    def shown_actor(self, event: JobEvent) -> SafeString:
        return isolated(f"{event.get_actor_kind_display()} {event.actor_name}".strip())

    @shown(_("reason"))
    def shown_reason(self, event: JobEvent) -> SafeString | None:
        return isolated(first_line(event.reason)) if event.reason else None

    @shown(_("reason"))
    def whole_reason(self, event: JobEvent) -> SafeString | None:
        return text_block(event.reason)

    @shown(_("data"))
    def shown_data(self, event: JobEvent) -> SafeString | None:
        return json_block(event.data)


class JobLogAdmin(OfJobAdmin):
    list_display = ("id", "at", "job_link", "level", "first_words")
    sortable_by = ("id",)
    payload = ("shown_message",)
    payload_columns = ("first_words",)
    fieldsets = ((None, {"fields": ("job_link", "at", "level")}),)

    @shown(_("message"))
    def first_words(self, line: JobLog) -> SafeString:
        return isolated(first_line(line.message, 200))

    @shown(_("message"))
    def shown_message(self, line: JobLog) -> SafeString | None:
        return text_block(line.message)
