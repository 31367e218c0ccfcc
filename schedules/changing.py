"""One change of one schedule: its row locked, made what was said, judged as a whole, and set to its next due time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import IntegrityError
from django.db.models import QuerySet
from django.utils.translation import gettext as _

from jobs import db, parsing, submission
from jobs.engine import wakeup
from jobs.errors import NotFound
from jobs.models import JobTemplate
from jobs.presets import NameTaken
from schedules import fields
from schedules.models import Schedule
from schedules.rules import first_due, is_spent, next_due, refusing_nonsense, require_sense, rule

CHANGED = "schedules"  # what schedulers that sleep are told when somebody has changed a schedule


def of(tenant: str | None) -> QuerySet[Schedule]:
    """The schedules of one tenant, or all."""
    found = Schedule.objects.select_related("template")
    return found if tenant is None else found.filter(tenant=tenant)


@contextmanager
def changing(schedule_id: UUID | str, tenant: str | None) -> Iterator[Schedule]:
    """The row, locked: schedulers pass it by, and other changes wait."""
    with refusing_nonsense(), db.atomic():
        schedule = found_in(of(tenant).select_for_update(no_key=True, of=("self",)), schedule_id)
        yield schedule
        save(schedule)


def found_in(schedules: QuerySet[Schedule], schedule_id: UUID | str) -> Schedule:
    try:
        found = schedules.filter(pk=parsing.job_id(schedule_id)).first()
    except NotFound:
        raise absent() from None
    if found is None:
        raise absent()
    return found


def absent() -> NotFound:
    return NotFound(_("There is no such schedule."))


def apply(schedule: Schedule, clean: dict[str, Any], now: datetime) -> None:
    """Make the schedule what was said, and set it to its next due time where that has to change."""
    before, was_enabled = rule(schedule), schedule.enabled
    _assign(schedule, clean)
    if schedule.every_sec is not None and schedule.anchor_at is None:
        schedule.anchor_at = now.replace(microsecond=0)
    require_sense(schedule, now)
    if not schedule.enabled:
        schedule.next_fire_at = None
    elif schedule._state.adding or rule(schedule) != before:
        schedule.next_fire_at = first_due(schedule, now)
    elif not was_enabled:
        switch_on(schedule, now)
    elif is_spent(schedule):
        schedule.next_fire_at = None
    elif schedule.next_fire_at is None:  # it may fire more often now
        schedule.next_fire_at = next_due(schedule, now)


def switch_on(schedule: Schedule, now: datetime) -> None:
    schedule.enabled, schedule.disabled_reason = True, ""
    schedule.next_fire_at = next_due(schedule, now)


def with_rule(schedule: Schedule, clean: dict[str, Any]) -> Schedule:
    """Its rule as it would be, to compare."""
    return Schedule(**{name: clean.get(name, getattr(schedule, name)) for name in fields.RULE})


def _assign(schedule: Schedule, clean: dict[str, Any]) -> None:
    for name, value in clean.items():
        if name == "template":
            schedule.template = None if value is None else _template(value, schedule.tenant)
        else:
            setattr(schedule, name, value)
    if schedule.every_sec is None and "anchor_at" not in clean:
        schedule.anchor_at = None
    if schedule.enabled:
        schedule.disabled_reason = ""


def _template(name: str, tenant: str) -> JobTemplate:
    """Locked, so that it cannot be deleted before we have said that we need it."""
    known = submission.find_template(name, tenant)
    locked = JobTemplate.objects.select_for_update(no_key=True).filter(pk=known.pk).first()
    return locked or submission.find_template(name, tenant)


def save(schedule: Schedule) -> None:
    try:
        with db.atomic():
            schedule.save(using=db.alias())
    except IntegrityError:
        said = {"name": schedule.name, "tenant": schedule.tenant}
        raise NameTaken(_("Tenant %(tenant)s already has a schedule “%(name)s”.") % said) from None
    schedule.refresh_from_db(using=db.alias())
    wakeup.notify(CHANGED)
