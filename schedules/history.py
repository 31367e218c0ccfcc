"""What a schedule has fired and what became of it, how long that is remembered, and what comes next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any
from zoneinfo import ZoneInfo

from django.db.models import QuerySet

from jobs import clock
from jobs.conf import conf
from jobs.models import Job
from jobs.validation import fields
from schedules import validation
from schedules.cron import Cron, zone
from schedules.describe import clock_note
from schedules.fire_plan import tails
from schedules.models import Schedule, ScheduleFire
from schedules.triggers import Trigger, from_on, trigger_of
from schedules.validation import refusing_nonsense

AT_ONCE = 500


@dataclass(frozen=True)
class PastFire:
    """`last` is the end of its job's retry chain; None once the job is forgotten."""

    fire: ScheduleFire
    last: Job | None

    @property
    def outcome(self) -> str | None:
        return None if self.last is None else str(self.last.status)


def fires_of(schedule: Schedule) -> QuerySet[ScheduleFire]:
    return ScheduleFire.objects.filter(schedule_id=schedule.pk).order_by("-fire_time")


def with_outcomes(fires: Iterable[ScheduleFire]) -> list[PastFire]:
    listed: Sequence[ScheduleFire] = list(fires)
    last = tails(fire.job_id for fire in listed if fire.job_id is not None)
    return [PastFire(fire, last.get(fire.job_id) if fire.job_id is not None else None) for fire in listed]


def forget_old() -> int:
    """One round: fires whose jobs were pruned, as old as RETENTION_DAYS says. Returns how many went."""
    if conf.RETENTION_DAYS is None:
        return 0
    before = clock.now() - timedelta(days=conf.RETENTION_DAYS)
    fires = ScheduleFire.objects.all()
    forgotten = fires.filter(job__isnull=True).order_by("pk")[:AT_ONCE]
    ids = [pk for pk, fired_at in forgotten.values_list("pk", "fired_at") if fired_at < before]
    return fires.filter(pk__in=ids).delete()[0] if ids else 0


FEWEST, MOST, DEFAULT = 1, 1000, 5


@dataclass(frozen=True)
class Upcoming:
    fire_at: datetime
    local: datetime
    note: str | None


def of_schedule(schedule: Schedule, count: int = DEFAULT) -> list[Upcoming]:
    """What comes next; of a disabled schedule, what would come if it were enabled now."""
    most = fields.parse_integer(count, "count", FEWEST, MOST)
    if schedule.fires_left is not None:
        most = min(most, schedule.fires_left)
    with refusing_nonsense():
        trigger = trigger_of(schedule)
        first = schedule.next_fire_at if schedule.enabled else trigger.after(clock.now())
        return _describe_due_times(trigger, zone(schedule.timezone), islice(from_on(trigger, first), most))


def of_cron(cron: Any, timezone: Any = "UTC", count: int = DEFAULT) -> list[Upcoming]:
    """Preview an expression that is not saved."""
    most = fields.parse_integer(count, "count", FEWEST, MOST)
    trigger = Cron(validation.cron(cron), zone(validation.timezone(timezone)))
    return _describe_due_times(trigger, trigger.zone, islice(from_on(trigger, trigger.after(clock.now())), most))


def _describe_due_times(trigger: Trigger, place: ZoneInfo, times: Iterable[datetime]) -> list[Upcoming]:
    return [Upcoming(due, due.astimezone(place), clock_note(trigger, place, due)) for due in times]
