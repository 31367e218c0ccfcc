"""Fires in the console: the list of rows, the latest of a schedule as a bar chart, the next ones on the dashboard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django.contrib.admin import AdminSite, ModelAdmin
from django.db.models import OuterRef, Q, Subquery
from django.db.models.functions import Coalesce
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.utils import formats, timezone
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from jobs.admin.alerts import Alert
from jobs.admin.base import ReadOnlyAdmin
from jobs.admin.columns import column, computed_column, link, link_column, list_url
from jobs.admin.formatting import first_line, format_first_line, format_rough_duration, text_block
from jobs.models import Job
from jobs.models.job import STATUS_LABELS
from jobs.states import Status
from schedules.fire_plan import find_latest_attempts
from schedules.models import Schedule, ScheduleFire

PAST_SHOWN, UPCOMING_SHOWN = 30, 10
BAR_WIDTH, BAR_GAP, CHART_HEIGHT = 3, 1, 16
BAR_HEIGHTS = {Status.COMPLETED: 10, Status.FAILED: 16}  # a difference besides the colour
SVG = '<svg class="jc-spark" viewBox="0 0 {} {}" width="{}" height="{}" role="img" aria-label="{}">{}</svg>'
BAR = '<rect class="jc-run-{}" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>'
LATE_AFTER = timedelta(minutes=1)
VIEW_PERMISSION = "jobscheduler_schedules.view_schedule"


class ScheduleFireAdmin(ReadOnlyAdmin):
    list_display = ("id", "schedule_link", "fire_time", "fired_at", "job_link", "first_note")
    list_select_related = ("schedule",)
    list_defer = ("schedule__params",)
    sortable_by = ("id",)
    qualifiers = {"schedule": "schedule", "job": "job"}
    id_field = "schedule_id"
    fieldsets = ((None, {"fields": ("schedule_link", "fire_time", "fired_at", "job_link", "shown_note")}),)
    job_link = link_column(gettext_lazy("job"), Job, "job_id")
    first_note = column(gettext_lazy("note"), "note", format_first_line)
    shown_note = column(gettext_lazy("note"), "note", text_block)

    @computed_column(gettext_lazy("schedule"))
    def schedule_link(self, fire: ScheduleFire) -> SafeString | str | None:
        return link(self.admin_site, Schedule, fire.schedule_id, fire.schedule.name)


class FireOutcome(NamedTuple):
    """`status` is that of the last job of the retry chain; None once the job was pruned."""

    due: datetime
    status: str | None


def latest_fires(schedule_ids: Sequence[UUID]) -> dict[UUID, list[FireOutcome]]:
    """Return the latest fires of each schedule with their outcomes, oldest first."""
    own = ScheduleFire.objects.filter(schedule_id=OuterRef("pk")).values("fire_time")
    # The due time to read from is found along the index, so that years of fires cost nothing.
    nth_latest = Subquery(own.order_by("-fire_time")[PAST_SHOWN - 1 : PAST_SHOWN])
    first = Subquery(own.order_by("fire_time")[:1])
    schedules: Any = Schedule.objects.filter(pk__in=list(schedule_ids)).order_by()
    wanted = Q()
    for schedule_id, since in schedules.values_list("pk", Coalesce(nth_latest, first)):
        if since is not None:
            wanted |= Q(schedule_id=schedule_id, fire_time__gte=since)
    if not wanted:
        return {}
    fires = ScheduleFire.objects.filter(wanted).order_by("fire_time")
    rows = list(fires.values_list("schedule_id", "fire_time", "job_id"))
    latest = find_latest_attempts(job_id for _schedule_id, _due, job_id in rows if job_id is not None)
    fires_of: dict[UUID, list[FireOutcome]] = {}
    for schedule_id, due, job_id in rows:
        status = str(latest[job_id].status) if job_id in latest else None
        fires_of.setdefault(schedule_id, []).append(FireOutcome(due, status))
    return fires_of


def draw_chart(fires: Sequence[FireOutcome]) -> SafeString | None:
    """Return the latest fires as a bar chart (SVG); None without fires."""
    if not fires:
        return None
    drawn = fires[-PAST_SHOWN:]
    failed = sum(fire.status == Status.FAILED for fire in drawn)
    label = _("The last %(count)d fires, %(failed)d of them failed") % {"count": len(drawn), "failed": failed}
    bars = []
    for index, (due, status_text) in enumerate(drawn):
        status = None if status_text is None else Status(status_text)
        height = 6 if status is None else BAR_HEIGHTS.get(status, 6)
        kind = status.lower() if status in (Status.COMPLETED, Status.FAILED, Status.RUNNING, Status.QUEUED) else "other"
        outcome = _("forgotten") if status is None else STATUS_LABELS[status]
        title = f"{formats.date_format(timezone.localtime(due), 'Y-m-d H:i')} {outcome}"
        bars.append((kind, index * (BAR_WIDTH + BAR_GAP), CHART_HEIGHT - height, BAR_WIDTH, height, title))
    width = len(drawn) * (BAR_WIDTH + BAR_GAP)
    return format_html(SVG, width, CHART_HEIGHT, width, CHART_HEIGHT, label, format_html_join("", BAR, bars))


def next_fires(admin: ModelAdmin, request: HttpRequest) -> SafeString | None:
    """Return the dashboard's table of upcoming fires; None without any, and without the permission to view them."""
    if not request.user.has_perm(VIEW_PERMISSION):
        return None
    enabled = Schedule.objects.filter(enabled=True, next_fire_at__isnull=False)
    rows = enabled.order_by("next_fire_at").values_list("pk", "name", "next_fire_at", "timezone")[:UPCOMING_SHOWN]
    site = admin.admin_site
    fires = [(link(site, Schedule, pk, first_line(name, 60)), at, zone) for pk, name, at, zone in rows]
    return render_to_string("schedules/next_fires.html", {"fires": fires}, request) if fires else None


def alert_overdue(site: AdminSite, request: HttpRequest) -> Iterator[Alert]:
    """Yield an alert if a schedule is overdue: no worker runs the ticker, or the ticker cannot keep up."""
    now = timezone.now()
    due = Schedule.objects.filter(enabled=True, next_fire_at__isnull=False, next_fire_at__lt=now - LATE_AFTER)
    first = due.order_by("next_fire_at").values_list("next_fire_at", flat=True).first()
    if first is not None and request.user.has_perm(VIEW_PERMISSION):
        url = list_url(site, Schedule) if site.is_registered(Schedule) else ""
        message = _("Schedules are late: one was due %s ago.") % format_rough_duration(now - first)
        yield Alert(message, url, _("Schedules"))
