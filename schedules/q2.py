"""Import the schedules of django-q2, all its eleven types: each once, known by where it came from."""

from __future__ import annotations

import ast
import inspect
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.utils.translation import gettext as _

from jobs import db, parsing
from jobs.actors import PYTHON, Actor
from jobs.contrib import django_q
from jobs.contrib.django_q import Source
from jobs.errors import InvalidInput, JobSchedulerError
from jobs.registry import Handler, registry
from jobs.shapes import moment
from jobs.signature import CONTEXT
from schedules import fields, services, zones
from schedules.models import CatchUp, Schedule

DAYS_IN_EVERY_MONTH = 28
TWO_WEEKS_SEC = 14 * 86_400
A_YEAR = timedelta(days=366)
MONTHS_APART = {"M": 1, "BM": 2, "Q": 3, "Y": 12}


class Unreadable(JobSchedulerError):
    """This one cannot be brought over, and why."""


@dataclass
class Translation:
    values: dict[str, Any]
    warnings: list[str] = field(default_factory=list)


def source_name(source: Source) -> str:
    return f"q2:{source.id}"


def translated(source: Source, *, zone: str, makes_up: bool) -> Translation:
    """What `services.create` takes, or Unreadable. `zone` is where django-q2 reads its times."""
    warnings = []
    if source.hook:
        warnings.append(_("its hook “%s” is not called: use a webhook, or make it a job") % source.hook[:100])
    if source.cluster:
        warnings.append(_("its cluster “%s” means nothing here: use a resource") % source.cluster[:100])
    rule = _rule(source, zone, warnings)
    handler = _handler(source.func)
    named = _keywords(source.kwargs)
    if named.pop("q_options", None):
        warnings.append(_("its q_options stay behind"))
    taken = inspect.signature(handler.__wrapped__).parameters.values()
    names = [each.name for each in taken if each.kind is each.POSITIONAL_OR_KEYWORD and each.name != CONTEXT]
    positional = _positional(source.args)
    if len(positional) > len(names):
        raise Unreadable(_("it passes more arguments than the function has"))
    given = dict(zip(names, positional, strict=False))
    if twice := given.keys() & named.keys():
        raise Unreadable(_("it passes “%s” twice") % min(twice))
    params = {name: _plain(value) for name, value in {**given, **named}.items()}
    catch_up = CatchUp.ALL if makes_up and source.schedule_type != "C" else CatchUp.LATEST  # its crons count from now
    values = {
        "name": (source.name or source.func)[:200],
        "job_type": handler.name,
        "params": params,
        "fire_time_param": source.intended_date_kwarg or None,
        "max_fires": source.repeats if source.repeats > 0 and source.schedule_type != "O" else None,
        "enabled": source.repeats != 0,
        "catch_up": str(catch_up),
        **rule,
    }
    return Translation(values, warnings)


def _rule(source: Source, zone: str, warnings: list[str]) -> dict[str, Any]:
    kind = source.schedule_type
    if kind == "C":
        return {"cron": _cron(source.cron), "timezone": zone}
    if source.next_run is None:
        raise Unreadable(_("it has no next run"))
    if kind == "O":
        return {"run_at": source.next_run}
    if kind == "I":
        return {"every_sec": 60 * (source.minutes or 1), "anchor_at": source.next_run}
    if kind == "BW":
        if zones.change_between(zones.zone(zone), source.next_run, source.next_run + A_YEAR) is not None:
            warnings.append(_("counted in real time: where clocks change it moves by what they change"))
        return {"every_sec": TWO_WEEKS_SEC, "anchor_at": source.next_run, "timezone": zone}
    return {"cron": _calendar(kind, source.next_run.astimezone(zones.zone(zone)), warnings), "timezone": zone}


def _calendar(kind: str, first: datetime, warnings: list[str]) -> str:
    """Cron for what is said by its first time and a step."""
    at = f"{first.minute} {first.hour}"
    if kind in ("H", "D", "W"):
        return {"H": f"{first.minute} * * * *", "D": f"{at} * * *", "W": f"{at} * * {first.isoweekday() % 7}"}[kind]
    if kind not in MONTHS_APART:
        raise Unreadable(_("its type “%s” is unknown") % kind)
    step = MONTHS_APART[kind]
    months = sorted({(first.month - 1 + step * each) % 12 + 1 for each in range(12)})
    if first.day > (DAYS_IN_EVERY_MONTH if kind != "Y" or first.month == 2 else 31):
        warnings.append(_("months without a day %d are left out; django-q2 takes their last day") % first.day)
    return f"{at} {first.day} {'*' if step == 1 else ','.join(map(str, months))} *"


