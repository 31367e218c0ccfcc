"""Groups, as their members have made them: how far each is, and the verbs for the rest of it."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy, pgettext_lazy

from jobs.admin.base import StateAdmin, fieldset
from jobs.admin.filters import CreatedFilter, one_of
from jobs.admin.formatting import column, isolated, list_url, mark, share_bar, short_id, shown, when
from jobs.admin.object_actions import Button, ButtonAdmin, by_key
from jobs.admin.screens import APP, latest_event
from jobs.models import GroupMode, GroupStatus, Job, JobGroup
from jobs.services import groups

CHANGED = ngettext_lazy("%(count)d group changed", "%(count)d groups changed", "count")
SIGNS = {
    GroupStatus.COMPLETED: ("good", "✓"),
    GroupStatus.FAILED: ("bad", "✗"),
    GroupStatus.PARTIAL: ("warn", "!"),
    GroupStatus.RUNNING: ("running", "▶"),
    GroupStatus.CANCELLED: ("cancelled", "⊘"),
    GroupStatus.PENDING: ("pending", "◌"),
}


class JobGroupAdmin(ButtonAdmin, StateAdmin):
    nothing_yet = _(
        "There are no groups. Jobs that belong together are submitted with group([…]).enqueue(), by the API or with "
        "“manage.py groups create”."
    )
    buttons = (
        Button(
            "cancel",
            pgettext_lazy("verb", "Cancel the rest"),
            _("Cancel the rest of selected groups"),
            CHANGED,
            f"{APP}.cancel_jobgroup",
            by_key(groups.cancel),
            lambda group: not group.is_terminal,
            grave=True,
        ),
        Button(
            "retry",
            pgettext_lazy("verb", "Retry what failed"),
            _("Retry what did not end well in selected groups"),
            CHANGED,
            f"{APP}.retry_jobgroup",
            by_key(groups.retry),
            lambda group: group.is_terminal and group.status != GroupStatus.COMPLETED,
        ),
    )
    list_display = ("short_id", "shown_name", "shown_status", "members", "shown_mode", "created")
    list_per_page = 20
    list_filter = (
        one_of("status", _("status"), GroupStatus.choices),
        one_of("mode", _("mode"), GroupMode.choices),
        CreatedFilter,
    )
    sortable_by = ("short_id",)
    qualifiers = {"name": "name", "tenant": "tenant"}
    fieldsets = (
        fieldset(None, "id", "shown_name", "tenant", "mode", "on_failure"),
        fieldset(_("State"), "shown_status", "cancel_requested", "round", "created_at", "finished_at", "members"),
    )

    shown_name = column(_("name"), "name", lambda text: isolated(text) if text else None)
    created = column(_("created"), "created_at", when)

    def live_mark(self) -> str:
        return latest_event()

    def complete_rows(self, request: HttpRequest, rows: QuerySet[Any]) -> None:
        found = groups.progress(group.pk for group in rows)
        for group in rows:
            group.counted = found[group.pk]["by_status"]

    @shown(_("group"), ordering="id")
    def short_id(self, group: JobGroup) -> SafeString:
        return format_html('<span title="{}">{}</span>', group.pk, short_id(group.pk))

    @shown(_("status"))
    def shown_status(self, group: JobGroup) -> SafeString:
        kind, icon = SIGNS[GroupStatus(group.status)]
        return mark(kind, group.get_status_display(), icon)

    @shown(_("mode"))
    def shown_mode(self, group: JobGroup) -> str:
        return f"{group.get_mode_display()} · {group.get_on_failure_display()}"

    @shown(_("progress"))
    def members(self, group: JobGroup) -> SafeString | None:
        """How many places are in which state; the list has all jobs, retried ones included."""
        counted = getattr(group, "counted", None)
        if counted is None:
            counted = groups.progress([group.pk])[group.pk]["by_status"]
        bar = share_bar(counted)
        if bar is None or not self.admin_site.is_registered(Job):
            return bar
        return format_html('<a href="{}?q=group:{}">{}</a>', list_url(self.admin_site, Job), group.pk, bar)
