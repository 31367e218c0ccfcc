"""Cron expressions on the clock of a time zone: the due times that Debian's cron would see.

cronsim knows the expression and counts on a clock that never changes; where a real clock is put forward or back is
decided here. A job at fixed times whose time is skipped runs right after the gap, and never runs twice; a job whose
minute or hour begins with `*` follows the clock on the wall.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property, lru_cache
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

LENGTH = 200
ZONE_NAME_LENGTH = 64
NAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
FIELDS = {
    "minute": gettext_lazy("minute"),
    "hour": gettext_lazy("hour"),
    "day-of-month": gettext_lazy("day of the month"),
    "month": gettext_lazy("month"),
    "day-of-week": gettext_lazy("day of the week"),
}
_WORDS = re.compile(r"[A-Za-z0-9*/,#-]+(?:[ \t]+[A-Za-z0-9*/,#-]+)*")
_NO_PLACES = frozenset({"localtime", "posixrules", "Factory"})  # of this host, or of nowhere
_SECOND = timedelta(seconds=1)
_DAY = timedelta(days=1)
_ANY_DAY = datetime(2024, 1, 1)  # noqa: DTZ001 — on a clock without a zone


class CronError(ValueError):
    """The expression makes no sense, or never comes due. The message says which, to a person."""


@lru_cache(maxsize=4096)
def fields_of(written: str) -> str:
    """The five fields of an expression or of a name such as @daily, or CronError."""
    text = written.strip()
    if text.startswith("@"):
        fields = NAMES.get(text.lower())
        if fields is None:
            raise CronError(_("is not one of %s") % ", ".join(NAMES))
        return fields
    parts = text.split()
    if not _WORDS.fullmatch(text):
        raise CronError(_("is no cron expression such as “0 3 * * 1-5”"))
    if len(parts) != 5:
        raise CronError(_("has %d fields; it needs 5: minute, hour, day of the month, month, weekday") % len(parts))
    fields = " ".join(parts)
    try:
        never = next(iter(CronSim(fields, _ANY_DAY)), None) is None
    except CronSimError as error:
        never = _never_comes(fields)
        if not never:
            name = str(error).removeprefix("Bad ")
            raise CronError(_("has a bad field: %s") % FIELDS.get(name, name)) from None
    if never:
        raise CronError(_("never comes due: there is no such day"))
    return fields


@dataclass(frozen=True)
class Cron:
    """Due times in one place. `written` must have passed `fields_of`, or its first use raises CronError."""

    written: str
    zone: ZoneInfo

    @cached_property
    def fields(self) -> str:
        return fields_of(self.written)

    @cached_property
    def follows_the_clock(self) -> bool:
        """Debian's distinction: jobs with a wildcard in minute or hour, and jobs at fixed times."""
        minute, hour, *_rest = self.fields.split()
        return minute.startswith("*") or hour.startswith("*")

    def after(self, moment: datetime) -> datetime | None:
        """The next due time, in UTC; None if there is none within fifty years."""
        try:
            return self._along_the_clock(moment) if self.follows_the_clock else self._at_fixed_times(moment)
        except OverflowError:  # the calendar ends
            return None

    def skipped(self, moment: datetime) -> datetime | None:
        """The time of day that a gap swallowed, if that is why this is due: as the clock would have shown it."""
        before = wall(self.zone, moment - _SECOND) + _SECOND
        if self.follows_the_clock or before >= wall(self.zone, moment):
            return None
        meant = self._next(before - _SECOND)
        return meant if meant is not None and meant < wall(self.zone, moment) else None

    def _at_fixed_times(self, moment: datetime) -> datetime | None:
        for meant in CronSim(self.fields, wall(self.zone, moment)):
            due = self._placed(meant)
            if due > moment:
                return due
        return None

    def _along_the_clock(self, moment: datetime) -> datetime | None:
        """Between two changes a clock is like any other: look there, and go on with the next stretch."""
        begin, shown = moment, wall(self.zone, moment)
        while (meant := self._next(shown)) is not None:
            due = begin + (meant - wall(self.zone, begin))
            change = change_between(self.zone, begin, due)
            if change is None:
                return due.astimezone(UTC)
            begin, shown = change, wall(self.zone, change) - _SECOND
        return None

    def _next(self, shown: datetime) -> datetime | None:
        return next(iter(CronSim(self.fields, shown)), None)

    def _placed(self, meant: datetime) -> datetime:
        """When the clock shows this: the first time if twice, right after the gap if never."""
        first, second = (meant.replace(tzinfo=self.zone, fold=fold).astimezone(UTC) for fold in (0, 1))
        if second < first:  # only within a gap; each is read with the offset of one of its sides
            return change_between(self.zone, second, first) or first
        return first


def _never_comes(fields: str) -> bool:
    """Whether only the months are at fault, as in the 31st of February."""
    minute, hour, day, month, weekday = fields.split()
    try:
        CronSim(f"{minute} {hour} {day} * {weekday}", _ANY_DAY)
        CronSim(f"{minute} {hour} * {month} {weekday}", _ANY_DAY)
    except CronSimError:
        return False
    return True


class UnknownZone(ValueError):
    """There is no such time zone. The message says so to a person."""


def zone(name: str) -> ZoneInfo:
    """The zone of this name. Nothing but a known name is ever looked up, so no path leads anywhere."""
    if name not in names_of_zones():
        message = _("There is no time zone “%s”.") % name[:ZONE_NAME_LENGTH]
        near = difflib.get_close_matches(name[:ZONE_NAME_LENGTH], names_of_zones(), 1)
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
