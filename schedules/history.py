"""The past fires of a schedule with the outcome of their jobs, their retention, and the preview of upcoming fires."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

from django.db.models import QuerySet

from jobs import clock
from jobs.conf import conf
from jobs.models import Job
from jobs.validation import fields
from schedules import validation
from schedules.cron import Cron, get_zone
from schedules.describe import describe_clock_change
from schedules.fire_plan import find_latest_attempts
from schedules.models import Schedule, ScheduleFire
from schedules.triggers import Trigger, build_trigger, due_times_from
from schedules.validation import broken_as_conflict

DELETE_BATCH_SIZE = 500
MIN_COUNT, MAX_COUNT, DEFAULT_COUNT = 1, 1000, 5  # of upcoming fires
MAX_UNSAVED_COUNT = 100  # of an expression that is not saved
HORIZON_YEARS = 100
HORIZON = timedelta(days=365.25 * HORIZON_YEARS)  # of a preview: the due times of a rare rule are decades apart


@dataclass(frozen=True)
class PastFire:
    """`latest_attempt` is the last job of its job's retry chain; None once the job was pruned."""

    fire: ScheduleFire
    latest_attempt: Job | None

    @property
    def outcome(self) -> str | None:
        return None if self.latest_attempt is None else str(self.latest_attempt.status)


def fires_of(schedule: Schedule) -> QuerySet[ScheduleFire]:
    return ScheduleFire.objects.filter(schedule_id=schedule.pk).order_by("-fire_time")


def load_outcomes(fires: Iterable[ScheduleFire]) -> list[PastFire]:
    """Return fires together with the last jobs of their retry chains."""
    rows = list(fires)
    latest = find_latest_attempts(fire.job_id for fire in rows if fire.job_id is not None)
    return [PastFire(fire, latest.get(fire.job_id) if fire.job_id is not None else None) for fire in rows]


def delete_old_fires() -> int:
    """Delete one batch of fires that are older than RETENTION_DAYS and whose jobs were pruned. Return the number."""
    if conf.RETENTION_DAYS is None:
        return 0
    before = clock.now() - timedelta(days=conf.RETENTION_DAYS)
    fires = ScheduleFire.objects.all()
    without_job = fires.filter(job__isnull=True).order_by("pk")[:DELETE_BATCH_SIZE]
    ids = [pk for pk, fired_at in without_job.values_list("pk", "fired_at") if fired_at < before]
    return fires.filter(pk__in=ids).delete()[0] if ids else 0


@dataclass(frozen=True)
class UpcomingFire:
    """A due time in UTC and in the schedule's zone. `note` says what a clock change on that day does to it."""

    fire_at: datetime
    local: datetime
    note: str | None


class UpcomingFires(NamedTuple):
    """The next fires. Truncated: there are more, later than HORIZON after the first."""

    fires: list[UpcomingFire]
    is_truncated: bool


def preview_schedule(schedule: Schedule, count: int = DEFAULT_COUNT) -> UpcomingFires:
    """Return the next fires; of a disabled schedule, those that it would have if it were enabled now."""
    limit = fields.parse_integer(count, "count", MIN_COUNT, MAX_COUNT)
    if schedule.fires_left is not None:
        limit = min(limit, schedule.fires_left)
    with broken_as_conflict():
        trigger = build_trigger(schedule)
        first = schedule.next_fire_at if schedule.enabled else trigger.next_after(clock.now())
        return _preview(trigger, get_zone(schedule.timezone), first, limit)


def preview_cron(cron: Any, timezone: Any = "UTC", count: int = DEFAULT_COUNT) -> UpcomingFires:
    """Return the next due times of an expression that need not be saved."""
    limit = fields.parse_integer(count, "count", MIN_COUNT, MAX_UNSAVED_COUNT)
    trigger = Cron(validation.parse_cron(cron), get_zone(validation.parse_timezone(timezone)))
    return _preview(trigger, trigger.zone, trigger.next_after(clock.now()), limit)


def _preview(trigger: Trigger, zone: ZoneInfo, first: datetime | None, limit: int) -> UpcomingFires:
    """Return the first due time, and those within HORIZON of it."""
    fires: list[UpcomingFire] = []
    for due in islice(due_times_from(trigger, first), limit):
        if fires and due - fires[0].fire_at > HORIZON:
            return UpcomingFires(fires, is_truncated=True)
        fires.append(UpcomingFire(due, due.astimezone(zone), describe_clock_change(trigger, zone, due)))
    return UpcomingFires(fires, is_truncated=False)
