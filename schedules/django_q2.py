"""Import the schedules of django-q2, all its eleven types. `source` keeps each from being imported twice.

A function that cannot be decorated, because it is not the site's own, needs a handler with its path as an alias:
WRAPPERS has that of `send_mail`. `call_command` needs none, its schedules become jobs of the type `system.command`.
"""

from __future__ import annotations

import ast
import inspect
from argparse import Action
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.core.management import get_commands, load_command_class
from django.utils.translation import gettext as _

from jobs import db
from jobs.actors import PYTHON, Actor
from jobs.conf import conf
from jobs.contrib import django_q
from jobs.contrib.django_q import DjangoQSchedule
from jobs.errors import JobSchedulerError
from jobs.registry import CONTEXT, Handler, registry
from jobs.time_text import format_time
from jobs.validation import fields
from schedules import services, validation
from schedules.cron import find_clock_change, get_zone
from schedules.models import CatchUp, Schedule

DAYS_IN_EVERY_MONTH = 28
TWO_WEEKS_SEC = 14 * 86_400
A_YEAR = timedelta(days=366)
MONTHS_APART = {"M": 1, "BM": 2, "Q": 3, "Y": 12}
CALL_COMMAND = "django.core.management.call_command"
WRAPPERS = {
    "django.core.mail.send_mail": """\
from django.core import mail

from jobs import job


@job("mail.send", aliases=["django.core.mail.send_mail"])
def send_mail(
    subject: str,
    message: str,
    from_email: str | None,
    recipient_list: list[str],
    fail_silently: bool = False,
    *,
    html_message: str | None = None,
) -> int:
    options = {"fail_silently": fail_silently, "html_message": html_message}
    return mail.send_mail(subject, message, from_email, recipient_list, **options)
""",
}


class NotImportable(JobSchedulerError):
    """Raised for a schedule that cannot be imported, with the reason, and a handler that makes it importable."""

    def __init__(self, message: str, wrapper: str = "") -> None:
        super().__init__(message)
        self.wrapper = wrapper


def translate(source: DjangoQSchedule, zone_name: str, warnings: list[str]) -> dict[str, Any]:
    """Return the fields for `services.create`, or raise; append to `warnings`. `zone_name` is django-q2's time zone."""
    if source.hook:
        warnings.append(_("its hook “%s” is not called: use a webhook, or make it a job") % source.hook[:100])
    if source.cluster:
        warnings.append(_("its cluster “%s” is not imported: use a resource") % source.cluster[:100])
    rule = _translate_rule(source, zone_name, warnings)
    keywords = _parse_keywords(source.kwargs)
    if keywords.pop("q_options", None):
        warnings.append(_("its q_options are not imported"))
    positional = _parse_literal(source.args) if source.args else ()
    if not isinstance(positional, tuple):  # as django-q2 reads them: a single value is a tuple of one
        positional = (positional,)
    handler = _find_handler(source.func)
    if handler is not None:
        job_type, params = handler.name, _bind_params(handler, positional, keywords)
    elif source.func == CALL_COMMAND:
        job_type, params = "system.command", _translate_command(positional, keywords)
    else:
        raise NotImportable(_explain_missing_handler(source.func), WRAPPERS.get(source.func, ""))
    catches_up = django_q.is_catching_up() and source.schedule_type != "C"  # its crons count from now
    return {
        "name": (source.name or source.func)[:200],
        "job_type": job_type,
        "params": _convert_tuples(params),
        "fire_time_param": source.intended_date_kwarg or None,
        "max_fires": source.repeats if source.repeats > 0 and source.schedule_type != "O" else None,
        "enabled": source.repeats != 0,
        "catch_up": str(CatchUp.ALL if catches_up else CatchUp.LATEST),
        **rule,
    }


def _find_handler(path: str) -> Handler[..., Any] | None:
    handlers = map(registry.get, registry.names())
    return next((known for known in handlers if path in (known.name, known.path, *known.options.aliases)), None)


def _explain_missing_handler(path: str) -> str:
    if path in WRAPPERS:
        return _("“%s” is no job type: put the handler below into a jobs.py of yours, then import again") % path
    message = _("“%s” is no job type: put @job on it, or on a function that calls it, with its path among the aliases")
    return message % path[:200]


def _bind_params(handler: Handler[..., Any], positional: tuple[Any, ...], keywords: dict[str, Any]) -> dict[str, Any]:
    parameters = inspect.signature(handler.__wrapped__).parameters.values()
    names = [p.name for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD and p.name != CONTEXT]
    if len(positional) > len(names):
        raise NotImportable(_("it passes more arguments than the function has"))
    params = dict(zip(names, positional, strict=False))
    if duplicates := params.keys() & keywords.keys():
        raise NotImportable(_("it passes “%s” twice") % min(duplicates))
    return {**params, **keywords}


def _translate_command(positional: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    """Return the params of `system.command` for the arguments of `call_command`."""
    name = positional[0] if positional else None
    if not isinstance(name, str):
        raise NotImportable(_("it names no command"))
    if not conf.SYSTEM_JOB_TYPES or name not in conf.COMMAND_ALLOW:
        message = _("it runs the command “%s”: set SYSTEM_JOB_TYPES and add it to COMMAND_ALLOW, then import again")
        raise NotImportable(message % name[:200])
    words: list[str] = []
    for argument in positional[1:]:
        words += map(str, argument) if isinstance(argument, list | tuple) else [str(argument)]
    try:
        actions = load_command_class(get_commands()[name], name).create_parser("", name)._actions
    except (KeyError, ImportError):
        raise NotImportable(_("there is no command “%s”") % name[:200]) from None
    for option, value in options.items():
        spelled = [_spell_option(action, value) for action in actions if _is_named(action, option)]
        word = next((word for word in spelled if word is not None), None)
        if word is None:
            raise NotImportable(_("its option “%s” cannot be written on a command line") % option[:200])
        words += [word] if word else []
    return {"command": name, "args": words}


def _is_named(action: Action, option: str) -> bool:
    """Return whether `call_command` takes this keyword for the option."""
    names = action.option_strings and (action.dest, min(action.option_strings).lstrip("-").replace("-", "_"))
    return option in names


def _spell_option(action: Action, value: Any) -> str | None:
    """Return an option as a word of a command line, empty for the default; None if this action cannot express it."""
    if action.nargs == 0 and action.const is not None and value == action.const:
        return action.option_strings[-1]
    if value == action.default:
        return ""
    is_plain = isinstance(value, str | int | float) and not isinstance(value, bool)
    return f"{action.option_strings[-1]}={value}" if action.nargs is None and is_plain else None


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
    """`result` is `made`, `known` or `refused`; in a dry run, `would be made` instead of `made`.

    `wrapper` is Python code: a handler that makes a refused schedule importable.
    """

    source: str
    name: str
    when: str = ""
    job_type: str = ""
    result: str = "made"
    reason: str = ""
    wrapper: str = ""
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
            row.result, row.reason, row.wrapper = "refused", str(error), getattr(error, "wrapper", "")
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
    row.name, row.job_type = values["name"], values["job_type"]
    services.require_valid_fields(values, tenant=tenant)
    if dry_run:
        row.result = "would be made"
    else:
        services.create(values, tenant=tenant, actor=actor, source=row.source)
