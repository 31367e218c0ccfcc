"""Create, change and trigger schedules: the functions that the API, the console, the commands and Python code call.

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

from jobs import clock, db, notifications
from jobs.actors import PYTHON, Actor
from jobs.errors import Conflict, InvalidInput, NotFound
from jobs.models import Action, Job, JobTemplate
from jobs.services import activity, job_spec
from jobs.services.jobs import SubmitResult, submit_spec
from jobs.services.templates import NameTaken
from jobs.time_text import format_time
from jobs.validation import fields
from schedules import validation
from schedules.fire_plan import build_event_data, build_spec
from schedules.firing import fire_schedule
from schedules.models import Schedule, ScheduleQuerySet
from schedules.validation import broken_as_conflict, first_due_time, next_due_time, require_valid, rule_of

logger = logging.getLogger("jobs.schedules")
CHANGED = "schedules"  # the notification that wakes schedulers after a change of a schedule
DETACH_BATCH_SIZE = 500


class NothingToSkip(Conflict):
    code = "nothing_to_skip"


def create(values: Mapping[str, Any], *, tenant: str = "default", actor: Actor = PYTHON, source: str = "") -> Schedule:
    """Create a schedule. It first fires at its next due time, never at once."""
    if values.get("name") is None:
        raise InvalidInput("name", _("is required"), "missing")
    cleaned = validation.clean_fields(values, {})
    with db.atomic():
        schedule = Schedule(tenant=fields.parse_tenant(tenant), source=source)
        _apply(schedule, cleaned, clock.now())
        _save(schedule)
        activity.record(Action.SCHEDULE_CREATE, _to_object(schedule), actor=actor, after=_build_fields(schedule))
    _log_change(schedule, "created", actor)
    return schedule


def of(tenant: str | None) -> ScheduleQuerySet:
    """Return the schedules of one tenant, or of all."""
    schedules: ScheduleQuerySet = Schedule.objects.select_related("template")
    return schedules if tenant is None else schedules.filter(tenant=tenant)


def get(schedule_id: UUID | str, *, tenant: str | None = None) -> Schedule:
    return _find(of(tenant), schedule_id)


def get_by_name(name: str, *, tenant: str = "default") -> Schedule:
    """Return a schedule by its name in a tenant, or by its id."""
    schedule = of(fields.parse_tenant(tenant)).filter(name=name).first()
    return schedule if schedule is not None else get(name)


def update(
    schedule_id: UUID | str, changes: Mapping[str, Any], *, tenant: str | None = None, actor: Actor = PYTHON
) -> Schedule:
    """Change the given fields; None resets one. Jobs that were inserted before keep their values.

    A new rule counts from now on; what came due before is fired by the old one first.
    """
    with _edit_locked(schedule_id, tenant) as schedule:
        before = _build_fields(schedule)
        cleaned, now = validation.clean_fields(changes, validation.get_known_params(schedule, changes)), clock.now()
        changed = Schedule(**{name: cleaned.get(name, getattr(schedule, name)) for name in validation.RULE_FIELDS})
        if rule_of(schedule) != rule_of(changed):
            fire_schedule(schedule, now)
            schedule.refresh_from_db(using=db.alias())
        _apply(schedule, cleaned, now)
        schedule.edited = True
        after = _build_fields(schedule)
        activity.record_changes(Action.SCHEDULE_UPDATE, _to_object(schedule), before, after, actor=actor)
    _log_change(schedule, "changed", actor)
    return schedule


def require_valid_fields(values: Mapping[str, Any], *, tenant: str, schedule_id: UUID | None = None) -> None:
    """Raise InvalidInput for fields that `create` (or `update` of this schedule) would refuse. Change nothing."""
    with db.atomic():
        schedule = Schedule(tenant=fields.parse_tenant(tenant)) if schedule_id is None else get(schedule_id)
        known_params = validation.get_known_params(schedule, values)
        _apply(schedule, validation.clean_fields(values, known_params), clock.now())


def enable(
    schedule_id: UUID | str, *, tenant: str | None = None, reason: str | None = None, actor: Actor = PYTHON
) -> Schedule:
    """Fire again from the next due time on. What came due while it was disabled is not fired."""
    reason_text = fields.parse_reason(reason)
    with _edit_locked(schedule_id, tenant) as schedule:
        if not schedule.enabled:
            require_valid(schedule, clock.now())
            _mark_enabled(schedule, clock.now())
            before, after = {"enabled": False}, {"enabled": True}
            changed = _to_object(schedule)
            activity.record(
                Action.SCHEDULE_ENABLE, changed, actor=actor, before=before, after=after, reason=reason_text
            )
    _log_change(schedule, "enabled", actor)
    return schedule


def disable(
    schedule_id: UUID | str, *, tenant: str | None = None, reason: str | None = None, actor: Actor = PYTHON
) -> Schedule:
    """Fire no more, not even what is due at this moment."""
    reason_text = fields.parse_reason(reason)
    with _edit_locked(schedule_id, tenant) as schedule:
        name = "enabled" if schedule.enabled else "disabled_reason"  # of a disabled one the reason may change
        before = {name: getattr(schedule, name)}
        schedule.disabled_reason = reason_text or (schedule.disabled_reason if not schedule.enabled else "")
        schedule.enabled, schedule.next_fire_at = False, None
        changed, after = _to_object(schedule), {name: getattr(schedule, name)}
        activity.record_changes(Action.SCHEDULE_DISABLE, changed, before, after, actor=actor, reason=reason_text)
    _log_change(schedule, "disabled", actor)
    return schedule


def skip_next(
    schedule_id: UUID | str, *, tenant: str | None = None, reason: str | None = None, actor: Actor = PYTHON
) -> Schedule:
    """Leave out the next fire; the one after it comes as usual."""
    reason_text = fields.parse_reason(reason)
    with _edit_locked(schedule_id, tenant) as schedule:
        if not schedule.enabled or schedule.next_fire_at is None:
            raise NothingToSkip(_("“%s” has no next run to skip.") % schedule.name)
        skipped = schedule.next_fire_at
        schedule.next_fire_at = next_due_time(schedule, skipped)
        schedule.note = f"skipped: the run of {format_time(skipped)}, by {actor}"
        schedule.note += f": {reason_text}" if reason_text else ""
        before, after = {"next_fire_at": skipped}, {"next_fire_at": schedule.next_fire_at}
        changed = _to_object(schedule)
        activity.record(Action.SCHEDULE_SKIP_NEXT, changed, actor=actor, before=before, after=after, reason=reason_text)
    _log_change(schedule, "next run skipped", actor)
    return schedule


def trigger(
    schedule_id: UUID | str, *, tenant: str | None = None, reason: str | None = None, actor: Actor = PYTHON
) -> Job:
    """Submit its job now, also while it is disabled or its last job runs. It does not count as a fire."""
    return submit_trigger(schedule_id, tenant=tenant, reason=reason, actor=actor).job


def submit_trigger(
    schedule_id: UUID | str, *, tenant: str | None = None, reason: str | None = None, actor: Actor = PYTHON
) -> SubmitResult:
    """Trigger as `trigger` does. Return the job, and whether it was created now: its unique key may be taken."""
    schedule, reason_text = get(schedule_id, tenant=tenant), fields.parse_reason(reason)
    spec = build_spec(schedule, clock.now(), is_fire=False)
    try:
        with db.atomic():
            job_reason = reason_text or f"schedule {schedule.name} triggered"
            event_data = {spec.id: build_event_data(schedule)}
            result = submit_spec(spec, actor=actor, reason=job_reason, event_data=event_data)
            changed, after = _to_object(schedule), {"job_id": result.job.pk}
            activity.record(Action.SCHEDULE_TRIGGER, changed, actor=actor, after=after, reason=reason_text)
            return result
    except IntegrityError:  # the foreign key: it was deleted meanwhile
        raise NotFound(_("There is no such schedule.")) from None


def delete(schedule_id: UUID | str, *, tenant: str | None = None, actor: Actor = PYTHON) -> None:
    """Delete a schedule with its history of fires. Its jobs stay, without a reference to it."""
    with _edit_locked(schedule_id, tenant) as schedule:  # it fires no more while its jobs are detached
        activity.record(Action.SCHEDULE_DELETE, _to_object(schedule), actor=actor, before=_build_fields(schedule))
        schedule.enabled, schedule.next_fire_at, schedule.disabled_reason = False, None, "it is being deleted"
    jobs = Job.objects.filter(schedule_id=schedule.pk).order_by("pk")
    while ids := list(jobs.values_list("pk", flat=True)[:DETACH_BATCH_SIZE]):  # small: running jobs need these rows
        with db.atomic():
            Job.objects.filter(pk__in=ids).update(schedule=None)
    with db.atomic():
        Schedule.objects.filter(pk=schedule.pk).delete()
    _log_change(schedule, "deleted", actor)


def _log_change(schedule: Schedule, change: str, actor: Actor) -> None:
    logger.info("schedule %s (tenant %s): %s by %s", schedule.name, schedule.tenant, change, actor)


def _to_object(schedule: Schedule) -> activity.ChangedObject:
    return activity.ChangedObject(schedule.pk, schedule.name, schedule.tenant)


def _build_fields(schedule: Schedule) -> dict[str, Any]:
    """Return the fields that an activity records."""
    values = {name: getattr(schedule, name) for name in validation.VALIDATORS}
    return {**values, "template": None if schedule.template is None else schedule.template.name}


@contextmanager
def _edit_locked(schedule_id: UUID | str, tenant: str | None) -> Iterator[Schedule]:
    """Lock a row, yield it to be changed, and save it. Schedulers skip a locked row, other changes wait."""
    with broken_as_conflict(), db.atomic():
        schedule = _find(of(tenant).select_for_update(no_key=True, of=("self",)), schedule_id)
        yield schedule
        _save(schedule)


def _find(schedules: QuerySet[Schedule], schedule_id: UUID | str) -> Schedule:
    schedule = None
    with suppress(NotFound):  # raised for a text that is no UUID
        schedule = schedules.filter(pk=fields.parse_id(schedule_id)).first()
    if schedule is None:
        raise NotFound(_("There is no such schedule."))
    return schedule


def _apply(schedule: Schedule, cleaned: dict[str, Any], now: datetime) -> None:
    """Set the fields of a schedule, and its next due time where that changes; raise InvalidInput."""
    rule_before, was_enabled = rule_of(schedule), schedule.enabled
    for name, value in cleaned.items():
        if name == "template":
            schedule.template = None if value is None else _lock_template(value, schedule.tenant)
        else:
            setattr(schedule, name, value)
    if schedule.every_sec is None and "anchor_at" not in cleaned:
        schedule.anchor_at = None
    if schedule.enabled:
        schedule.disabled_reason = ""
    if schedule.every_sec is not None and schedule.anchor_at is None:
        schedule.anchor_at = now.replace(microsecond=0)
    require_valid(schedule, now)
    if not schedule.enabled:
        schedule.next_fire_at = None
    elif schedule._state.adding or rule_of(schedule) != rule_before:
        schedule.next_fire_at = first_due_time(schedule, now)
    elif not was_enabled:
        _mark_enabled(schedule, now)
    elif schedule.fires_left == 0:
        schedule.next_fire_at = None
    elif schedule.next_fire_at is None:  # max_fires was raised
        schedule.next_fire_at = next_due_time(schedule, now)


def _mark_enabled(schedule: Schedule, now: datetime) -> None:
    schedule.enabled, schedule.disabled_reason = True, ""
    schedule.next_fire_at = next_due_time(schedule, now)


def _lock_template(name: str, tenant: str) -> JobTemplate:
    """Return a template, locked: it cannot be deleted before the schedule that refers to it is written."""
    template = job_spec.find_template(name, tenant)
    locked = JobTemplate.objects.select_for_update(no_key=True).filter(pk=template.pk).first()
    return locked or job_spec.find_template(name, tenant)


def _save(schedule: Schedule) -> None:
    """Write a row and wake the schedulers; raise NameTaken."""
    try:
        with db.atomic():
            schedule.save(using=db.alias())
    except IntegrityError:
        names = {"name": schedule.name, "tenant": schedule.tenant}
        raise NameTaken(_("Tenant %(tenant)s already has a schedule “%(name)s”.") % names) from None
    schedule.refresh_from_db(using=db.alias())
    notifications.notify(CHANGED)
