"""Schedules as API, console, commands and code handle them: parse at the gate, then one change of one row.

Ids may be UUIDs or their text; `tenant` None is every tenant; `actor` is written to events and logs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import IntegrityError
from django.db.models import QuerySet
from django.utils.translation import gettext as _

from jobs import clock, db, serializers
from jobs.actors import PYTHON, Actor
from jobs.engine import notifications
from jobs.errors import Conflict, InvalidInput, NotFound
from jobs.models import Job, JobTemplate
from jobs.services import job_spec
from jobs.services.jobs import REASON_LENGTH, submit_spec
from jobs.services.templates import NameTaken
from jobs.validation import fields
from schedules import validation
from schedules.fire_plan import build_job
from schedules.firing import settle
from schedules.models import Schedule
from schedules.validation import first_due, next_due, refusing_nonsense, require_sense, rule

logger = logging.getLogger("jobs.schedules")
LET_GO_AT_ONCE = 500


class NothingToSkip(Conflict):
    code = "nothing_to_skip"


def create(values: Mapping[str, Any], *, tenant: str = "default", actor: Actor = PYTHON, source: str = "") -> Schedule:
    """A new schedule. It first fires at its next due time, never at once."""
    if values.get("name") is None:
        raise InvalidInput("name", _("must be said"), "missing")
    clean = validation.clean(values, {})
    with db.atomic():
        schedule = Schedule(tenant=fields.parse_tenant(tenant), source=source)
        apply(schedule, clean, clock.now())
        save(schedule)
    _log(schedule, "made", actor)
    return schedule


def get(schedule_id: UUID | str, *, tenant: str | None = None) -> Schedule:
    return _find(of(tenant), schedule_id)


def get_by_name(name: str, *, tenant: str = "default") -> Schedule:
    """By its name in a tenant; or by its id."""
    found = of(fields.parse_tenant(tenant)).filter(name=name).first()
    return found if found is not None else get(name)


def update(
    schedule_id: UUID | str, changes: Mapping[str, Any], *, tenant: str | None = None, actor: Actor = PYTHON
) -> Schedule:
    """Change what is said; None clears. Jobs that it has made keep what they were given.

    A new rule counts from now on; what came due before is fired by the old one first, and not lost.
    """
    with changing(schedule_id, tenant) as schedule:
        clean, now = validation.clean(changes, schedule.params), clock.now()
        would_be = Schedule(**{name: clean.get(name, getattr(schedule, name)) for name in validation.RULE})
        if rule(schedule) != rule(would_be):
            settle(schedule, now)
            schedule.refresh_from_db(using=db.alias())
        apply(schedule, clean, now)
        schedule.edited = True
    _log(schedule, "changed", actor)
    return schedule


def require_sense_of(values: Mapping[str, Any], *, tenant: str, schedule_id: UUID | None = None) -> None:
    """InvalidInput for what `create` (or `update`, of this schedule) would refuse. Changes nothing."""
    with db.atomic():
        known = Schedule(tenant=fields.parse_tenant(tenant)) if schedule_id is None else get(schedule_id)
        apply(known, validation.clean(values, known.params), clock.now())


def enable(
    schedule_id: UUID | str, *, tenant: str | None = None, reason: str | None = None, actor: Actor = PYTHON
) -> Schedule:
    """It fires again from its next due time on. What came due while it was disabled is not made up for."""
    _reason(reason)
    with changing(schedule_id, tenant) as schedule:
        if not schedule.enabled:
            require_sense(schedule, clock.now())
            switch_on(schedule, clock.now())
    _log(schedule, "enabled", actor)
    return schedule


def disable(
    schedule_id: UUID | str, *, tenant: str | None = None, reason: str | None = None, actor: Actor = PYTHON
) -> Schedule:
    """It fires no more, not even what is due at this moment."""
    why = _reason(reason)
    with changing(schedule_id, tenant) as schedule:
        schedule.disabled_reason = why or (schedule.disabled_reason if not schedule.enabled else "")
        schedule.enabled, schedule.next_fire_at = False, None
    _log(schedule, "disabled", actor)
    return schedule


def skip_next(
    schedule_id: UUID | str, *, tenant: str | None = None, reason: str | None = None, actor: Actor = PYTHON
) -> Schedule:
    """Leave out the next fire; the one after it comes as usual."""
    why = _reason(reason)
    with changing(schedule_id, tenant) as schedule:
        if not schedule.enabled or schedule.next_fire_at is None:
            raise NothingToSkip(_("“%s” has no next fire to skip.") % schedule.name)
        skipped = schedule.next_fire_at
        schedule.next_fire_at = next_due(schedule, skipped)
        schedule.note = f"skipped: the fire of {serializers.moment(skipped)}, by {actor.name or actor.kind}"
        schedule.note += f": {why}" if why else ""
    _log(schedule, "skips a fire", actor)
    return schedule


def trigger(
    schedule_id: UUID | str, *, tenant: str | None = None, reason: str | None = None, actor: Actor = PYTHON
) -> Job:
    """Make its job now, whether or not it is enabled and whatever is running. It counts as no fire."""
    schedule, why = get(schedule_id, tenant=tenant), _reason(reason)
    spec = build_job(schedule, clock.now(), is_fire=False)
    try:
        with db.atomic():
            return submit_spec(spec, actor=actor, reason=why or f"schedule {schedule.name} was triggered").job
    except IntegrityError:  # the foreign key: it was deleted meanwhile
        raise _not_found() from None


def delete(schedule_id: UUID | str, *, tenant: str | None = None, actor: Actor = PYTHON) -> None:
    """With its history of fires. Its jobs stay, and forget it."""
    schedule = disable(schedule_id, tenant=tenant, reason="it is being deleted", actor=actor)
    made = Job.objects.filter(schedule_id=schedule.pk).order_by("pk")
    while ids := list(made.values_list("pk", flat=True)[:LET_GO_AT_ONCE]):  # few at a time: they may be at work
        with db.atomic():
            Job.objects.filter(pk__in=ids).update(schedule=None)
    with db.atomic():
        Schedule.objects.filter(pk=schedule.pk).delete()
    _log(schedule, "deleted", actor)


def _reason(reason: Any) -> str:
    return fields.parse_text(reason, "reason", max_length=REASON_LENGTH, allow_empty=True) if reason is not None else ""


def _log(schedule: Schedule, what: str, actor: Actor) -> None:
    logger.info("schedule %s of tenant %s %s by %s", schedule.name, schedule.tenant, what, actor.name or actor.kind)


CHANGED = "schedules"  # the notification that wakes schedulers after a change of a schedule


def of(tenant: str | None) -> QuerySet[Schedule]:
    """The schedules of one tenant, or all."""
    found = Schedule.objects.select_related("template")
    return found if tenant is None else found.filter(tenant=tenant)


@contextmanager
def changing(schedule_id: UUID | str, tenant: str | None) -> Iterator[Schedule]:
    """The row, locked: schedulers pass it by, and other changes wait."""
    with refusing_nonsense(), db.atomic():
        schedule = _find(of(tenant).select_for_update(no_key=True, of=("self",)), schedule_id)
        yield schedule
        save(schedule)


def _find(schedules: QuerySet[Schedule], schedule_id: UUID | str) -> Schedule:
    found = None
    with suppress(NotFound):  # of an id that is none
        found = schedules.filter(pk=fields.parse_id(schedule_id)).first()
    if found is None:
        raise _not_found()
    return found


def _not_found() -> NotFound:
    return NotFound(_("There is no such schedule."))


def apply(schedule: Schedule, clean: dict[str, Any], now: datetime) -> None:
    """Make the schedule what was said, and set it to its next due time where that has to change."""
    before, was_enabled = rule(schedule), schedule.enabled
    for name, value in clean.items():
        if name == "template":
            schedule.template = None if value is None else _template(value, schedule.tenant)
        else:
            setattr(schedule, name, value)
    if schedule.every_sec is None and "anchor_at" not in clean:
        schedule.anchor_at = None
    if schedule.enabled:
        schedule.disabled_reason = ""
    if schedule.every_sec is not None and schedule.anchor_at is None:
        schedule.anchor_at = now.replace(microsecond=0)
    require_sense(schedule, now)
    if not schedule.enabled:
        schedule.next_fire_at = None
    elif schedule._state.adding or rule(schedule) != before:
        schedule.next_fire_at = first_due(schedule, now)
    elif not was_enabled:
        switch_on(schedule, now)
    elif schedule.fires_left == 0:
        schedule.next_fire_at = None
    elif schedule.next_fire_at is None:  # it may fire more often now
        schedule.next_fire_at = next_due(schedule, now)


def switch_on(schedule: Schedule, now: datetime) -> None:
    schedule.enabled, schedule.disabled_reason = True, ""
    schedule.next_fire_at = next_due(schedule, now)


def _template(name: str, tenant: str) -> JobTemplate:
    """Locked, so that it cannot be deleted before we have said that we need it."""
    known = job_spec.find_template(name, tenant)
    locked = JobTemplate.objects.select_for_update(no_key=True).filter(pk=known.pk).first()
    return locked or job_spec.find_template(name, tenant)


def save(schedule: Schedule) -> None:
    try:
        with db.atomic():
            schedule.save(using=db.alias())
    except IntegrityError:
        names = {"name": schedule.name, "tenant": schedule.tenant}
        raise NameTaken(_("Tenant %(tenant)s already has a schedule “%(name)s”.") % names) from None
    schedule.refresh_from_db(using=db.alias())
    notifications.notify(CHANGED)
