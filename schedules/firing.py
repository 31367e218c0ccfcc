"""Fires what is due. Any number of schedulers may do so at once: each due time makes one job.

A batch is one transaction: its schedules are locked (others pass them by), the fire rows are inserted first, only those
that were new make jobs, and each schedule moves on from the due time at which it was seen.
"""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import Q, QuerySet

from jobs import clock, db, parsing, shapes, submission
from jobs.actors import Actor, ActorKind
from jobs.engine import lifecycle
from jobs.engine.connections import MISSING
from jobs.engine.insert import insert_jobs
from jobs.engine.job_spec import JobSpec
from jobs.errors import InvalidInput
from jobs.models import Job
from jobs.models.job import JobQuerySet
from jobs.services import REASON_LENGTH
from jobs.states import TERMINAL
from schedules.cron import CronError
from schedules.models import Overlap, Schedule, ScheduleFire
from schedules.triggers import Choice, choose, trigger_of
from schedules.zones import UnknownZone

logger = logging.getLogger("jobs.schedules.firing")
ACTOR = Actor(ActorKind.SCHEDULER, "schedules")
BATCH = 100
ROUND_SEC = 5.0
REASON = "fired by its schedule"
BROKEN = "broken: "  # how the reason begins when the scheduler itself has disabled a schedule
EXPECTED = (InvalidInput, CronError, UnknownZone)
AT_ONCE = 500
FIRE = ("schedule", "fire_time", "job", "note")
ADVANCE = ("next_fire_at", "last_fire_at", "last_job_id", "fire_count", "note", "id", "next_fire_at")
_INSERT = "INSERT INTO jobscheduler_schedulefire (schedule_id, fire_time, job_id, note)"
_ONCE = "ON CONFLICT (schedule_id, fire_time) DO NOTHING RETURNING job_id"
_ADVANCE = """
    UPDATE jobscheduler_schedule
    SET next_fire_at = %s, last_fire_at = coalesce(%s, last_fire_at), last_job_id = coalesce(%s, last_job_id),
        fire_count = fire_count + %s, note = coalesce(%s, note)
    WHERE id = %s AND enabled AND next_fire_at = %s"""


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
    new = insert_fires(connection, [(fire.schedule.pk, fire.due, fire.job_id, fire.note) for fire in fires])
    made = [fire for fire in fires if fire.job_id in new]
    if made:
        insert_jobs([fire.spec for fire in made], actor=ACTOR, reason=REASON)
    for fire in made:
        if fire.skip:
            lifecycle.skip(fire.job_id, actor=ACTOR, reason=fire.skip)
    for each in plans:
        each.fires = [fire for fire in each.fires if fire.job_id in new]  # the others were fired before
    if plans and advance(connection, [each.advance() for each in plans]) != len(plans):
        raise RuntimeError("a schedule was moved on by somebody else under our lock")
    return len(made)


def _disable(schedule: Schedule, error: Exception) -> None:
    told = f"cron {error}" if isinstance(error, CronError) else str(error) or type(error).__name__
    rows = Schedule.objects.filter(pk=schedule.pk, next_fire_at=schedule.next_fire_at)
    reason = parsing.salvage_text(f"{BROKEN}{told}", REASON_LENGTH)
    rows.update(enabled=False, next_fire_at=None, disabled_reason=reason)


@dataclass
class Fire:
    """One due time of one schedule, and the job that it makes. `skip` says why that one is not to run."""

    schedule: Schedule
    due: datetime
    spec: JobSpec
    note: str = ""
    skip: str = ""

    @property
    def job_id(self) -> UUID:
        return self.spec.id


@dataclass
class Plan:
    schedule: Schedule
    choice: Choice
    fires: list[Fire]

    def advance(self) -> Advance:
        assert self.schedule.next_fire_at is not None
        started = [fire.job_id for fire in self.fires if not fire.skip]
        return Advance(
            next_fire_at=self.choice.next_at,
            last_fire_at=self.fires[-1].due if self.fires else None,
            last_job_id=started[-1] if started else None,
            fires=len(self.fires),
            note=missed(self.schedule, self.choice) or None,
            schedule_id=self.schedule.pk,
            seen=self.schedule.next_fire_at,
        )


def plan(schedule: Schedule, now: datetime) -> Plan:
    """Asks the database nothing. Whatever it raises is wrong with this one row."""
    assert schedule.next_fire_at is not None
    left = None if schedule.max_fires is None else max(schedule.max_fires - schedule.fire_count, 0)
    choice = choose(
        trigger_of(schedule),
        schedule.next_fire_at.astimezone(UTC),
        now,
        catch_up=schedule.catch_up,
        most=schedule.catch_up_max,
        grace_sec=schedule.misfire_grace_sec,
        left=left,
    )
    fires = [Fire(schedule, due, build_job(schedule, due)) for due in choice.fired]
    if fires:
        fires[0].note = missed(schedule, choice)
    return Plan(schedule, choice, fires)


