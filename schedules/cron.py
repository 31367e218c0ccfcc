"""Compute the due times of cron expressions in a time zone, as Debian's cron does.

cronsim parses the expression and computes on local time without a zone; clock changes are handled here. An expression
with fixed times whose time is skipped by a change runs right after the gap, and never runs twice. An expression whose
minute or hour begins with `*` follows the wall clock.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cache, cached_property, lru_cache
from importlib import resources
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

CRON_LENGTH = 200
ZONE_NAME_LENGTH = 64
ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
FIELD_LABELS = {
    "minute": gettext_lazy("minute"),
    "hour": gettext_lazy("hour"),
    "day-of-month": gettext_lazy("day of the month"),
    "month": gettext_lazy("month"),
    "day-of-week": gettext_lazy("day of the week"),
}
_FIELD_CHARACTERS = re.compile(r"[A-Za-z0-9*/,#-]+(?:[ \t]+[A-Za-z0-9*/,#-]+)*")
_EXCLUDED_ZONES = frozenset({"localtime", "posixrules", "Factory"})  # the zone of this host, or no zone
SECOND = timedelta(seconds=1)
REFERENCE_DATE = datetime(2024, 1, 1)  # noqa: DTZ001 — on a clock without a zone


class CronError(ValueError):
    """Raised for an expression that is invalid or never comes due. Operators see the message."""


@lru_cache(maxsize=4096)
def parse_expression(text: str) -> str:
    """Return the five fields of an expression or of an alias such as @daily; raise CronError."""
    text = text.strip()
    if text.startswith("@"):
        fields = ALIASES.get(text.lower())
        if fields is None:
            raise CronError(_("is not one of %s") % ", ".join(ALIASES))
        return fields
    parts = text.split()
    if not _FIELD_CHARACTERS.fullmatch(text):
        raise CronError(_("is no cron expression such as “0 3 * * 1-5”"))
    if len(parts) != 5:
        raise CronError(_("has %d fields; it needs 5: minute, hour, day of the month, month, weekday") % len(parts))
    fields = " ".join(parts)
    try:
        is_never_due = next(iter(CronSim(fields, REFERENCE_DATE)), None) is None
    except CronSimError as error:
        is_never_due = _has_impossible_date(fields)
        if not is_never_due:
            name = str(error).removeprefix("Bad ")
            raise CronError(_("has a bad field: %s") % FIELD_LABELS.get(name, name)) from None
    if is_never_due:
        raise CronError(_("never comes due: there is no such day"))
    return fields


@dataclass(frozen=True)
class Cron:
    """The due times of an expression in one zone. The first use of an invalid expression raises CronError."""

    expression: str
    zone: ZoneInfo

    @cached_property
    def fields(self) -> str:
        return parse_expression(self.expression)

    @cached_property
    def follows_wall_clock(self) -> bool:
        """Whether the minute or the hour begins with a wildcard; Debian's cron treats other expressions as fixed."""
        minute, hour, *_other = self.fields.split()
        return minute.startswith("*") or hour.startswith("*")

    def next_after(self, moment: datetime) -> datetime | None:
        """Return the next due time, in UTC; None if there is none within fifty years."""
        try:
            return self._next_on_wall_clock(moment) if self.follows_wall_clock else self._next_fixed_time(moment)
        except OverflowError:  # the calendar ends
            return None

    def find_skipped_time(self, due: datetime) -> datetime | None:
        """Return the local time that a gap skipped, if that is why `due` is a due time; else None."""
        gap_start = wall_time(self.zone, due - SECOND) + SECOND
        if self.follows_wall_clock or gap_start >= wall_time(self.zone, due):
            return None
        local = self._next_local_time(gap_start - SECOND)
        return local if local is not None and local < wall_time(self.zone, due) else None

    def _next_fixed_time(self, moment: datetime) -> datetime | None:
        for local in CronSim(self.fields, wall_time(self.zone, moment)):
            due = self._to_utc(local)
            if due > moment:
                return due
        return None

    def _next_on_wall_clock(self, moment: datetime) -> datetime | None:
        """Search the time up to the next clock change, where local time is linear; then go on from the change.

        A search of the calendar is valid for every later start before its result, so that a due time which is decades
        away is searched once, not once for each clock change on the way.
        """
        start, searched_from = moment, wall_time(self.zone, moment)
        local = self._next_local_time(searched_from)
        while local is not None:
            due = start + (local - wall_time(self.zone, start))
            change = find_clock_change(self.zone, start, due)
            if change is None:
                return due.astimezone(UTC)
            start, resumed_from = change, wall_time(self.zone, change) - SECOND
            if not searched_from <= resumed_from < local:
                searched_from, local = resumed_from, self._next_local_time(resumed_from)
        return None

    def _next_local_time(self, local: datetime) -> datetime | None:
        return next(iter(CronSim(self.fields, local)), None)

    def _to_utc(self, local: datetime) -> datetime:
        """Return the moment of a local time: the first if it occurs twice, right after the gap if it does not occur."""
        first, second = (local.replace(tzinfo=self.zone, fold=fold).astimezone(UTC) for fold in (0, 1))
        if second < first:  # only within a gap; each is read with the offset of one of its sides
            return find_clock_change(self.zone, second, first) or first
        return first


