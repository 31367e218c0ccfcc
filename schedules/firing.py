"""Fires what is due. Any number of schedulers may do so at once: each due time makes one job.

A batch is one transaction: its schedules are locked (others pass them by), the fire rows are inserted first, only those
that were new make jobs, and each schedule moves on from the due time at which it was seen.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from uuid import UUID

from django.db.models import Q, QuerySet

from jobs import clock, db, parsing
from jobs.engine import lifecycle
from jobs.engine.connections import MISSING
from jobs.engine.insert import insert_jobs
from jobs.errors import InvalidInput
from jobs.services import REASON_LENGTH
from schedules import sql
from schedules.cron import CronError
from schedules.making import ACTOR
from schedules.models import Schedule
from schedules.planning import Plan, plan, skip_overlaps
from schedules.zones import UnknownZone

logger = logging.getLogger("jobs.schedules.firing")
BATCH = 100
ROUND_SEC = 5.0
REASON = "fired by its schedule"
BROKEN = "broken: "  # how the reason begins when the scheduler itself has disabled a schedule
EXPECTED = (InvalidInput, CronError, UnknownZone)


def fire_due(now: datetime | None = None) -> int:
    """Fire all that is due, for a few seconds at most. Returns how many jobs were made."""
    moment, end, made = now or clock.now(), time.monotonic() + ROUND_SEC, 0
    for ids in _batches(moment):
        made += _fire_together(ids, moment)
        if time.monotonic() > end:
            break
    return made


def settle(schedule: Schedule, now: datetime) -> None:
    """Fire what this schedule, whose row is locked, owes by now, before another rule takes its place."""
    if not schedule.enabled or schedule.next_fire_at is None or schedule.next_fire_at > now:
        return
    try:
        owed = plan(schedule, now)
    except EXPECTED as error:
        logger.warning("schedule %s owed fires that cannot be made: %s", schedule.name, error)
        return
    _write([owed])


def _batches(now: datetime) -> Iterator[list[UUID]]:
    """Due schedules in their order, each once: one that cannot be fired does not stand in the way of the others."""
    beyond = Q()
    while found := list(_due(now).filter(beyond).values_list("next_fire_at", "pk")[:BATCH]):
        yield [pk for _at, pk in found]
        at, last = found[-1]
        beyond = Q(next_fire_at__gt=at) | Q(next_fire_at=at, pk__gt=last)


def _fire_together(ids: Sequence[UUID], now: datetime) -> int:
    try:
        return _fire(ids, now)
    except MISSING:
        raise
    except Exception:
        logger.exception("a batch of %d schedules could not be fired together; trying one by one", len(ids))
    return sum(_fire_alone(schedule_id, now) for schedule_id in ids)


def _fire_alone(schedule_id: UUID, now: datetime) -> int:
    try:
        return _fire([schedule_id], now)
    except MISSING:
        raise
    except Exception:
        logger.exception("schedule %s could not be fired; it is tried again", schedule_id)
        return 0


def _fire(ids: Sequence[UUID], now: datetime) -> int:
    with db.atomic():
        due = _due(now).filter(pk__in=ids).select_related("template")
        locked = list(due.select_for_update(skip_locked=True, no_key=True, of=("self",)))
        plans = [_planned(schedule, now) for schedule in locked]
        return _write([each for each in plans if each is not None])


def _due(now: datetime) -> QuerySet[Schedule]:
    return Schedule.objects.filter(enabled=True, next_fire_at__lte=now).order_by("next_fire_at", "pk")


def _planned(schedule: Schedule, now: datetime) -> Plan | None:
    """None, and the schedule disabled, if its row makes no sense: whatever is wrong with it, the others go on."""
    try:
        return plan(schedule, now)
    except EXPECTED as error:
        logger.error("schedule %s (%s) is broken and was disabled: %s", schedule.name, schedule.pk, error)
        _disable(schedule, error)
    except Exception as error:
        logger.exception("schedule %s (%s) is broken and was disabled", schedule.name, schedule.pk)
        _disable(schedule, error)
    return None


def _write(plans: Sequence[Plan]) -> int:
    """Everything that the plans say, inside the transaction that holds their schedules."""
    connection = db.connection()
    skip_overlaps(plans)
    fires = sorted((fire for each in plans for fire in each.fires), key=lambda fire: (fire.due, fire.schedule.pk))
    new = sql.insert_fires(connection, [(fire.schedule.pk, fire.due, fire.job_id, fire.note) for fire in fires])
    made = [fire for fire in fires if fire.job_id in new]
    if made:
        insert_jobs([fire.spec for fire in made], actor=ACTOR, reason=REASON)
    for fire in made:
        if fire.skip:
            lifecycle.skip(fire.job_id, actor=ACTOR, reason=fire.skip)
    for each in plans:
        each.keep(new)
    if plans and sql.advance(connection, [each.advance() for each in plans]) != len(plans):
        raise RuntimeError("a schedule was moved on by somebody else under our lock")
    return len(made)


def _disable(schedule: Schedule, error: Exception) -> None:
    told = f"cron {error}" if isinstance(error, CronError) else str(error) or type(error).__name__
    rows = Schedule.objects.filter(pk=schedule.pk, next_fire_at=schedule.next_fire_at)
    reason = parsing.salvage_text(f"{BROKEN}{told}", REASON_LENGTH)
    rows.update(enabled=False, next_fire_at=None, disabled_reason=reason)
