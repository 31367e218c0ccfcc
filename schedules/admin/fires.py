"""Fires: as rows to look at, the last ones of a schedule as small bars, and the next ones on the dashboard."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any
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
from jobs.admin.formatting import (
    column,
    computed_column,
    first_line,
    format_first_line,
    format_rough_duration,
    link,
    link_column,
    list_url,
    text_block,
)
from jobs.models import Job
from jobs.models.job import STATUS_LABELS
from jobs.states import Status
from schedules.fire_plan import tails
from schedules.models import Schedule, ScheduleFire

PAST, COMING = 30, 10  # fires that are shown
WIDTH, GAP, HEIGHT = 3, 1, 16
HEIGHTS = {Status.COMPLETED: 10, Status.FAILED: 16}  # told apart by more than their colour
Fired = tuple[datetime, str | None]
SVG = '<svg class="jc-spark" viewBox="0 0 {} {}" width="{}" height="{}" role="img" aria-label="{}">{}</svg>'
BAR = '<rect class="jc-run-{}" x="{}" y="{}" width="{}" height="{}"><title>{}</title></rect>'
LATE = timedelta(minutes=1)
VIEW = "jobscheduler_schedules.view_schedule"


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


def last_fires(ids: Sequence[UUID]) -> dict[UUID, list[Fired]]:
    """Of each schedule its last fires, and what their jobs (retries included) results; None is forgotten."""
    own = ScheduleFire.objects.filter(schedule_id=OuterRef("pk")).values("fire_time")
    # From where on to read, of those that have fired: along the index, so that years of fires cost nothing.
    far = Subquery(own.order_by("-fire_time")[PAST - 1 : PAST])
    first = Subquery(own.order_by("fire_time")[:1])
    schedules: Any = Schedule.objects.filter(pk__in=list(ids)).order_by().annotate(since=Coalesce(far, first))
    wanted = Q()
    for key, since in schedules.values_list("pk", "since"):
        if since is not None:
            wanted |= Q(schedule_id=key, fire_time__gte=since)
    if not wanted:
        return {}
    fires = ScheduleFire.objects.filter(wanted).order_by("fire_time")
    rows = list(fires.values_list("schedule_id", "fire_time", "job_id"))
    last = tails(job_id for _key, _at, job_id in rows if job_id is not None)
    found: dict[UUID, list[Fired]] = {}
    for key, moment, job_id in rows:
        found.setdefault(key, []).append((moment, str(last[job_id].status) if job_id in last else None))
    return found


def spark(fired: Sequence[Fired]) -> SafeString | None:
    if not fired:
        return None
    shown = fired[-PAST:]
    failed = sum(status == Status.FAILED for _at, status in shown)
    told = _("The last %(count)d fires, %(failed)d of them failed") % {"count": len(shown), "failed": failed}
    bars = format_html_join("", BAR, (_bar(place, *fire) for place, fire in enumerate(shown)))
    width = len(shown) * (WIDTH + GAP)
    return format_html(SVG, width, HEIGHT, width, HEIGHT, told, bars)


def _bar(place: int, at: datetime, status: str | None) -> tuple[Any, ...]:
    known = None if status is None else Status(status)
    height = 6 if known is None else HEIGHTS.get(known, 6)
    kind = known.lower() if known in (Status.COMPLETED, Status.FAILED, Status.RUNNING, Status.QUEUED) else "other"
    word = _("forgotten") if known is None else STATUS_LABELS[known]
    told = f"{formats.date_format(timezone.localtime(at), 'Y-m-d H:i')} {word}"
    return (kind, place * (WIDTH + GAP), HEIGHT - height, WIDTH, height, told)


def next_fires(admin: ModelAdmin, request: HttpRequest) -> SafeString | None:
    """None where nothing is planned, and for users without the permission to view schedules."""
    if not request.user.has_perm(VIEW):
        return None
    planned = Schedule.objects.filter(enabled=True, next_fire_at__isnull=False)
    rows = planned.order_by("next_fire_at").values_list("pk", "name", "next_fire_at", "timezone")[:COMING]
    site = admin.admin_site
    shown = [(link(site, Schedule, pk, first_line(name, 60)), at, zone) for pk, name, at, zone in rows]
    return render_to_string("schedules/next_fires.html", {"fires": shown}, request) if shown else None


def lateness(site: AdminSite, request: HttpRequest) -> Iterator[Alert]:
    """A fire that is due and does not come: no worker ticks, or the tick cannot keep up."""
    now = timezone.now()
    due = Schedule.objects.filter(enabled=True, next_fire_at__isnull=False, next_fire_at__lt=now - LATE)
    first = due.order_by("next_fire_at").values_list("next_fire_at", flat=True).first()
    if first is not None and request.user.has_perm(VIEW):
        url = list_url(site, Schedule) if site.is_registered(Schedule) else ""
        yield Alert(
            _("Schedules are late: one was due %s ago.") % format_rough_duration(now - first), url, _("Schedules")
        )
