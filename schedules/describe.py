"""Describe the rule of a schedule in a sentence, and the effect of clock changes on a due time."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from schedules.cron import REFERENCE_DATE, SECOND, Cron, CronError, find_clock_change, parse_expression, wall_time
from schedules.models import Schedule
from schedules.triggers import Trigger

_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"))


def describe_rule(schedule: Schedule) -> str:
    """Return when a schedule is due, in words; empty for an invalid cron expression."""
    if schedule.cron is not None:
        return describe_cron(schedule.cron)
    if schedule.every_sec is not None:
        return describe_interval(schedule.every_sec)
    return _("Once")


def describe_cron(expression: str) -> str:
    """Return an expression in words; empty for an invalid one."""
    try:
        return str(CronSim(parse_expression(expression), REFERENCE_DATE).explain())
    except (CronError, CronSimError):
        return ""


def describe_interval(seconds: int) -> str:
    """Return an interval in its largest whole unit."""
    for size, unit in _UNITS:
        if seconds >= size and seconds % size == 0:
            return _("Every %(count)d %(unit)s") % {"count": seconds // size, "unit": unit}
    if seconds == 1:
        return _("Every second")
    return ngettext("Every %(count)d second", "Every %(count)d seconds", seconds) % {"count": seconds}


def describe_clock_change(trigger: Trigger, zone: ZoneInfo, due: datetime) -> str | None:
    """Return what a clock change on the day of a due time means for it; None on all other days."""
    change = _find_change_on_day(zone, due)
    if change is None:
        return None
    before, after = wall_time(zone, change - SECOND) + SECOND, wall_time(zone, change)
    if after < before and after <= wall_time(zone, due) < before:
        local = due.astimezone(zone)
        if local.fold:
            return _("%s comes twice on this day: this is the second") % _format_time(local)
        if isinstance(trigger, Cron) and not trigger.follows_wall_clock:
            return _("%s comes twice on this day: it runs the first time only") % _format_time(local)
        return _("%s comes twice on this day: this is the first") % _format_time(local)
    skipped = trigger.find_skipped_time(due) if isinstance(trigger, Cron) else None
    if skipped is not None:
        values = {"time": _format_time(skipped), "gap": _format_time(before)}
        return _("%(time)s does not exist on this day: clocks go forward at %(gap)s, and it runs right after") % values
    values = {"from": _format_time(before), "to": _format_time(after)}
    if after > before:
        return _("clocks go forward on this day, from %(from)s to %(to)s") % values
    return _("clocks go back on this day, from %(from)s to %(to)s") % values


def _find_change_on_day(zone: ZoneInfo, due: datetime) -> datetime | None:
    """Return the clock change between the midnights around a due time, if there is one."""
    try:
        today = wall_time(zone, due).date()
        start, end = (
            datetime.combine(day, time(), zone).astimezone(UTC) - SECOND for day in (today, today + timedelta(days=1))
        )
    except OverflowError:  # the calendar ends
        return None
    return find_clock_change(zone, start, end)


def _format_time(local: datetime) -> str:
    return f"{local:%H:%M}"
