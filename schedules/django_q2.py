"""Import the schedules of django-q2, all its eleven types. `source` keeps each from being imported twice."""

from __future__ import annotations

import ast
import inspect
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.utils.translation import gettext as _

from jobs import db
from jobs.actors import PYTHON, Actor
from jobs.contrib import django_q
from jobs.contrib.django_q import DjangoQSchedule
from jobs.errors import JobSchedulerError
from jobs.registry import CONTEXT, registry
from jobs.serializers import format_time
from jobs.validation import fields
from schedules import services, validation
from schedules.cron import find_clock_change, get_zone
from schedules.models import CatchUp, Schedule

DAYS_IN_EVERY_MONTH = 28
TWO_WEEKS_SEC = 14 * 86_400
A_YEAR = timedelta(days=366)
MONTHS_APART = {"M": 1, "BM": 2, "Q": 3, "Y": 12}


class NotImportable(JobSchedulerError):
    """Raised for a schedule that cannot be imported, with the reason."""


def translate(source: DjangoQSchedule, zone_name: str, warnings: list[str]) -> dict[str, Any]:
    """Return the fields for `services.create`, or raise; append to `warnings`. `zone_name` is django-q2's time zone."""
    if source.hook:
        warnings.append(_("its hook “%s” is not called: use a webhook, or make it a job") % source.hook[:100])
    if source.cluster:
        warnings.append(_("its cluster “%s” is not imported: use a resource") % source.cluster[:100])
    rule = _translate_rule(source, zone_name, warnings)
    handlers = map(registry.get, registry.names())
    matches = [known for known in handlers if source.func in (known.name, known.path, *known.options.aliases)]
    if not matches:
        raise NotImportable(_("“%s” is no job type: put @job on it") % source.func[:200])
    handler, keywords = matches[0], _parse_keywords(source.kwargs)
    if keywords.pop("q_options", None):
        warnings.append(_("its q_options are not imported"))
    parameters = inspect.signature(handler.__wrapped__).parameters.values()
    names = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD and p.name != CONTEXT]
    positional = _parse_literal(source.args) if source.args else ()
    if not isinstance(positional, tuple):  # as django-q2 reads them: a single value is a tuple of one
        positional = (positional,)
    if len(positional) > len(names):
        raise NotImportable(_("it passes more arguments than the function has"))
    params = dict(zip(names, positional, strict=False))
    if duplicates := params.keys() & keywords.keys():
        raise NotImportable(_("it passes “%s” twice") % min(duplicates))
    catches_up = django_q.is_catching_up() and source.schedule_type != "C"  # its crons count from now
    return {
        "name": (source.name or source.func)[:200],
        "job_type": handler.name,
        "params": _convert_tuples({**params, **keywords}),
        "fire_time_param": source.intended_date_kwarg or None,
        "max_fires": source.repeats if source.repeats > 0 and source.schedule_type != "O" else None,
        "enabled": source.repeats != 0,
        "catch_up": str(CatchUp.ALL if catches_up else CatchUp.LATEST),
        **rule,
    }


def _translate_rule(source: DjangoQSchedule, zone_name: str, warnings: list[str]) -> dict[str, Any]:
    kind = source.schedule_type
    if kind == "C":
        return {"cron": validation.parse_cron(source.cron or ""), "timezone": zone_name}
    if source.next_run is None:
        raise NotImportable(_("it has no next run"))
    if kind == "O":
        return {"run_at": source.next_run}
    if kind == "I":
        return {"every_sec": 60 * (source.minutes or 1), "anchor_at": source.next_run}
    if kind == "BW":
        if find_clock_change(get_zone(zone_name), source.next_run, source.next_run + A_YEAR) is not None:
            warnings.append(_("counted in real time: where clocks change it moves by what they change"))
        return {"every_sec": TWO_WEEKS_SEC, "anchor_at": source.next_run, "timezone": zone_name}
    first = source.next_run.astimezone(get_zone(zone_name))
    return {"cron": _build_cron(kind, first, warnings), "timezone": zone_name}


