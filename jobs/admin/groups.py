"""Groups, as their members have made them: how far each is, and the verbs for the rest of it."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy, pgettext_lazy

from jobs import groups
from jobs.actors import Actor
from jobs.admin import live
from jobs.admin.buttons import Button, ButtonAdmin
from jobs.admin.console import APP
from jobs.admin.filters import CreatedFilter, one_of
from jobs.admin.marks import mark, when
from jobs.admin.reading import LeanChangeList, StateAdmin
from jobs.admin.shares import share_bar
from jobs.admin.showing import isolated, list_url, short_id, shown
from jobs.models import GroupMode, GroupStatus, Job, JobGroup

CHANGED = ngettext_lazy("%(count)d group changed", "%(count)d groups changed", "count")
SIGNS = {
    GroupStatus.COMPLETED: ("good", "✓"),
    GroupStatus.FAILED: ("bad", "✗"),
    GroupStatus.PARTIAL: ("warn", "!"),
    GroupStatus.RUNNING: ("running", "▶"),
    GroupStatus.CANCELLED: ("cancelled", "⊘"),
    GroupStatus.PENDING: ("pending", "◌"),
}


def _cancel(group: JobGroup, *, reason: str, actor: Actor) -> None:
    groups.cancel(group.pk, reason=reason, actor=actor)


def _retry(group: JobGroup, *, reason: str, actor: Actor) -> None:
    groups.retry(group.pk, reason=reason, actor=actor)


class GroupChangeList(LeanChangeList):
    """The members of all groups on a page are counted together."""

    def get_results(self, request: HttpRequest) -> None:
        super().get_results(request)
        self.result_list = list(self.result_list)
        found = groups.progress(group.pk for group in self.result_list)
        for group in self.result_list:
            group.counted = found[group.pk]["by_status"]


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
            _cancel,
            lambda group: not group.is_terminal,
            grave=True,
        ),
        Button(
            "retry",
            pgettext_lazy("verb", "Retry what failed"),
            _("Retry what did not end well in selected groups"),
            CHANGED,
            f"{APP}.retry_jobgroup",
            _retry,
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
        (None, {"fields": ("id", "shown_name", "tenant", "mode", "on_failure")}),
        (
            _("State"),
            {"fields": ("shown_status", "cancel_requested", "round", "created_at", "finished_at", "members")},
        ),
    )

    def live_mark(self) -> str:
        return live.latest_event()

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[LeanChangeList]:
        return GroupChangeList

    @shown(_("group"), ordering="id")
    def short_id(self, group: JobGroup) -> SafeString:
        return format_html('<span title="{}">{}</span>', group.pk, short_id(group.pk))

    @shown(_("name"))
    def shown_name(self, group: JobGroup) -> SafeString | None:
        return isolated(group.name) if group.name else None

    @shown(_("status"))
    def shown_status(self, group: JobGroup) -> SafeString:
        kind, icon = SIGNS[GroupStatus(group.status)]
        return mark(kind, group.get_status_display(), icon)

    @shown(_("mode"))
    def shown_mode(self, group: JobGroup) -> str:
        return f"{group.get_mode_display()} · {group.get_on_failure_display()}"

    @shown(_("created"))
    def created(self, group: JobGroup) -> SafeString | None:
        return when(group.created_at)

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
