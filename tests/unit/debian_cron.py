"""The main loop of Debian's cron 3.0pl1, minute by minute: the judge of what is due on days when clocks change.

Written from its source and from nothing of ours: `load_entry` (entry.c), `find_jobs` and `main` (cron.c).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
EPOCH = datetime(1970, 1, 1)
A_LOT = 3 * 60
LATE = 5
DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
NAMED = {name: number for start, names in ((0, DAYS), (1, MONTHS)) for number, name in enumerate(names, start)}


@dataclass(frozen=True)
class Entry:
    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    is_wild: bool
    either_day: bool

    @classmethod
    def of(cls, line: str) -> Entry:
        minute, hour, day, month, weekday = line.upper().split()
        weekdays = _bits(weekday, 0, 7)
        return cls(
            minutes=_bits(minute, 0, 59),
            hours=_bits(hour, 0, 23),
            days=_bits(day, 1, 31),
            months=_bits(month, 1, 12),
            weekdays=weekdays | {0, 7} if weekdays & {0, 7} else weekdays,
            is_wild=minute[0] == "*" or hour[0] == "*",
            either_day=day[0] != "*" and weekday[0] != "*",
        )

    def matches(self, clock: datetime) -> bool:
        day, weekday = clock.day in self.days, clock.isoweekday() in self.weekdays
        is_day = day or weekday if self.either_day else day and weekday
        return is_day and clock.minute in self.minutes and clock.hour in self.hours and clock.month in self.months


def due_times(line: str, zone: ZoneInfo, begin: datetime, end: datetime) -> list[datetime]:
    """Every minute from `begin` until before `end` in which cron, running since long, would start the job."""
    return list(_run(Entry.of(line), zone, begin, end))


def _run(entry: Entry, zone: ZoneInfo, begin: datetime, end: datetime) -> Iterator[datetime]:
    virtual = _clock(begin - MINUTE, zone)
    now = begin
    while now < end:
        running = _clock(now, zone)
        started, virtual = _wake(entry, running, virtual)
        if started:
            yield now
        now += MINUTE


def _wake(entry: Entry, running: int, virtual: int) -> tuple[bool, int]:
    """One turn of the loop: whether the job is started, and the virtual time after it."""
    ahead = running - virtual
    if 0 < ahead <= LATE:  # as usual, or woken a little late: every minute in turn
        return any(entry.matches(_to_datetime(number)) for number in range(virtual + 1, running + 1)), running
    if LATE < ahead <= A_LOT:  # put forward: wildcards for this minute, fixed times for every minute missed
        if entry.is_wild:
            return entry.matches(_to_datetime(running)), running
        return any(entry.matches(_to_datetime(number)) for number in range(virtual + 1, running + 1)), running
    if -A_LOT < ahead <= 0:  # put back: wildcards only, until virtual time is caught up with
        return entry.is_wild and entry.matches(_to_datetime(running)), virtual
    return entry.matches(_to_datetime(running)), running  # a lot: begin anew


def _clock(moment: datetime, zone: ZoneInfo) -> int:
    """The minutes that the local clock shows."""
    return int((moment.astimezone(zone).replace(tzinfo=None) - EPOCH) / MINUTE)


def _to_datetime(minutes: int) -> datetime:
    return EPOCH + minutes * MINUTE


def _bits(field: str, low: int, high: int) -> frozenset[int]:
    return frozenset(item for part in field.split(",") for item in _range(part, low, high))


def _range(part: str, low: int, high: int) -> range:
    body, _, step = part.partition("/")
    if body == "*":
        return range(low, high + 1, int(step or 1))
    first, _, last = body.partition("-")
    until = last or (str(high) if step else first)
    return range(_number(first), _number(until) + 1, int(step or 1))


def _number(text: str) -> int:
    return NAMED.get(text, -1) if text.isalpha() else int(text)


def whole_day(zone: ZoneInfo, year: int, month: int, day: int) -> tuple[datetime, datetime]:
    """From noon before to noon after, so that a change at either midnight lies within."""
    noon = datetime(year, month, day, 12, tzinfo=zone)
    return tuple(  # type: ignore[return-value]
        moment.astimezone(UTC).replace(minute=0) for moment in (noon - timedelta(days=1), noon + timedelta(days=1))
    )
