"""Schedules and their fires in the console: `schedules.admin.register(site)` shows them on any AdminSite."""

from __future__ import annotations

from django.contrib import admin
from django.utils.translation import ngettext

from jobs.admin import AdminRegistration
from jobs.admin.alerts import alert_from
from jobs.admin.navigation import add_count
from jobs.admin.overview import show_on_overview
from schedules.admin.fires import ScheduleFireAdmin, alert_overdue, alert_skipping, next_fires
from schedules.admin.schedule import ScheduleAdmin
from schedules.models import Schedule, ScheduleFire

register = AdminRegistration({Schedule: ScheduleAdmin, ScheduleFire: ScheduleFireAdmin})
register.autoregister(admin.site)
show_on_overview(next_fires)
alert_from(alert_overdue)
alert_from(alert_skipping)
add_count("schedules", Schedule.objects.overdue, lambda n, text: ngettext("%s late", "%s late", n) % text, is_bad=True)
