"""Findings of `manage.py doctor` on schedules."""

from __future__ import annotations

from datetime import timedelta

from django.db.models.functions import Now
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from jobs.management.doctor import Finding, Findings, Level
from schedules.firing import BROKEN_PREFIX
from schedules.models import Schedule

LATE_SEC = 60


def examine() -> Findings:
    """Report schedules that are overdue, and those that the scheduler disabled."""
    rows = Schedule.objects.all()
    late = rows.filter(enabled=True, next_fire_at__lt=Now() - timedelta(seconds=LATE_SEC)).count()
    broken = rows.filter(enabled=False, disabled_reason__startswith=BROKEN_PREFIX).count()
    if late:
        message = ngettext("%d is overdue by more than a minute", "%d are overdue by more than a minute", late) % late
        yield Finding(
            "schedules", Level.ERROR, message, _("Start a worker with housekeeping, or run `manage.py tick`.")
        )
    if broken:
        message = ngettext("%d is broken and was disabled", "%d are broken and were disabled", broken) % broken
        yield Finding("schedules", Level.WARNING, message, _("See `manage.py schedules list`."))
    if not late and not broken:
        yield Finding("schedules", Level.OK, _("none is overdue"))