def _has_impossible_date(fields: str) -> bool:
    """Return whether cronsim rejects day and month together only, as in the 31st of February."""
    minute, hour, day, month, weekday = fields.split()
    try:
        CronSim(f"{minute} {hour} {day} * {weekday}", REFERENCE_DATE)
        CronSim(f"{minute} {hour} * {month} {weekday}", REFERENCE_DATE)
    except CronSimError:
        return False
    return True


class UnknownZone(ValueError):
    """Raised for the name of a time zone that does not exist. Operators see the message."""


def get_zone(name: str) -> ZoneInfo:
    """Return the zone of this name; raise UnknownZone."""
    if name not in zone_names():
        message = _("There is no time zone “%s”.") % name[:ZONE_NAME_LENGTH]
        similar = difflib.get_close_matches(name[:ZONE_NAME_LENGTH], zone_names(), 1)
        if similar:
            message += " " + _("Did you mean “%s”?") % similar[0]
        raise UnknownZone(message)
    return ZoneInfo(name)  # it opens a file of that name, so only known names reach it


@cache
def zone_names() -> frozenset[str]:
    return frozenset(available_timezones()) - _EXCLUDED_ZONES


@cache
def list_canonical_zones() -> tuple[str, ...]:
    """Return UTC and the zones of all countries, without aliases and former names such as Zulu, GB-Eire or W-SU."""
    table = resources.files("tzdata.zoneinfo").joinpath("zone.tab").read_text()
    rows = (line.split("\t") for line in table.splitlines() if line and not line.startswith("#"))
    return ("UTC", *sorted(zone_names().intersection(row[2] for row in rows)))


def find_clock_change(zone: ZoneInfo, after: datetime, until: datetime) -> datetime | None:
    """Return the first moment of `after` < t <= `until` at which the clocks of a zone change, or None."""
    offset = after.astimezone(zone).utcoffset()
    while after < until:
        step = min(after + timedelta(days=1), until)
        if step.astimezone(zone).utcoffset() != offset:
            return _locate_change(zone, after, step)
        after = step
    return None


def wall_time(zone: ZoneInfo, moment: datetime) -> datetime:
    """Return the local time of a moment, without a zone."""
    return moment.astimezone(zone).replace(tzinfo=None, fold=0)


def _locate_change(zone: ZoneInfo, before: datetime, after: datetime) -> datetime:
    """Return the one change between two moments, to the second; offsets never change within a second."""
    low, high = int(before.timestamp()), int(after.timestamp())
    offset = after.astimezone(zone).utcoffset()
    while high - low > 1:
        middle = (low + high) // 2
        if datetime.fromtimestamp(middle, UTC).astimezone(zone).utcoffset() == offset:
            high = middle
        else:
            low = middle
    return datetime.fromtimestamp(high, UTC)
