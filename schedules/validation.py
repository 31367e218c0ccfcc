"""Validate the fields of a schedule, each alone and all together, and compute its next due time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.utils.translation import gettext as _

from jobs.conf.rules import YEAR_SEC
from jobs.errors import Conflict, InvalidInput
from jobs.redaction import has_secret, restore
from jobs.services import job_spec
from jobs.validation import fields
from schedules.cron import CRON_LENGTH, CronError, UnknownZone, get_zone, parse_expression
from schedules.fire_plan import build_spec
from schedules.models import CatchUp, Overlap, Schedule
from schedules.triggers import MIN_GRACE, SingleTime, build_trigger

MAX_EVERY_SEC = 10 * YEAR_SEC
MAX_JITTER_SEC = 86_400
MAX_CATCH_UP = 1000
MAX_FIRES = 2**31 - 1


def parse_cron(value: Any, field: fields.Field = "cron") -> str:
    """Return an expression with single spaces, or raise InvalidInput."""
    expression = fields.parse_text(value, field, max_length=CRON_LENGTH)
    try:
        parse_expression(expression)
    except CronError as error:
        raise InvalidInput(field, str(error), "cron") from None
    return " ".join(expression.split())


def parse_timezone(value: Any, field: fields.Field = "timezone") -> str:
    name = fields.parse_text(value, field, allow_empty=True)
    try:
        return get_zone(name).key
    except UnknownZone as error:
        raise InvalidInput(field, str(error), "timezone") from None


def parse_seconds(value: Any, field: fields.Field, minimum: int, maximum: int) -> int:
    """Return a whole number of seconds; 60.0 is one."""
    number = fields.parse_number(value, field, minimum, maximum)
    if number != int(number):
        raise InvalidInput(field, _("must be a whole number of seconds"), "int_from_float")
    return int(number)


VALIDATORS: dict[str, Callable[[Any, Any], Any]] = {
    "name": fields.parse_identifier,
    "cron": parse_cron,
    "every_sec": partial(parse_seconds, minimum=1, maximum=MAX_EVERY_SEC),
    "anchor_at": fields.parse_time,
    "run_at": fields.parse_time,
    "timezone": parse_timezone,
    "max_fires": partial(fields.parse_integer, minimum=1, maximum=MAX_FIRES),
    "enabled": fields.parse_boolean,
    "template": fields.parse_identifier,
    "job_type": fields.parse_identifier,
    "params": fields.parse_json_object,
    "fire_time_param": fields.parse_identifier,
    "priority": job_spec.VALIDATORS["priority"],
    "target": job_spec.VALIDATORS["target"],
    "resource": job_spec.VALIDATORS["resource"],
    "catch_up": partial(fields.parse_choice, choices=CatchUp.values),
    "catch_up_max": partial(fields.parse_integer, minimum=1, maximum=MAX_CATCH_UP),
    "overlap": partial(fields.parse_choice, choices=Overlap.values),
    "misfire_grace_sec": partial(parse_seconds, minimum=0, maximum=YEAR_SEC),
    "jitter_sec": partial(parse_seconds, minimum=0, maximum=MAX_JITTER_SEC),
}
RULE_FIELDS = ("cron", "every_sec", "anchor_at", "run_at", "timezone")


def clean_fields(values: Mapping[str, Any], known_params: dict[str, Any]) -> dict[str, Any]:
    """Validate each field; None becomes the column's default, and masked values in params become the known ones."""
    cleaned: dict[str, Any] = {}
    columns: Any = Schedule._meta
    for name, value in values.items():
        if name not in VALIDATORS:
            raise InvalidInput(str(name)[:100], _("is not a field of a schedule"), "extra_forbidden")
        if value is None and name == "name":
            raise InvalidInput(name, _("must not be empty"), "missing")
        if value is None:
            cleaned[name] = columns.get_field(name).get_default()
        else:
            cleaned[name] = VALIDATORS[name](restore(value, known_params, name) if name == "params" else value, name)
    return cleaned


def get_known_params(schedule: Schedule, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the params whose masked secrets an edit may keep: none where they would go to another job type.

    Raise InvalidInput if the edit would keep them then, because it does not contain params.
    """
    template = None if schedule.template is None else schedule.template.name
    is_moved = (changes.get("job_type", schedule.job_type) or "", changes.get("template", template)) != (
        schedule.job_type,
        template,
    )
    if not is_moved or not has_secret(schedule.params):
        return schedule.params
    if "params" not in changes:
        message = _("contain secrets: write them in again with another job type or template")
        raise InvalidInput("params", message, "hidden")
    return {}


class BrokenSchedule(Conflict):
    """Raised for an invalid row. The services write none; only SQL or other code can have."""

    code = "broken"


@contextmanager
def broken_as_conflict() -> Iterator[None]:
    """Raise BrokenSchedule for the errors of an invalid row."""
    try:
        yield
    except (CronError, UnknownZone) as error:
        raise BrokenSchedule(_("This schedule is broken: %s") % error) from None


def rule_of(schedule: Schedule) -> tuple[Any, ...]:
    """Return the fields that decide when it is due. The zone counts for cron only."""
    timezone = schedule.timezone if schedule.cron is not None else None
    return (schedule.cron, timezone, schedule.every_sec, schedule.anchor_at, schedule.run_at)


def require_valid(schedule: Schedule, now: datetime) -> None:
    """Raise InvalidInput unless a schedule has one rule and its job can be built."""
    rules = [name for name in ("cron", "every_sec", "run_at") if getattr(schedule, name) is not None]
    if len(rules) != 1:
        message = _("enter exactly one of cron, every_sec and run_at")
        raise InvalidInput(rules[-1] if rules else "cron", message, "one_rule")
    if schedule.anchor_at is not None and schedule.every_sec is None:
        raise InvalidInput("anchor_at", _("is only for every_sec"))
    if (schedule.template is None) == (schedule.job_type == ""):
        raise InvalidInput("job_type", _("enter either a job type or a template"), "missing")
    try:
        build_trigger(schedule).next_after(now)
    except (CronError, UnknownZone) as error:
        field = "cron" if isinstance(error, CronError) else "timezone"
        raise InvalidInput(field, str(error), field) from None
    build_spec(schedule, now)


def first_due_time(schedule: Schedule, now: datetime) -> datetime | None:
    """Return the first due time under a new rule; raise InvalidInput for a single time older than the grace."""
    if schedule.fires_left == 0:
        return None
    trigger = build_trigger(schedule)
    if not isinstance(trigger, SingleTime):
        return trigger.next_after(now)
    due = trigger.next_after(now - max(timedelta(seconds=schedule.misfire_grace_sec), MIN_GRACE))
    if due is None:
        raise InvalidInput("run_at", _("has passed"), "past")
    return due


def next_due_time(schedule: Schedule, after: datetime) -> datetime | None:
    return None if schedule.fires_left == 0 else build_trigger(schedule).next_after(after)
