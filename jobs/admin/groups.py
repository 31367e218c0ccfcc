"""Groups, as their members have made them."""

from __future__ import annotations

from typing import Any

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, LogEntry
from django.db.models import Count, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from jobs import actors, db, groups
from jobs.admin.filters import CreatedFilter, one_of
from jobs.admin.forms import ReasonForm
from jobs.admin.reading import StateAdmin
from jobs.admin.showing import isolated, list_url, shown
from jobs.conf import conf
from jobs.errors import JobSchedulerError
from jobs.models import GroupMode, GroupStatus, Job, JobGroup
from jobs.models.job import STATUS_LABELS
from jobs.states import Status

FEW = 5


class JobGroupAdmin(StateAdmin):
    actions = ["cancel", "retry"]
    action_form = ReasonForm
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

    def has_cancel_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(f"{self.opts.app_label}.cancel_jobgroup")

    def has_retry_permission(self, request: HttpRequest) -> bool:
        return request.user.has_perm(f"{self.opts.app_label}.retry_jobgroup")

    @admin.action(permissions=["cancel"], description=_("Cancel selected groups"))
    def cancel(self, request: HttpRequest, queryset: QuerySet[JobGroup]) -> None:
        self._perform(request, queryset, groups.cancel)

    @admin.action(permissions=["retry"], description=_("Retry what did not end well in selected groups"))
    def retry(self, request: HttpRequest, queryset: QuerySet[JobGroup]) -> None:
        self._perform(request, queryset, groups.retry)

    @db.non_atomic
    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        return super().changelist_view(request, extra_context)

    def _perform(self, request: HttpRequest, queryset: QuerySet[JobGroup], verb: Any) -> None:
        """Each group in its own transaction, so that one that cannot does not undo the others."""
        done: list[JobGroup] = []
        refused: list[str] = []
        reason = request.POST.get("reason", "").strip()
        for group in queryset.order_by("pk")[: conf.CONSOLE_BULK_LIMIT]:
            try:
                done.append(verb(group.pk, reason=reason, actor=actors.user(request.user)))
            except JobSchedulerError as error:
                refused.append(str(error))
        told = ngettext("%(count)d group changed", "%(count)d groups changed", len(done)) % {"count": len(done)}
        level = messages.WARNING if refused else messages.SUCCESS
        self.message_user(request, " ".join([f"{told}.", *refused[:FEW]]), level)
        if done:
            user_id: Any = request.user.pk
            listed: Any = done
            LogEntry.objects.log_actions(user_id, listed, CHANGE, f"{verb.__name__}: {reason}".rstrip(": "))

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
