"""Groups, as their members have made them."""

from __future__ import annotations

from django.db.models import Count
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from jobs.admin.filters import CreatedFilter, one_of
from jobs.admin.reading import StateAdmin
from jobs.admin.showing import isolated, list_url, shown
from jobs.models import GroupMode, GroupStatus, Job, JobGroup
from jobs.models.job import STATUS_LABELS
from jobs.states import Status


class JobGroupAdmin(StateAdmin):
    list_display = ("id", "shown_name", "tenant", "mode", "on_failure", "status", "created_at", "finished_at")
    list_filter = (
        one_of("status", _("status"), GroupStatus.choices),
        one_of("mode", _("mode"), GroupMode.choices),
        CreatedFilter,
    )
    sortable_by = ("id",)
    qualifiers = {"name": "name", "tenant": "tenant"}
    fieldsets = (
        (None, {"fields": ("id", "shown_name", "tenant", "mode", "on_failure")}),
        (
            _("State"),
            {"fields": ("status", "cancel_requested", "round", "created_at", "finished_at", "members")},
        ),
    )

    @shown(_("name"))
    def shown_name(self, group: JobGroup) -> SafeString | None:
        return isolated(group.name) if group.name else None

    @shown(_("jobs"))
    def members(self, group: JobGroup) -> SafeString | None:
        """How many jobs are in which state, retried ones included; the list has them all."""
        counted = Job.objects.filter(group_id=group.pk).values_list("status").annotate(Count("pk")).order_by()
        lines = [(STATUS_LABELS[Status(status)], count) for status, count in sorted(counted)]
        if not lines:
            return None
        summary = format_html_join(", ", "{}: {}", lines)
        if not self.admin_site.is_registered(Job):
            return summary
        return format_html('<a href="{}?q=group:{}">{}</a>', list_url(self.admin_site, Job), group.pk, summary)
