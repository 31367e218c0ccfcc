"""Rules of schedules: cron, interval or single time. Each computes the next due time after a moment.

`choose_due_times` decides which due times are fired. While none is later than its grace, all are. Otherwise the
scheduler was down, and `catch_up` decides about all that has passed: none, the latest, or the latest few.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from typing import Protocol

from schedules.cron import Cron, get_zone
from schedules.models import CatchUp, Schedule

MIN_GRACE = timedelta(seconds=5)  # a running scheduler may be this late under load
FIRES_PER_ROUND = 100  # of one schedule; the others follow in the next rounds


class Trigger(Protocol):
    """Computes due times."""

    def next_after(self, moment: datetime) -> datetime | None:
        """Return the first due time later than `moment`, in UTC. The result depends on the rule and `moment` alone."""


@dataclass(frozen=True)
class Interval:
    """Elapsed seconds, counted from an anchor. Clock changes do not affect them."""

    seconds: int
    anchor: datetime

    def next_after(self, moment: datetime) -> datetime | None:
        if moment < self.anchor:
            return self.anchor
        try:
            count = (moment - self.anchor) // timedelta(seconds=self.seconds)
            return self.anchor + (count + 1) * timedelta(seconds=self.seconds)
        except OverflowError:  # the calendar ends
            return None


@dataclass(frozen=True)
class SingleTime:
    """One due time."""

    at: datetime

    def next_after(self, moment: datetime) -> datetime | None:
        return self.at if moment < self.at else None


def build_trigger(schedule: Schedule) -> Trigger:
    """Return the trigger of a schedule; raise CronError or UnknownZone for an invalid row."""
    if schedule.cron is not None:
        return Cron(schedule.cron, get_zone(schedule.timezone))
    if schedule.every_sec is not None:
        anchor = schedule.anchor_at or schedule.created_at
        return Interval(schedule.every_sec, anchor.astimezone(UTC))
    assert schedule.run_at is not None
    return SingleTime(schedule.run_at.astimezone(UTC))


def due_times_from(trigger: Trigger, first: datetime | None) -> Iterator[datetime]:
    """Yield this due time and those that follow."""
    while first is not None:
        yield first
        first = trigger.next_after(first)


def latest_due(trigger: Trigger, first: datetime, now: datetime, limit: int) -> list[datetime]:
    """Return the last `limit` due times from `first` until now, oldest first.

    The search goes back from now in growing spans: a schedule that was down for years has millions of due times.
    """
    span = timedelta(minutes=2)
    while True:
        is_complete = now - first <= span
        start = first if is_complete else trigger.next_after(now - span)
        latest = deque(takewhile(lambda due: due <= now, due_times_from(trigger, start)), maxlen=limit)
        if is_complete or len(latest) == limit:
            return list(latest)
        span *= 2


@dataclass(frozen=True)
class DueTimes:
    """`to_fire`, oldest first; `next_at` is the first that remains; `missed_since` the first that is not fired."""

    to_fire: list[datetime]
    next_at: datetime | None
    missed_since: datetime | None = None


def choose_due_times(schedule: Schedule, now: datetime) -> DueTimes:
    """Decide which due times of a schedule to fire now, starting with the pending one."""
    assert schedule.next_fire_at is not None
    trigger, first = build_trigger(schedule), schedule.next_fire_at.astimezone(UTC)
    due: list[datetime] = []
    if now - first > max(timedelta(seconds=schedule.misfire_grace_sec), MIN_GRACE):
        limit = {CatchUp.NONE: 0, CatchUp.LATEST: 1}.get(CatchUp(schedule.catch_up), schedule.catch_up_max)
        due = latest_due(trigger, first, now, limit) if limit else []
        missed_since = None if due and due[0] == first else first
        next_at = due[FIRES_PER_ROUND] if len(due) > FIRES_PER_ROUND else trigger.next_after(now)
        chosen = DueTimes(due[:FIRES_PER_ROUND], next_at, missed_since)
    else:
        following: datetime | None = first
        while following is not None and following <= now and len(due) < FIRES_PER_ROUND:
            due.append(following)
            following = trigger.next_after(following)
        chosen = DueTimes(due, following)
    if schedule.fires_left is not None and len(chosen.to_fire) >= schedule.fires_left:
        return DueTimes(chosen.to_fire[: schedule.fires_left], None, chosen.missed_since)
    return chosen