def _cron(written: str | None) -> str:
    try:
        return fields.cron(written or "")
    except InvalidInput as error:
        raise Unreadable(str(error)) from None


def _handler(func: str) -> Handler[..., Any]:
    """By its name, or by where its function is."""
    for name in registry.names():
        if func in (name, registry.get(name).place, *registry.get(name).options.aliases):
            return registry.get(name)
    raise Unreadable(_("“%s” is no job type here: put @job on it") % func[:200])


def _positional(written: str | None) -> tuple[Any, ...]:
    """As django-q2 reads them: a single value is a tuple of one."""
    if not written:
        return ()
    value = _literal(written)
    return value if isinstance(value, tuple) else (value,)


def _keywords(written: str | None) -> dict[str, Any]:
    """Either a dict, or what stands between the brackets of a call."""
    if not written:
        return {}
    try:
        value = _literal(written)
    except Unreadable:
        value = _call(written)
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise Unreadable(_("its keyword arguments cannot be read"))
    return value


def _call(written: str) -> dict[str, Any]:
    try:
        call: Any = ast.parse(f"f({written})", mode="eval").body
        if not isinstance(call, ast.Call) or call.args:
            raise Unreadable(_("its keyword arguments cannot be read"))
        return {str(each.arg): ast.literal_eval(each.value) for each in call.keywords}
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        raise Unreadable(_("its keyword arguments cannot be read")) from None


def _literal(written: str) -> Any:
    try:
        return ast.literal_eval(written)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        raise Unreadable(_("its arguments cannot be read")) from None


def _plain(value: Any) -> Any:
    """Tuples as lists; whatever else JSON has no word for is refused when the schedule is made."""
    if isinstance(value, tuple | list):
        return [_plain(each) for each in value]
    return {name: _plain(each) for name, each in value.items()} if isinstance(value, dict) else value


@dataclass
class Imported:
    """`result` is made, known or refused; before it is done, `would be made`."""

    source: str
    name: str
    when: str = ""
    result: str = "made"
    reason: str = ""
    warnings: list[str] = field(default_factory=list)
    fires_twice: bool = False

    def document(self) -> dict[str, Any]:
        return asdict(self)


def bring_over(
    *, tenant: str = "default", dry_run: bool = False, disable_source: bool = False, actor: Actor = PYTHON
) -> list[Imported]:
    """Each in a transaction of its own, in which its source is disabled too if that is asked."""
    place = parsing.tenant(tenant)
    zone = fields.timezone(django_q.time_zone(), "Q_CLUSTER")
    known = set(Schedule.objects.filter(source__startswith="q2:").values_list("source", flat=True))
    return [
        _bring(source, zone, place, source_name(source) in known, dry_run, disable_source, actor)
        for source in django_q.sources()
    ]


def _bring(
    source: django_q.Source, zone: str, tenant: str, is_known: bool, dry_run: bool, disable_source: bool, actor: Actor
) -> Imported:
    told = Imported(source_name(source), source.name or source.func, fires_twice=source.repeats != 0)
    try:
        with db.atomic():
            if is_known:
                told.result = "known"
            else:
                _translate(told, source, zone, tenant, dry_run, actor)
            if disable_source and not dry_run and django_q.disable([source.id]):
                told.warnings.append(_("its source was disabled"))
                told.fires_twice = False
    except JobSchedulerError as error:
        told.result, told.reason = "refused", str(error)
    return told


def _translate(told: Imported, source: django_q.Source, zone: str, tenant: str, dry_run: bool, actor: Actor) -> None:
    found = translated(source, zone=zone, makes_up=django_q.makes_up_for_missed())
    told.warnings += found.warnings
    told.when = _when(found.values)
    taken = Schedule.objects.filter(tenant=tenant).values_list("name", flat=True)
    # The name it had, or one that tells where it comes from.
    wanted = found.values["name"]
    found.values["name"] = told.name = wanted if wanted not in set(taken) else f"{wanted[:170]} ({source_name(source)})"
    services.require_sense_of(found.values, tenant=tenant)
    if dry_run:
        told.result = "would be made"
        return
    services.create(found.values, tenant=tenant, actor=actor, source=told.source)


def _when(values: dict[str, Any]) -> str:
    if "cron" in values:
        return f"{values['cron']} {values['timezone']}"
    return f"every {values['every_sec']} s" if "every_sec" in values else f"once, at {moment(values['run_at'])}"
