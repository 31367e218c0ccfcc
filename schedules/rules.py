"""Whether a schedule as a whole makes sense, and which due time it waits for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from django.utils.translation import gettext as _

from jobs.errors import Conflict, InvalidInput
from schedules.catchup import BUSY
from schedules.cron import CronError
from schedules.making import build_job
from schedules.models import Schedule
from schedules.triggers import Once, trigger_of
from schedules.zones import UnknownZone


class Broken(Conflict):
    """Its row makes no sense, which only something other than these services can have brought about."""

    code = "broken"


@contextmanager
def refusing_nonsense() -> Iterator[None]:
    try:
        yield
    except (CronError, UnknownZone) as error:
        raise Broken(_("This schedule is broken: %s") % error) from None


def rule(schedule: Schedule) -> tuple[Any, ...]:
    """What decides when it is due. Its zone counts only for cron: seconds and moments are the same everywhere."""
    zone = schedule.timezone if schedule.cron is not None else None
    return (schedule.cron, zone, schedule.every_sec, schedule.anchor_at, schedule.run_at)


def require_sense(schedule: Schedule, now: datetime) -> None:
    """InvalidInput unless it has one rule and could make its job."""
    said = [name for name in ("cron", "every_sec", "run_at") if getattr(schedule, name) is not None]
    if len(said) != 1:
        raise InvalidInput(said[-1] if said else "cron", _("say exactly one of cron, every_sec and run_at"), "one_rule")
    if schedule.anchor_at is not None and schedule.every_sec is None:
        raise InvalidInput("anchor_at", _("is only for every_sec"))
    if (schedule.template is None) == (schedule.job_type == ""):
        raise InvalidInput("job_type", _("say either a job type or a template"), "missing")
    try:
        trigger_of(schedule).after(now)
    except (CronError, UnknownZone) as error:
        field = "cron" if isinstance(error, CronError) else "timezone"
        raise InvalidInput(field, str(error), field) from None
    build_job(schedule, now)


def first_due(schedule: Schedule, now: datetime) -> datetime | None:
    """Under a new rule. A single time may lie as far back as its grace reaches; one that has passed is refused."""
    if is_spent(schedule):
        return None
    trigger = trigger_of(schedule)
    if not isinstance(trigger, Once):
        return trigger.after(now)
    due = trigger.after(now - max(timedelta(seconds=schedule.misfire_grace_sec), BUSY))
    if due is None:
        raise InvalidInput("run_at", _("has passed"), "past")
    return due


def next_due(schedule: Schedule, after: datetime) -> datetime | None:
    return None if is_spent(schedule) else trigger_of(schedule).after(after)


def is_spent(schedule: Schedule) -> bool:
    return schedule.max_fires is not None and schedule.fire_count >= schedule.max_fires
