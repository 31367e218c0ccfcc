"""Groups: their status and progress, and the actions to cancel or retry their members."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.http import HttpRequest
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext_lazy, pgettext_lazy

from jobs.admin.base import ReadOnlyAdmin, fieldset
from jobs.admin.columns import change_url, column, computed_column, link, search_url, short_id
from jobs.admin.filters import CreatedFilter, choice_filter
from jobs.admin.formatting import (
    badge,
    first_line,
    format_duration,
    format_relative_time,
    isolate_text,
    status_badge,
    status_bar,
)
from jobs.admin.object_actions import ObjectAction, ObjectActionAdmin, call_with_key
from jobs.admin.screens import APP, latest_event_id
from jobs.models import GroupMode, GroupStatus, Job, JobGroup
from jobs.services import groups
from jobs.states import Status

MEMBERS_SHOWN = 100
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
        "No groups yet. Submit jobs that belong together with group([…]).enqueue(), by the API or with "
        "“manage.py groups create”."
    )
    change_form_template = "jobs/facts_page.html"
    object_actions = (
        ObjectAction(
            "cancel",
            pgettext_lazy("verb", "Cancel remaining jobs"),
            _("Cancel remaining jobs of selected groups"),
            DONE_TEXT,
            f"{APP}.cancel_jobgroup",
            call_with_key(groups.cancel),
            lambda group: not group.is_terminal,
            needs_confirmation=True,
            title=_("Cancel the jobs that have not finished"),
        ),
        ObjectAction(
            "retry",
            pgettext_lazy("verb", "Retry failed jobs"),
            _("Retry failed jobs of selected groups"),
            DONE_TEXT,
            f"{APP}.retry_jobgroup",
            call_with_key(groups.retry),
            lambda group: group.is_terminal and group.status != GroupStatus.COMPLETED,
            title=_("Retry the jobs that failed or were cancelled"),
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
        fieldset(
            None,
            *("shown_status", "members", "shown_mode", "tenant", "created", "finished", "shown_round"),
            *("shown_cancel", "id"),
        ),
    )

    finished = column(_("finished"), "finished_at", format_relative_time)
    shown_round = column(_("runs"), "round", str)
    shown_cancel = column(
        _("cancelled manually"), "cancel_requested", lambda value: _now("yes") if value else _now("no")
    )

    shown_name = column(_("name"), "name", lambda text: isolate_text(text) if text else None)
    created = column(_("created"), "created_at", format_relative_time)

    def list_version(self) -> str:
        return latest_event_id()

    def page_version(self, request: HttpRequest, row: JobGroup) -> str:
        return latest_event_id()

    def page_context(self, request: HttpRequest, row: JobGroup) -> dict[str, Any]:
        self.complete_rows(request, [row])
        members = groups.get_latest_attempts(row.pk).select_related("run")
        members = members.defer("params", "checkpoint", "run__error", "run__artifacts")
        found = list(members[: MEMBERS_SHOWN + 1])
        can_list = self.admin_site.is_registered(Job)
        table = {
            "id": "group-jobs",
            "title": _now("Jobs"),
            "cards": True,
            "headings": [_now("No."), _now("Status"), _now("Job"), _now("Target"), _now("Attempt"), _now("Ran")],
            "numbers": (0, 4, 5),
            "rows": [self._member_cells(row, job) for job in found[:MEMBERS_SHOWN]],
            "empty": _now("The jobs of this group were deleted after their retention."),
            "note": _now("The first %d jobs.") % MEMBERS_SHOWN if len(found) > MEMBERS_SHOWN else "",
            "list_url": search_url(self.admin_site, "group", str(row.pk)) if can_list else "",
            "list_label": _now("All jobs of this group, earlier attempts included"),
        }
        title = _now("Group %s") % (row.name or short_id(row.pk))
        return {"title": title, "subtitle": None, "tables": [table]}

    def _member_cells(self, group: JobGroup, job: Job) -> tuple[Any, ...]:
        run = getattr(job, "run", None)
        started, finished = (None, None) if run is None else (run.started_at, run.finished_at)
        end = finished or (timezone.now() if job.status == Status.RUNNING else None)
        name = link(self.admin_site, Job, job.pk, job.job_type)
        place = None if job.group_index is None else job.group_index + 1
        is_final = place is not None and job.group_index == group.then_index
        return (
            _now("%d (final job)") % place if is_final else place,
            status_badge(job.status),
            format_html('{} <span class="jc-small jc-muted">{}</span>', name or job.job_type, short_id(job.pk)),
            None if job.target is None else isolate_text(first_line(job.target, 60)),
            job.attempt,
            format_duration(end - started) if started and end else None,
        )

    def complete_rows(self, request: HttpRequest, rows: Iterable[Any]) -> None:
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
        mode = group.get_mode_display()
        return f"{mode} · {group.get_on_failure_display()}" if group.uses_on_failure else mode

    @computed_column(_("progress"))
    def members(self, group: JobGroup) -> SafeString | None:
        """Count the latest attempt of each member, which the group's page lists."""
        by_status = getattr(group, "by_status", None)
        if by_status is None:
            by_status = groups.count_progress([group.pk])[group.pk]["by_status"]
        bar = status_bar(by_status)
        return bar and format_html(
            '<a href="{}#group-jobs">{}</a>', change_url(self.admin_site, JobGroup, group.pk), bar
        )
