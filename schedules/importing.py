"""Brings the schedules of django-q2 over: each once, known by where it came from."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from django.utils.translation import gettext as _

from jobs import db, parsing
from jobs.actors import PYTHON, Actor
from jobs.contrib import django_q
from jobs.errors import JobSchedulerError
from jobs.shapes import moment
from schedules import fields, q2, services
from schedules.models import Schedule


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
        _bring(source, zone, place, q2.source_name(source) in known, dry_run, disable_source, actor)
        for source in django_q.sources()
    ]


def _bring(
    source: django_q.Source, zone: str, tenant: str, is_known: bool, dry_run: bool, disable_source: bool, actor: Actor
) -> Imported:
    told = Imported(q2.source_name(source), source.name or source.func, fires_twice=source.repeats != 0)
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
    found = q2.translated(source, zone=zone, makes_up=django_q.makes_up_for_missed())
    told.warnings += found.warnings
    told.when = _when(found.values)
    taken = Schedule.objects.filter(tenant=tenant).values_list("name", flat=True)
    found.values["name"] = told.name = q2.unused_name(found.values["name"], source, taken)
    services.require_sense_of(found.values, tenant=tenant)
    if dry_run:
        told.result = "would be made"
        return
    services.create(found.values, tenant=tenant, actor=actor, source=told.source)


def _when(values: dict[str, Any]) -> str:
    if "cron" in values:
        return f"{values['cron']} {values['timezone']}"
    return f"every {values['every_sec']} s" if "every_sec" in values else f"once, at {moment(values['run_at'])}"
