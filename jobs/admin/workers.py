"""What workers counted per minute."""

from __future__ import annotations

from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from jobs.admin import audit, performance  # noqa: F401  screens
from jobs.admin.filters import JobTypeFilter, one_of
from jobs.admin.reading import StateAdmin
from jobs.admin.showing import isolated, shown
from jobs.admin.worker import WorkerAdmin as WorkerAdmin
from jobs.models import JobMinute
from jobs.models.job import STATUS_LABELS
from jobs.states import TERMINAL

OUTCOMES = [(str(status), STATUS_LABELS[status]) for status in sorted(TERMINAL)]


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
