"""What to fire of the due times that have come, and what is let go: a pure decision.

As long as nothing is later than its grace, every due time is fired. Otherwise the scheduler was away, and `catch_up`
decides on all that has passed meanwhile: none of it, the newest, or the newest few.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from schedules.models import CatchUp
from schedules.triggers import Trigger, newest

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
    if now - first > max(timedelta(seconds=grace_sec), BUSY):
        choice = _after_an_absence(trigger, first, now, catch_up, most)
    else:
        choice = _in_time(trigger, first, now)
    if left is not None and len(choice.fired) >= left:
        return Choice(choice.fired[:left], None, choice.missed_since)
    return choice


def _in_time(trigger: Trigger, first: datetime, now: datetime) -> Choice:
    due: list[datetime] = []
    following: datetime | None = first
    while following is not None and following <= now and len(due) < AT_ONCE:
        due.append(following)
        following = trigger.after(following)
    return Choice(due, following)


def _after_an_absence(trigger: Trigger, first: datetime, now: datetime, catch_up: str, most: int) -> Choice:
    count = {CatchUp.NONE: 0, CatchUp.LATEST: 1}.get(CatchUp(catch_up), most)
    due = newest(trigger, first, now, count) if count else []
    missed = None if due and due[0] == first else first
    return Choice(due[:AT_ONCE], due[AT_ONCE] if len(due) > AT_ONCE else trigger.after(now), missed)
