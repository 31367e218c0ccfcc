"""The next due times, as a person reads them: in their own place, with a word where clocks change."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

from jobs import clock, parsing
from schedules import fields, zones
from schedules.cron import Cron
from schedules.models import Schedule
from schedules.notes import clock_note
from schedules.rules import refusing_nonsense
from schedules.triggers import Trigger, from_on, trigger_of

FEWEST, MOST, DEFAULT = 1, 1000, 5


@dataclass(frozen=True)
class Upcoming:
    fire_at: datetime
    local: datetime
    note: str | None


def of_schedule(schedule: Schedule, count: int = DEFAULT) -> list[Upcoming]:
    """What comes next; of a disabled schedule, what would come if it were enabled now."""
    most = parsing.integer(count, "count", FEWEST, MOST)
    if schedule.max_fires is not None:
        most = min(most, max(schedule.max_fires - schedule.fire_count, 0))
    with refusing_nonsense():
        trigger = trigger_of(schedule)
        first = schedule.next_fire_at if schedule.enabled else trigger.after(clock.now())
        return _told(trigger, zones.zone(schedule.timezone), islice(from_on(trigger, first), most))


def of_cron(cron: Any, timezone: Any = "UTC", count: int = DEFAULT) -> list[Upcoming]:
    """Of an expression that nobody has saved."""
    most = parsing.integer(count, "count", FEWEST, MOST)
    trigger = Cron(fields.cron(cron), zones.zone(fields.timezone(timezone)))
    return _told(trigger, trigger.zone, islice(from_on(trigger, trigger.after(clock.now())), most))


def _told(trigger: Trigger, place: ZoneInfo, times: Iterable[datetime]) -> list[Upcoming]:
    return [Upcoming(due, due.astimezone(place), clock_note(trigger, place, due)) for due in times]
