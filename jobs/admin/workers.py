"""Workers, and what they counted per minute."""

from __future__ import annotations

from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from jobs.admin.filters import JobTypeFilter, one_of
from jobs.admin.reading import StateAdmin
from jobs.admin.showing import isolated, json_block, shown
from jobs.models import JobMinute, Worker, WorkerState
from jobs.models.job import STATUS_LABELS
from jobs.states import TERMINAL

OUTCOMES = [(str(status), STATUS_LABELS[status]) for status in sorted(TERMINAL)]


class WorkerAdmin(StateAdmin):
    list_display = ("shown_name", "host", "pid", "version", "state", "slots_in_use", "started_at", "heartbeat_at")
    list_filter = (one_of("state", _("state"), WorkerState.choices),)
    list_defer = ("serves",)
    name_field = "name"
    qualifiers = {"host": "host", "version": "version"}
    fieldsets = (
        (None, {"fields": ("id", "shown_name", "host", "pid", "version", "shown_serves")}),
        (_("State"), {"fields": ("state", ("slots", "busy", "stuck"), ("request", "requested_at"))}),
        (_("When"), {"fields": ("started_at", "heartbeat_at", "stopped_at")}),
    )

    @shown(_("name"))
    def shown_name(self, worker: Worker) -> SafeString:
        return isolated(worker.name)

    @shown(_("busy"))
    def slots_in_use(self, worker: Worker) -> str:
        return f"{worker.busy}/{worker.slots}"

    @shown(_("serves"))
    def shown_serves(self, worker: Worker) -> SafeString | None:
        return json_block(worker.serves or None)


class JobMinuteAdmin(StateAdmin):
    list_display = ("minute", "shown_type", "outcome", "jobs", "wait_sec", "run_sec", "shown_worker")
    list_filter = (one_of("outcome", _("outcome"), OUTCOMES), JobTypeFilter)
    ordering = ("-minute", "-pk")
    qualifiers = {"type": "job_type", "worker": "worker"}
    fieldsets = (
        (None, {"fields": ("minute", "shown_type", "outcome", "shown_worker")}),
        (_("Counted"), {"fields": ("jobs", ("wait_bucket", "wait_sec"), ("run_bucket", "run_sec"))}),
    )

    @shown(_("job type"))
    def shown_type(self, minute: JobMinute) -> SafeString:
        return isolated(minute.job_type)

    @shown(_("written by"))
    def shown_worker(self, minute: JobMinute) -> SafeString:
        return isolated(minute.worker)