def skip_overlaps(plans: Sequence[Plan]) -> None:
    """Of a schedule whose fires must not overlap only one may be live: its last one, or the first of these."""
    strict = [each for each in plans if each.fires and each.schedule.overlap == Overlap.SKIP]
    last = tails(each.schedule.last_job_id for each in strict if each.schedule.last_job_id) if strict else {}
    for each in strict:
        before = last.get(each.schedule.last_job_id) if each.schedule.last_job_id else None
        busy = None if before is None or before.status in TERMINAL else before
        for fire in each.fires:
            if busy is None:
                busy = Job(id=fire.job_id, status=fire.spec.status)
            else:
                fire.skip = f"overlap: job {busy.pk} of an earlier fire is {busy.status}"
                fire.note = fire.note or fire.skip


def missed(schedule: Schedule, choice: Choice) -> str:
    if choice.missed_since is None:
        return ""
    since = shapes.moment(choice.missed_since)
    until = shapes.moment(choice.fired[0]) if choice.fired else "now"
    return f"missed: due times from {since} until {until} were not fired (catch-up {schedule.catch_up})"


class Advance(NamedTuple):
    """Where a schedule goes from `seen`, the due time that it stood at."""

    next_fire_at: datetime | None
    last_fire_at: datetime | None
    last_job_id: UUID | None
    fires: int
    note: str | None
    schedule_id: UUID
    seen: datetime


def insert_fires(connection: Any, fires: Sequence[tuple[UUID, datetime, UUID, str]]) -> set[UUID]:
    """Insert (schedule, due time, job, note). Returns the jobs of those that nobody had fired before."""
    new: set[UUID] = set()
    with connection.cursor() as cursor:
        for start in range(0, len(fires), AT_ONCE):
            batch = fires[start : start + AT_ONCE]
            places = ", ".join([f"({', '.join(['%s'] * len(FIRE))})"] * len(batch))
            values = [
                _stored(connection, ScheduleFire, *pair) for fire in batch for pair in zip(FIRE, fire, strict=True)
            ]
            cursor.execute(f"{_INSERT} VALUES {places} {_ONCE}", values)
            new |= {UUID(str(job_id)) for (job_id,) in cursor.fetchall()}
    return new


def advance(connection: Any, steps: Iterable[Advance]) -> int:
    """Move each schedule on, unless it no longer stands where it was seen. Returns how many moved."""
    rows = [[_stored(connection, Schedule, *pair) for pair in zip(ADVANCE, step, strict=True)] for step in steps]
    with connection.cursor() as cursor:
        cursor.executemany(_ADVANCE, rows)
        return int(cursor.rowcount)


def _stored(connection: Any, model: Any, name: str, value: Any) -> Any:
    return model._meta.get_field(name).get_db_prep_save(value, connection)


def tails(job_ids: Iterable[UUID]) -> dict[UUID, Job]:
    """Each job's chain by its last job; who is no longer there is left out."""
    found = {job.pk: job for job in _jobs().filter(pk__in=set(job_ids))}
    newest = {job_id: job_id for job_id in found}  # the last job known of a chain, and the one we were asked about
    while newest:
        followers = list(_jobs().filter(retry_of_id__in=list(newest)))
        newest = {job.pk: newest[job.retry_of_id] for job in followers if job.retry_of_id is not None}
        found |= {newest[job.pk]: job for job in followers}
    return found


def _jobs() -> JobQuerySet:
    return Job.objects.only("id", "status", "status_reason", "retry_of_id").order_by()


def build_job(schedule: Schedule, due: datetime, *, is_fire: bool = True) -> JobSpec:
    """Build one new job, or raise InvalidInput. A job that a person triggers has no fire time and no jitter."""
    params = parsing.json_object(schedule.params, "params")
    if schedule.fire_time_param:
        params[schedule.fire_time_param] = shapes.moment(due)
    fields = {
        "tenant": schedule.tenant,
        "priority": schedule.priority,
        "target": schedule.target,
        "resource": schedule.resource or None,
        "not_before": due + jitter(schedule.pk, due, schedule.jitter_sec) if is_fire and schedule.jitter_sec else None,
    }
    return submission.SpecBuilder(
        schedule.job_type or None,
        fields,
        template=schedule.template,
        schedule_id=schedule.pk,
        fire_time=due if is_fire else None,
    ).build(params)


def jitter(schedule_id: UUID, due: datetime, most_sec: int) -> timedelta:
    """From nothing up to `most_sec`, the same whoever fires: neighbours are spread, a due time is not moved."""
    digest = hashlib.sha256(f"{schedule_id} {shapes.moment(due)}".encode()).digest()
    return timedelta(seconds=round(most_sec * int.from_bytes(digest[:6]) / 2**48, 3))
