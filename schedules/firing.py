"""Fire what is due. Any number of schedulers may do so at once: each due time makes one job.

A batch is one transaction: its schedules are locked (others pass them by), the fire rows are inserted first, only those
that were new make jobs, and each schedule moves on from the due time at which it was seen.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet

from jobs import clock, db
from jobs.actors import Actor, ActorKind
from jobs.engine import lifecycle
from jobs.engine.database import MISSING
from jobs.engine.insert import insert_jobs
from jobs.errors import InvalidInput
from jobs.services.jobs import REASON_LENGTH
from jobs.validation.sanitize import sanitize_text
from schedules.cron import CronError, UnknownZone
from schedules.fire_plan import Fire, Plan, plan_fires, skip_overlaps
from schedules.models import Schedule, ScheduleFire

logger = logging.getLogger("jobs.schedules.firing")
ACTOR = Actor(ActorKind.SCHEDULER, "schedules")
BATCH = 100
ROUND_SEC = 5.0
REASON = "fired by its schedule"
BROKEN = "broken: "  # how the reason begins when the scheduler itself has disabled a schedule
EXPECTED = (InvalidInput, CronError, UnknownZone)
FIRES_AT_ONCE = 500  # SQLite takes 32,766 values at once
_INSERT_FIRES = """
    INSERT INTO jobscheduler_schedulefire (schedule_id, fire_time, job_id, note) VALUES {rows}
    ON CONFLICT (schedule_id, fire_time) DO NOTHING RETURNING job_id"""
_ADVANCE = """
    UPDATE jobscheduler_schedule
    SET next_fire_at = %s, last_fire_at = coalesce(%s, last_fire_at), last_job_id = coalesce(%s, last_job_id),
        fire_count = fire_count + %s, note = coalesce(%s, note)
    WHERE id = %s AND enabled AND next_fire_at = %s"""


def fire_due(now: datetime | None = None) -> int:
    """Fire all that is due, for a few seconds at most. Returns how many jobs were made."""
    moment, end, made = now or clock.now(), time.monotonic() + ROUND_SEC, 0
    for ids in _batches(moment):
        made += _fire(ids, moment)
        if time.monotonic() > end:
            break
    return made


def settle(schedule: Schedule, now: datetime) -> None:
    """Fire what this schedule, whose row is locked, owes by now, before another rule takes its place."""
    if not schedule.enabled or schedule.next_fire_at is None or schedule.next_fire_at > now:
        return
    try:
        plan = plan_fires(schedule, now)
    except EXPECTED as error:
        logger.warning("schedule %s owed fires that cannot be made: %s", schedule.name, error)
        return
    _write([plan])


def _batches(now: datetime) -> Iterator[list[UUID]]:
    """Due schedules in their order, each once: one that cannot be fired does not stand in the way of the others."""
    beyond = Q()
    while found := list(_due(now).filter(beyond).values_list("next_fire_at", "pk")[:BATCH]):
        yield [pk for _at, pk in found]
        at, last = found[-1]
        beyond = Q(next_fire_at__gt=at) | Q(next_fire_at=at, pk__gt=last)


def _fire(ids: Sequence[UUID], now: datetime) -> int:
    """Fire these schedules in one transaction, or each in its own if that fails."""
    try:
        with db.atomic():
            due = _due(now).filter(pk__in=ids).select_related("template")
            locked = due.select_for_update(skip_locked=True, no_key=True, of=("self",))
            plans = [_plan_or_disable(schedule, now) for schedule in locked]
            return _write([plan for plan in plans if plan is not None])
    except MISSING:
        raise
    except Exception:
        if len(ids) == 1:
            logger.exception("schedule %s could not be fired; it is tried again", ids[0])
            return 0
        logger.exception("a batch of %d schedules could not be fired together; trying one by one", len(ids))
    return sum(_fire([schedule_id], now) for schedule_id in ids)


def _due(now: datetime) -> QuerySet[Schedule]:
    return Schedule.objects.filter(enabled=True, next_fire_at__lte=now).order_by("next_fire_at", "pk")


def _plan_or_disable(schedule: Schedule, now: datetime) -> Plan | None:
    """Disable a schedule whose row makes no sense, whatever is wrong with it: the others go on."""
    try:
        return plan_fires(schedule, now)
    except Exception as error:
        is_expected = isinstance(error, EXPECTED)
        message = "schedule %s (%s) is broken and was disabled: %s"
        logger.error(message, schedule.name, schedule.pk, error, exc_info=not is_expected)
        text = f"cron {error}" if isinstance(error, CronError) else str(error) or type(error).__name__
        rows = Schedule.objects.filter(pk=schedule.pk, next_fire_at=schedule.next_fire_at)
        reason = sanitize_text(f"{BROKEN}{text}", REASON_LENGTH)
        rows.update(enabled=False, next_fire_at=None, disabled_reason=reason)
        return None


def _write(plans: Sequence[Plan]) -> int:
    """Write fires, jobs and next due times, inside the transaction that holds the schedules. Returns how many jobs."""
    skip_overlaps(plans)
    fires = sorted((fire for plan in plans for fire in plan.fires), key=lambda fire: (fire.due, fire.schedule.pk))
    new = insert_fires(fires)
    made = [fire for fire in fires if fire.spec.id in new]
    if made:
        insert_jobs([fire.spec for fire in made], actor=ACTOR, reason=REASON)
    for fire in made:
        if fire.skip:
            lifecycle.skip(fire.spec.id, actor=ACTOR, reason=fire.skip)
    for plan in plans:
        plan.fires = [fire for fire in plan.fires if fire.spec.id in new]  # the others were fired before
    if plans and advance(plans) != len(plans):
        raise RuntimeError("a schedule was moved on under the lock of this transaction")
    return len(made)


def insert_fires(fires: Sequence[Fire]) -> set[UUID]:
    """Insert fires. Returns the job ids of those whose due times had not been fired before."""
    columns: Any = ScheduleFire._meta
    connection, inserted = db.connection(), set()
    with connection.cursor() as cursor:
        for start in range(0, len(fires), FIRES_AT_ONCE):
            chunk = fires[start : start + FIRES_AT_ONCE]
            values = [
                columns.get_field(name).get_db_prep_save(value, connection)
                for fire in chunk
                for name, value in (
                    ("schedule", fire.schedule.pk),
                    ("fire_time", fire.due),
                    ("job", fire.spec.id),
                    ("note", fire.note),
                )
            ]
            cursor.execute(_INSERT_FIRES.format(rows=", ".join(["(%s, %s, %s, %s)"] * len(chunk))), values)
            inserted |= {UUID(str(job_id)) for (job_id,) in cursor.fetchall()}
    return inserted


def advance(plans: Sequence[Plan]) -> int:
    """Move each schedule on, unless it no longer stands where it was seen. Returns how many moved."""
    columns: Any = Schedule._meta
    connection, rows = db.connection(), []
    for plan in plans:
        started = [fire.spec.id for fire in plan.fires if not fire.skip]
        fields = [  # in the order of `_ADVANCE`
            ("next_fire_at", plan.next_at),
            ("last_fire_at", plan.fires[-1].due if plan.fires else None),
            ("last_job_id", started[-1] if started else None),
            ("fire_count", len(plan.fires)),
            ("note", plan.missed or None),
            ("id", plan.schedule.pk),
            ("next_fire_at", plan.schedule.next_fire_at),
        ]
        rows.append([columns.get_field(name).get_db_prep_save(value, connection) for name, value in fields])
    with connection.cursor() as cursor:
        cursor.executemany(_ADVANCE, rows)
        return int(cursor.rowcount)
