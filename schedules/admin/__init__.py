"""Schedules and their fires in the console: `schedules.admin.register(site)` shows them on any AdminSite."""

from __future__ import annotations

from django.contrib import admin

from jobs.admin import AdminRegistration
from jobs.admin.alerts import alert_from
from jobs.admin.dashboard import show_on_dashboard
from schedules.admin.fires import ScheduleFireAdmin, alert_overdue, next_fires
from schedules.admin.schedule import ScheduleAdmin
from schedules.models import Schedule, ScheduleFire

register = AdminRegistration({Schedule: ScheduleAdmin, ScheduleFire: ScheduleFireAdmin})
register.autoregister(admin.site)
show_on_dashboard(next_fires)
alert_from(alert_overdue)
