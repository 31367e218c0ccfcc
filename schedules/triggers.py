"""When a schedule is due: by cron, at intervals, or once. All three answer one question: when next, after a moment?

`choose` decides which due times are fired. As long as nothing is later than its grace, all are. Otherwise the scheduler
was away, and `catch_up` decides on all that has passed meanwhile: none of it, the newest, or the newest few.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Protocol

from schedules.cron import Cron, zone
from schedules.models import CatchUp, Schedule

_FIRST_LOOK = timedelta(minutes=2)


class Trigger(Protocol):
    def after(self, moment: datetime) -> datetime | None:
        """The first due time later than this, in UTC. The same from wherever one looks."""


@dataclass(frozen=True)
class Every:
    """Real seconds, counted from an anchor, whatever the clocks of a place do."""

    seconds: int
    anchor: datetime

    def after(self, moment: datetime) -> datetime | None:
        if moment < self.anchor:
            return self.anchor
        try:
            gone = (moment - self.anchor) // timedelta(seconds=self.seconds)
            return self.anchor + (gone + 1) * timedelta(seconds=self.seconds)
        except OverflowError:  # the calendar ends
            return None


@dataclass(frozen=True)
class Once:
    at: datetime

    def after(self, moment: datetime) -> datetime | None:
        return self.at if moment < self.at else None


def trigger_of(schedule: Schedule) -> Trigger:
    """Raises CronError or UnknownZone for a row that makes no sense."""
    if schedule.cron is not None:
        return Cron(schedule.cron, zone(schedule.timezone))
    if schedule.every_sec is not None:
        anchor = schedule.anchor_at or schedule.created_at
        return Every(schedule.every_sec, anchor.astimezone(UTC))
    assert schedule.run_at is not None
    return Once(schedule.run_at.astimezone(UTC))


def from_on(trigger: Trigger, first: datetime | None) -> Iterator[datetime]:
    """This due time and those that follow."""
    while first is not None:
        yield first
        first = trigger.after(first)


def newest(trigger: Trigger, first: datetime, now: datetime, most: int) -> list[datetime]:
    """The last `most` due times from `first` until now, oldest first; looks back only as far as it takes."""
    span = _FIRST_LOOK
    while True:
        whole = now - first <= span
        begin = first if whole else trigger.after(now - span)
        kept = deque(takewhile(lambda due: due <= now, from_on(trigger, begin)), maxlen=most)
        if whole or len(kept) == most:
            return list(kept)
        span *= 2


BUSY = timedelta(seconds=5)  # how late a scheduler may be without having been away
AT_ONCE = 100  # what is more than this comes with the next rounds


@dataclass(frozen=True)
class Choice:
    """`fired` are due times, oldest first; `next_at` is the first that is left; `missed_since` the first let go."""

    fired: list[datetime]
    next_at: datetime | None
    missed_since: datetime | None = None


def choose(
    trigger: Trigger, first: datetime, now: datetime, *, catch_up: str, most: int, grace_sec: int, left: int | None
) -> Choice:
    """`first` is the due time that waits; `left` is how many more fires the schedule has, None for any number."""
    due: list[datetime] = []
    if now - first > max(timedelta(seconds=grace_sec), BUSY):
        count = {CatchUp.NONE: 0, CatchUp.LATEST: 1}.get(CatchUp(catch_up), most)
        due = newest(trigger, first, now, count) if count else []
        missed = None if due and due[0] == first else first
        choice = Choice(due[:AT_ONCE], due[AT_ONCE] if len(due) > AT_ONCE else trigger.after(now), missed)
    else:
        following: datetime | None = first
        while following is not None and following <= now and len(due) < AT_ONCE:
            due.append(following)
            following = trigger.after(following)
        choice = Choice(due, following)
    if left is not None and len(choice.fired) >= left:
        return Choice(choice.fired[:left], None, choice.missed_since)
    return choice
