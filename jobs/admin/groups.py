"""Groups: their status and progress, and the actions to cancel or retry their members."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy, pgettext_lazy

from jobs.admin.base import ReadOnlyAdmin, fieldset
from jobs.admin.columns import column, computed_column, list_url, short_id
from jobs.admin.filters import CreatedFilter, choice_filter
from jobs.admin.formatting import badge, format_relative_time, isolate_text, status_bar
from jobs.admin.object_actions import ObjectAction, ObjectActionAdmin, call_with_key
from jobs.admin.screens import APP, latest_event_id
from jobs.models import GroupMode, GroupStatus, Job, JobGroup
from jobs.services import groups

DONE_TEXT = ngettext_lazy("%(count)d group changed", "%(count)d groups changed", "count")
STATUS_BADGES = {
    GroupStatus.COMPLETED: ("good", "✓"),
    GroupStatus.FAILED: ("bad", "✗"),
    GroupStatus.PARTIAL: ("warn", "!"),
    GroupStatus.RUNNING: ("running", "▶"),
    GroupStatus.CANCELLED: ("cancelled", "⊘"),
    GroupStatus.PENDING: ("pending", "◌"),
}


class JobGroupAdmin(ObjectActionAdmin, ReadOnlyAdmin):
    empty_text = _(
        "There are no groups. Jobs that belong together are submitted with group([…]).enqueue(), by the API or with "
        "“manage.py groups create”."
    )
    object_actions = (
        ObjectAction(
            "cancel",
            pgettext_lazy("verb", "Cancel the rest"),
            _("Cancel the rest of selected groups"),
            DONE_TEXT,
            f"{APP}.cancel_jobgroup",
            call_with_key(groups.cancel),
            lambda group: not group.is_terminal,
            needs_confirmation=True,
        ),
        ObjectAction(
            "retry",
            pgettext_lazy("verb", "Retry what failed"),
            _("Retry what did not end well in selected groups"),
            DONE_TEXT,
            f"{APP}.retry_jobgroup",
            call_with_key(groups.retry),
            lambda group: group.is_terminal and group.status != GroupStatus.COMPLETED,
        ),
    )
    list_display = ("short_id", "shown_name", "shown_status", "members", "shown_mode", "created")
    list_per_page = 20
    list_filter = (
        choice_filter("status", _("status"), GroupStatus.choices),
        choice_filter("mode", _("mode"), GroupMode.choices),
        CreatedFilter,
    )
    sortable_by = ("short_id",)
    qualifiers = {"name": "name", "tenant": "tenant"}
    fieldsets = (
        fieldset(None, "id", "shown_name", "tenant", "mode", "on_failure"),
        fieldset(_("State"), "shown_status", "cancel_requested", "round", "created_at", "finished_at", "members"),
    )

    shown_name = column(_("name"), "name", lambda text: isolate_text(text) if text else None)
    created = column(_("created"), "created_at", format_relative_time)

    def list_version(self) -> str:
        return latest_event_id()

    def complete_rows(self, request: HttpRequest, rows: QuerySet[Any]) -> None:
        progress = groups.count_progress(group.pk for group in rows)
        for group in rows:
            group.by_status = progress[group.pk]["by_status"]

    @computed_column(_("group"), ordering="id")
    def short_id(self, group: JobGroup) -> SafeString:
        return format_html('<span title="{}">{}</span>', group.pk, short_id(group.pk))

    @computed_column(_("status"))
    def shown_status(self, group: JobGroup) -> SafeString:
        kind, icon = STATUS_BADGES[GroupStatus(group.status)]
        return badge(kind, group.get_status_display(), icon)

    @computed_column(_("mode"))
    def shown_mode(self, group: JobGroup) -> str:
        return f"{group.get_mode_display()} · {group.get_on_failure_display()}"

    @computed_column(_("progress"))
    def members(self, group: JobGroup) -> SafeString | None:
        """Count the latest attempt of each member; the linked list has all jobs, earlier attempts included."""
        by_status = getattr(group, "by_status", None)
        if by_status is None:
            by_status = groups.count_progress([group.pk])[group.pk]["by_status"]
        bar = status_bar(by_status)
        if bar is None or not self.admin_site.is_registered(Job):
            return bar
        return format_html('<a href="{}?q=group:{}">{}</a>', list_url(self.admin_site, Job), group.pk, bar)
