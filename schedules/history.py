"""The past fires of a schedule with the outcome of their jobs, their retention, and the preview of upcoming fires."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

from django.db.models import QuerySet

from jobs import clock
from jobs.conf import conf
from jobs.ids import min_id_at
from jobs.models import Job
from jobs.services.jobs import read_latest_attempts
from jobs.validation import fields
from schedules import validation
from schedules.cron import Cron, get_zone
from schedules.describe import describe_clock_change
from schedules.models import Schedule, ScheduleFire
from schedules.triggers import Trigger, build_trigger, due_times_from
from schedules.validation import broken_as_conflict

DELETE_BATCH_SIZE = 500
JOBS_PER_RUN = 5  # that are read to find manual runs among retries
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
    latest = read_latest_attempts(fire.job_id for fire in rows if fire.job_id is not None)
    return [PastFire(fire, latest.get(fire.job_id) if fire.job_id is not None else None) for fire in rows]


@dataclass(frozen=True)
class PastRun:
    """A scheduled run, or one that was triggered manually: it has no due time."""

    started_at: datetime
    due: datetime | None
    job_id: UUID | None
    note: str
    latest_attempt: Job | None


def list_runs(schedule: Schedule, limit: int) -> list[PastRun]:
    """Return the latest runs of a schedule, scheduled and manual, the newest first."""
    fires = list(fires_of(schedule)[:limit])
    jobs = Job.objects.filter(schedule_id=schedule.pk)
    if len(fires) == limit:  # older manual runs would be cut off below
        jobs = jobs.filter(pk__gte=min_id_at(min(fire.fired_at for fire in fires)))
    recent = jobs.order_by("-pk").values_list("pk", "fire_time", "retry_of_id", "created_at")[: limit * JOBS_PER_RUN]
    manual = [(pk, at) for pk, fire_time, retry_of_id, at in recent if fire_time is None and retry_of_id is None]
    latest = read_latest_attempts([*(fire.job_id for fire in fires if fire.job_id), *(pk for pk, _at in manual)])
    runs = [
        PastRun(fire.fired_at, fire.fire_time, fire.job_id, fire.note, latest.get(fire.job_id) if fire.job_id else None)
        for fire in fires
    ]
    runs += [PastRun(at, None, pk, "", latest.get(pk)) for pk, at in manual]
    return sorted(runs, key=lambda run: run.started_at, reverse=True)[:limit]


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
