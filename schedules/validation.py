"""What may be said of a schedule, field by field and as a whole; and which due time it waits for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.utils.translation import gettext as _

from jobs.conf.rules import YEAR_SEC
from jobs.errors import Conflict, InvalidInput
from jobs.redaction import restore
from jobs.services import job_spec
from jobs.validation import fields
from schedules.cron import LENGTH, CronError, UnknownZone, fields_of, zone
from schedules.fire_plan import build_job
from schedules.models import CatchUp, Overlap, Schedule
from schedules.triggers import BUSY, Once, trigger_of

LONGEST_EVERY_SEC = 10 * YEAR_SEC
LONGEST_JITTER_SEC = 86_400
MOST_CATCH_UP = 1000
MOST_FIRES = 2**31 - 1


def cron(value: Any, field: fields.Field = "cron") -> str:
    written = fields.parse_text(value, field, max_length=LENGTH)
    try:
        fields_of(written)
    except CronError as error:
        raise InvalidInput(field, str(error), "cron") from None
    return " ".join(written.split())


def timezone(value: Any, field: fields.Field = "timezone") -> str:
    name = fields.parse_text(value, field, allow_empty=True)
    try:
        return zone(name).key
    except UnknownZone as error:
        raise InvalidInput(field, str(error), "timezone") from None


def seconds(value: Any, field: fields.Field, minimum: int, maximum: int) -> int:
    """Whole ones; 60.0 is one of them."""
    number = fields.parse_number(value, field, minimum, maximum)
    if number != int(number):
        raise InvalidInput(field, _("must be a whole number of seconds"), "int_from_float")
    return int(number)


def one_of(words: Iterable[str], value: Any, field: fields.Field) -> str:
    known = list(words)
    if not isinstance(value, str) or value not in known:
        raise InvalidInput(field, _("must be one of %s") % ", ".join(known), "enum")
    return value


GATES: dict[str, Callable[[Any, Any], Any]] = {
    "name": fields.parse_identifier,
    "cron": cron,
    "every_sec": partial(seconds, minimum=1, maximum=LONGEST_EVERY_SEC),
    "anchor_at": fields.parse_time,
    "run_at": fields.parse_time,
    "timezone": timezone,
    "max_fires": partial(fields.parse_integer, minimum=1, maximum=MOST_FIRES),
    "enabled": fields.parse_boolean,
    "template": fields.parse_identifier,
    "job_type": fields.parse_identifier,
    "params": fields.parse_json_object,
    "fire_time_param": fields.parse_identifier,
    "priority": job_spec.GATES["priority"],
    "target": job_spec.GATES["target"],
    "resource": job_spec.GATES["resource"],
    "catch_up": partial(one_of, CatchUp.values),
    "catch_up_max": partial(fields.parse_integer, minimum=1, maximum=MOST_CATCH_UP),
    "overlap": partial(one_of, Overlap.values),
    "misfire_grace_sec": partial(seconds, minimum=0, maximum=YEAR_SEC),
    "jitter_sec": partial(seconds, minimum=0, maximum=LONGEST_JITTER_SEC),
}
RULE = ("cron", "every_sec", "anchor_at", "run_at", "timezone")


def clean(values: Mapping[str, Any], known_params: dict[str, Any]) -> dict[str, Any]:
    """Validate each field; None is the default of its column. Params that were shown masked may come back masked."""
    found: dict[str, Any] = {}
    columns: Any = Schedule._meta
    for name, value in values.items():
        if name not in GATES:
            raise InvalidInput(str(name)[:100], _("is not a field of a schedule"), "extra_forbidden")
        if value is None and name == "name":
            raise InvalidInput(name, _("must not be empty"), "missing")
        if value is None:
            found[name] = columns.get_field(name).get_default()
        else:
            found[name] = GATES[name](restore(value, known_params, name) if name == "params" else value, name)
    return found


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
    place = schedule.timezone if schedule.cron is not None else None
    return (schedule.cron, place, schedule.every_sec, schedule.anchor_at, schedule.run_at)


def require_sense(schedule: Schedule, now: datetime) -> None:
    """InvalidInput unless it has one rule and could make its job."""
    rules = [name for name in ("cron", "every_sec", "run_at") if getattr(schedule, name) is not None]
    if len(rules) != 1:
        raise InvalidInput(
            rules[-1] if rules else "cron", _("say exactly one of cron, every_sec and run_at"), "one_rule"
        )
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
    if schedule.fires_left == 0:
        return None
    trigger = trigger_of(schedule)
    if not isinstance(trigger, Once):
        return trigger.after(now)
    due = trigger.after(now - max(timedelta(seconds=schedule.misfire_grace_sec), BUSY))
    if due is None:
        raise InvalidInput("run_at", _("has passed"), "past")
    return due


def next_due(schedule: Schedule, after: datetime) -> datetime | None:
    return None if schedule.fires_left == 0 else trigger_of(schedule).after(after)
