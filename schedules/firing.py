"""Fire due schedules. Any number of schedulers may run at once: each due time inserts one job.

A batch is one transaction: its schedules are locked (other schedulers skip them), the fire rows are inserted first, a
job is inserted for each fire row that is new, and each schedule advances from the due time that was read.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from datetime import datetime
from itertools import takewhile
from typing import Any
from uuid import UUID

from django.db.models import Q, QuerySet

from jobs import clock, db
from jobs.actors import Actor, ActorKind
from jobs.errors import InvalidInput
from jobs.outages import OUTAGE_ERRORS
from jobs.services import jobs as job_services
from jobs.services.job_spec import JobSpec
from jobs.validation.sanitize import sanitize_text
from schedules.cron import CronError, UnknownZone
from schedules.fire_plan import FirePlan, PlannedFire, build_event_data, plan_fires, skip_overlaps
from schedules.models import Schedule, ScheduleFire

logger = logging.getLogger("jobs.schedules.firing")
ACTOR = Actor(ActorKind.SCHEDULER, "schedules")
BATCH_SIZE = 100  # schedules in one transaction
INSERT_BATCH_SIZE = 500  # fires in one statement: SQLite takes 32,766 values
ROUND_SEC = 5.0
FIRED_REASON = "scheduled run"
BROKEN_PREFIX = "broken: "  # of the reason with which the scheduler itself disables a schedule
INVALID_SCHEDULE_ERRORS = (InvalidInput, CronError, UnknownZone)
_INSERT_FIRES = """
    INSERT INTO jobscheduler_schedulefire (schedule_id, fire_time, job_id, note) VALUES {rows}
    ON CONFLICT (schedule_id, fire_time) DO NOTHING RETURNING job_id"""
_ADVANCE = """
    UPDATE jobscheduler_schedule
    SET next_fire_at = %s, last_fire_at = coalesce(%s, last_fire_at), last_job_id = coalesce(%s, last_job_id),
        fire_count = fire_count + %s, skips_in_a_row = %s, note = coalesce(%s, note),
        missed_at = coalesce(%s, missed_at)
    WHERE id = %s AND enabled AND next_fire_at = %s"""


def fire_due(now: datetime | None = None) -> int:
    """Fire due schedules, each once, for ROUND_SEC at most. Return the number of jobs inserted."""
    moment, deadline, job_count = now or clock.now(), time.monotonic() + ROUND_SEC, 0
    after_last = Q()  # one that cannot be fired stays due, and must not block the others
    while rows := list(_due_schedules(moment).filter(after_last).values_list("next_fire_at", "pk")[:BATCH_SIZE]):
        job_count += _fire_batch([pk for _next_fire_at, pk in rows], moment)
        if time.monotonic() > deadline:
            break
        next_fire_at, last_pk = rows[-1]
        after_last = Q(next_fire_at__gt=next_fire_at) | Q(next_fire_at=next_fire_at, pk__gt=last_pk)
    return job_count


def fire_schedule(schedule: Schedule, now: datetime) -> None:
    """Fire what is due of one schedule whose row the caller has locked: its rule is about to change."""
    if not schedule.enabled or schedule.next_fire_at is None or schedule.next_fire_at > now:
        return
    try:
        plan = plan_fires(schedule, now)
    except INVALID_SCHEDULE_ERRORS as error:
        logger.warning("schedule %s cannot be fired before its change: %s", schedule.name, error)
        return
    _write_plans([plan])


def _fire_batch(schedule_ids: Sequence[UUID], now: datetime) -> int:
    """Fire these schedules in one transaction, or each in its own if that fails. Return the number of jobs."""
    try:
        with db.atomic():
            due = _due_schedules(now).filter(pk__in=schedule_ids).select_related("template")
            locked = due.select_for_update(skip_locked=True, no_key=True, of=("self",))
            plans = [_plan_or_disable(schedule, now) for schedule in locked]
            return _write_plans([plan for plan in plans if plan is not None])
    except OUTAGE_ERRORS:
        raise
    except Exception:
        if len(schedule_ids) == 1:
            logger.exception("schedule %s could not be fired; the next round tries again", schedule_ids[0])
            return 0
        logger.exception("a batch of %d schedules could not be fired; firing one by one", len(schedule_ids))
    return sum(_fire_batch([schedule_id], now) for schedule_id in schedule_ids)


def _due_schedules(now: datetime) -> QuerySet[Schedule]:
    return Schedule.objects.filter(enabled=True, next_fire_at__lte=now).order_by("next_fire_at", "pk")


def _plan_or_disable(schedule: Schedule, now: datetime) -> FirePlan | None:
    """Return the plan of a schedule. Disable a schedule that raises any error, so that the others are fired."""
    try:
        return plan_fires(schedule, now)
    except Exception as error:
        is_expected = isinstance(error, INVALID_SCHEDULE_ERRORS)
        message = "schedule %s (%s) is invalid and was disabled: %s"
        logger.error(message, schedule.name, schedule.pk, error, exc_info=not is_expected)
        text = f"cron {error}" if isinstance(error, CronError) else str(error) or type(error).__name__
        rows = Schedule.objects.filter(pk=schedule.pk, next_fire_at=schedule.next_fire_at)
        reason = sanitize_text(f"{BROKEN_PREFIX}{text}", job_services.REASON_LENGTH)
        rows.update(enabled=False, next_fire_at=None, disabled_reason=reason)
        return None


def _write_plans(plans: Sequence[FirePlan]) -> int:
    """Write fires, jobs and next due times in the transaction that holds the schedules. Return the number of jobs."""
    skip_overlaps(plans)
    fires = sorted((fire for plan in plans for fire in plan.fires), key=lambda fire: (fire.due, fire.schedule.pk))
    new_job_ids = insert_fires(fires)
    new_fires = [fire for fire in fires if fire.spec.id in new_job_ids]
    if new_fires:
        event_data = {fire.spec.id: build_event_data(fire.schedule) for fire in new_fires}
        _insert_jobs(new_fires, event_data)
    for fire in new_fires:
        if fire.skip:
            job_services.skip(fire.spec.id, actor=ACTOR, reason=fire.skip)
    for plan in plans:
        plan.fires = [fire for fire in plan.fires if fire.spec.id in new_job_ids]  # the others were fired before
    if plans and advance_schedules(plans) != len(plans):
        raise RuntimeError("a schedule advanced although this transaction holds its lock")
    return len(new_fires)


def _insert_jobs(fires: Sequence[PlannedFire], event_data: dict[UUID, Any]) -> None:
    """Insert the jobs of new fires. One whose unique key is taken is inserted without it, to be skipped."""
    for fire in fires:
        if fire.skip:
            _drop_unique_key(fire.spec)
    options: Any = {"actor": ACTOR, "reason": FIRED_REASON, "event_data": event_data}
    inserted = set(job_services.insert_specs([fire.spec for fire in fires], **options))
    if rejected := [fire for fire in fires if fire.spec.id not in inserted]:
        for fire in rejected:
            fire.skip = f"another job has the unique key {fire.spec.unique_key}"
            fire.note = fire.note or fire.skip
            ScheduleFire.objects.filter(job_id=fire.spec.id).update(note=fire.note)
            _drop_unique_key(fire.spec)
        job_services.insert_specs([fire.spec for fire in rejected], **options)


def _drop_unique_key(spec: JobSpec) -> None:
    spec.unique_key = spec.unique_until = None


def insert_fires(fires: Sequence[PlannedFire]) -> set[UUID]:
    """Insert fires. Return the job ids of those whose due times had not been fired before."""
    columns: Any = ScheduleFire._meta
    connection, new_job_ids = db.connection(), set()
    with connection.cursor() as cursor:
        for start in range(0, len(fires), INSERT_BATCH_SIZE):
            batch = fires[start : start + INSERT_BATCH_SIZE]
            values = [
                columns.get_field(name).get_db_prep_save(value, connection)
                for fire in batch
                for name, value in (
                    ("schedule", fire.schedule.pk),
                    ("fire_time", fire.due),
                    ("job", fire.spec.id),
                    ("note", fire.note),
                )
            ]
            cursor.execute(_INSERT_FIRES.format(rows=", ".join(["(%s, %s, %s, %s)"] * len(batch))), values)
            new_job_ids |= {UUID(str(job_id)) for (job_id,) in cursor.fetchall()}
    return new_job_ids


def _count_skips(plan: FirePlan) -> int:
    """Return how many of the latest fires in a row were skipped."""
    latest = list(takewhile(lambda fire: fire.skip, reversed(plan.fires)))
    return len(latest) + (plan.schedule.skips_in_a_row if len(latest) == len(plan.fires) else 0)


def advance_schedules(plans: Sequence[FirePlan]) -> int:
    """Set each schedule to its next due time, unless its due time has changed. Return the number of rows changed."""
    columns: Any = Schedule._meta
    connection, rows = db.connection(), []
    for plan in plans:
        started = [fire.spec.id for fire in plan.fires if not fire.skip]
        fields = [  # in the order of `_ADVANCE`
            ("next_fire_at", plan.next_at),
            ("last_fire_at", plan.fires[-1].due if plan.fires else None),
            ("last_job_id", started[-1] if started else None),
            ("fire_count", len(plan.fires)),
            ("skips_in_a_row", _count_skips(plan)),
            ("note", plan.missed or None),
            ("missed_at", plan.missed_at),
            ("id", plan.schedule.pk),
            ("next_fire_at", plan.schedule.next_fire_at),
        ]
        rows.append([columns.get_field(name).get_db_prep_save(value, connection) for name, value in fields])
    with connection.cursor() as cursor:
        cursor.executemany(_ADVANCE, rows)
        return int(cursor.rowcount)
