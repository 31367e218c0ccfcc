"""When a schedule runs, in words, and what to know about a due time on a day when clocks change."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from schedules.cron import Cron, CronError, change_between, fields_of, wall
from schedules.models import Schedule
from schedules.triggers import Trigger

_ANY_DAY = datetime(2024, 1, 1)  # noqa: DTZ001 — on a clock without a zone
_UNITS = ((86_400, "d"), (3600, "h"), (60, "min"))


def in_words(schedule: Schedule) -> str:
    """Empty for a rule that makes no sense."""
    if schedule.cron is not None:
        return cron_in_words(schedule.cron)
    if schedule.every_sec is not None:
        return every_in_words(schedule.every_sec)
    return _("Once")


def cron_in_words(written: str) -> str:
    try:
        return str(CronSim(fields_of(written), _ANY_DAY).explain())
    except (CronError, CronSimError):
        return ""


def every_in_words(seconds: int) -> str:
    for size, unit in _UNITS:
        if seconds >= size and seconds % size == 0:
            return _("Every %(count)d %(unit)s") % {"count": seconds // size, "unit": unit}
    if seconds == 1:
        return _("Every second")
    return ngettext("Every %(count)d second", "Every %(count)d seconds", seconds) % {"count": seconds}


_SECOND = timedelta(seconds=1)


def clock_note(trigger: Trigger, place: ZoneInfo, due: datetime) -> str | None:
    change = _change_of_the_day(place, due)
    if change is None:
        return None
    before, after = wall(place, change - _SECOND) + _SECOND, wall(place, change)
    if after < before and after <= wall(place, due) < before:
        local = due.astimezone(place)
        if local.fold:
            return _("%s comes twice on this day: this is the second") % _format_time(local)
        if isinstance(trigger, Cron) and not trigger.follows_the_clock:
            return _("%s comes twice on this day: it runs the first time only") % _format_time(local)
        return _("%s comes twice on this day: this is the first") % _format_time(local)
    skipped = trigger.skipped(due) if isinstance(trigger, Cron) else None
    if skipped is not None:
        values = {"time": _format_time(skipped), "gap": _format_time(before)}
        return _("%(time)s does not exist on this day: clocks go forward at %(gap)s, and it runs right after") % values
    values = {"from": _format_time(before), "to": _format_time(after)}
    if after > before:
        return _("clocks go forward on this day, from %(from)s to %(to)s") % values
    return _("clocks go back on this day, from %(from)s to %(to)s") % values


def _change_of_the_day(place: ZoneInfo, due: datetime) -> datetime | None:
    """When the clocks change between the midnights around this due time, if they do."""
    try:
        today = wall(place, due).date()
        begin, end = (
            datetime.combine(day, time(), place).astimezone(UTC) - _SECOND for day in (today, today + timedelta(days=1))
        )
    except OverflowError:  # the calendar ends
        return None
    return change_between(place, begin, end)


def _format_time(clock: datetime) -> str:
    return f"{clock:%H:%M}"
