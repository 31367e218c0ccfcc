"""What the schedules add to the dashboard: the next fires, and a word where firing lags behind."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from django.contrib.admin import AdminSite, ModelAdmin
from django.http import HttpRequest
from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _

from jobs.admin.alerts import Alert
from jobs.admin.marks import roughly
from jobs.admin.showing import first_line, link, list_url
from schedules.models import Schedule

SHOWN = 10
LATE = timedelta(minutes=1)
VIEW = "jobscheduler_schedules.view_schedule"


def next_fires(admin: ModelAdmin, request: HttpRequest) -> SafeString | None:
    """None where nothing is planned, or for those who may not see it."""
    if not request.user.has_perm(VIEW):
        return None
    planned = Schedule.objects.filter(enabled=True, next_fire_at__isnull=False)
    rows = planned.order_by("next_fire_at").values_list("pk", "name", "next_fire_at", "timezone")[:SHOWN]
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
        yield Alert(_("Schedules are late: one was due %s ago.") % roughly(now - first), url, _("Schedules"))