def _build_cron(kind: str, first: datetime, warnings: list[str]) -> str:
    """Return the cron expression for a first time and a step of hours, days, weeks or months."""
    at = f"{first.minute} {first.hour}"
    if kind in ("H", "D", "W"):
        return {"H": f"{first.minute} * * * *", "D": f"{at} * * *", "W": f"{at} * * {first.isoweekday() % 7}"}[kind]
    if kind not in MONTHS_APART:
        raise NotImportable(_("its type “%s” is unknown") % kind)
    step = MONTHS_APART[kind]
    months = sorted({(first.month - 1 + step * count) % 12 + 1 for count in range(12)})
    if first.day > (DAYS_IN_EVERY_MONTH if kind != "Y" or first.month == 2 else 31):
        warnings.append(_("months without a day %d are left out; django-q2 takes their last day") % first.day)
    return f"{at} {first.day} {'*' if step == 1 else ','.join(map(str, months))} *"


def _parse_keywords(text: str | None) -> dict[str, Any]:
    """Parse a dict, or the keyword arguments of a call."""
    if not text:
        return {}
    try:
        value = _parse_literal(text)
    except NotImportable:
        value = None
        with suppress(SyntaxError, ValueError, MemoryError, RecursionError):
            call: Any = ast.parse(f"f({text})", mode="eval").body
            if isinstance(call, ast.Call) and not call.args:
                value = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in call.keywords}
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        raise NotImportable(_("its keyword arguments cannot be read"))
    return value


def _parse_literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        raise NotImportable(_("its arguments cannot be read")) from None


def _convert_tuples(value: Any) -> Any:
    """Return a value with lists for tuples. Other values that JSON lacks are refused by `services.create`."""
    if isinstance(value, tuple | list):
        return [_convert_tuples(item) for item in value]
    return {name: _convert_tuples(item) for name, item in value.items()} if isinstance(value, dict) else value


@dataclass
class ImportResult:
    """`result` is `made`, `known` or `refused`; in a dry run, `would be made` instead of `made`."""

    source: str
    name: str
    when: str = ""
    result: str = "made"
    reason: str = ""
    warnings: list[str] = field(default_factory=list)
    fires_twice: bool = False


def import_schedules(
    *, tenant: str = "default", dry_run: bool = False, disable_source: bool = False, actor: Actor = PYTHON
) -> list[ImportResult]:
    """Import each schedule in its own transaction, which also disables the source if `disable_source`."""
    tenant = fields.parse_tenant(tenant)
    zone_name = validation.parse_timezone(django_q.get_time_zone(), "Q_CLUSTER")
    known = set(Schedule.objects.filter(source__startswith="q2:").values_list("source", flat=True))
    results = []
    for source in django_q.list_schedules():
        row = ImportResult(f"q2:{source.id}", source.name or source.func, fires_twice=source.repeats != 0)
        results.append(row)
        try:
            with db.atomic():
                if row.source in known:
                    row.result = "known"
                else:
                    _create(row, source, zone_name, tenant, dry_run, actor)
                if disable_source and not dry_run and django_q.disable_schedules([source.id]):
                    row.warnings.append(_("its source was disabled"))
                    row.fires_twice = False
        except JobSchedulerError as error:
            row.result, row.reason = "refused", str(error)
    return results


def _create(
    row: ImportResult, source: DjangoQSchedule, zone_name: str, tenant: str, dry_run: bool, actor: Actor
) -> None:
    warnings: list[str] = []
    values = translate(source, zone_name, warnings)
    row.warnings += warnings
    if "cron" in values:
        row.when = f"{values['cron']} {values['timezone']}"
    elif "every_sec" in values:
        row.when = f"every {values['every_sec']} s"
    else:
        row.when = f"once, at {format_time(values['run_at'])}"
    if Schedule.objects.filter(tenant=tenant, name=values["name"]).exists():
        values["name"] = f"{values['name'][:170]} ({row.source})"  # unique
    row.name = values["name"]
    services.require_valid_fields(values, tenant=tenant)
    if dry_run:
        row.result = "would be made"
    else:
        services.create(values, tenant=tenant, actor=actor, source=row.source)
