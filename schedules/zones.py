"""Time zones by their IANA names, and the moments when their clocks change."""

from __future__ import annotations

import difflib
from datetime import UTC, datetime, timedelta
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

from django.utils.translation import gettext as _

NAME_LENGTH = 64
_NO_PLACES = frozenset({"localtime", "posixrules", "Factory"})  # of this host, or of nowhere
_DAY = timedelta(days=1)


class UnknownZone(ValueError):
    """There is no such time zone. The message says so to a person."""


def zone(name: str) -> ZoneInfo:
    """The zone of this name. Nothing but a known name is ever looked up, so no path leads anywhere."""
    if name not in names_of_zones():
        message = _("There is no time zone “%s”.") % name[:NAME_LENGTH]
        near = difflib.get_close_matches(name[:NAME_LENGTH], names_of_zones(), 1)
        if near:
            message += " " + _("Did you mean “%s”?") % near[0]
        raise UnknownZone(message)
    return ZoneInfo(name)


@cache
def names_of_zones() -> frozenset[str]:
    return frozenset(available_timezones()) - _NO_PLACES


def change_between(place: ZoneInfo, after: datetime, until: datetime) -> datetime | None:
    """The first moment of `after` < t <= `until` at which the clock of this place is put forward or back."""
    offset = after.astimezone(place).utcoffset()
    while after < until:
        step = min(after + _DAY, until)
        if step.astimezone(place).utcoffset() != offset:
            return _change(place, after, step)
        after = step
    return None


def wall(place: ZoneInfo, moment: datetime) -> datetime:
    """What the clock there shows, without a zone."""
    return moment.astimezone(place).replace(tzinfo=None, fold=0)


def _change(place: ZoneInfo, before: datetime, after: datetime) -> datetime:
    """The one change between two moments, to the second; offsets never change within one."""
    low, high = int(before.timestamp()), int(after.timestamp())
    offset = after.astimezone(place).utcoffset()
    while high - low > 1:
        middle = (low + high) // 2
        if datetime.fromtimestamp(middle, UTC).astimezone(place).utcoffset() == offset:
            high = middle
        else:
            low = middle
    return datetime.fromtimestamp(high, UTC)
