"""What to know about a due time on a day when the clocks of its place change."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from zoneinfo import ZoneInfo

from django.utils.translation import gettext as _

from schedules.cron import Cron
from schedules.triggers import Trigger
from schedules.zones import change_between, wall

_SECOND = timedelta(seconds=1)


def clock_note(trigger: Trigger, place: ZoneInfo, due: datetime) -> str | None:
    change = _change_of_the_day(place, due)
    if change is None:
        return None
    before, after = wall(place, change - _SECOND) + _SECOND, wall(place, change)
    if after < before and after <= wall(place, due) < before:
        return _twice(trigger, place, due)
    skipped = trigger.skipped(due) if isinstance(trigger, Cron) else None
    if skipped is not None:
        told = {"time": _shown(skipped), "gap": _shown(before)}
        return _("%(time)s does not exist on this day: clocks go forward at %(gap)s, and it runs right after") % told
    told = {"from": _shown(before), "to": _shown(after)}
    if after > before:
        return _("clocks go forward on this day, from %(from)s to %(to)s") % told
    return _("clocks go back on this day, from %(from)s to %(to)s") % told


def _twice(trigger: Trigger, place: ZoneInfo, due: datetime) -> str:
    local = due.astimezone(place)
    if local.fold:
        return _("%s comes twice on this day: this is the second") % _shown(local)
    if isinstance(trigger, Cron) and not trigger.follows_the_clock:
        return _("%s comes twice on this day: it runs the first time only") % _shown(local)
    return _("%s comes twice on this day: this is the first") % _shown(local)


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


def _shown(clock: datetime) -> str:
    return f"{clock:%H:%M}"
