"""What a rule would do, before it is saved: in words, and its next due times with a note where clocks change."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from django import forms
from django.utils.translation import gettext as _

from jobs import clock
from jobs.errors import JobSchedulerError
from schedules import fields, history
from schedules.history import Upcoming
from schedules.models import Schedule
from schedules.words import in_words

SHOWN = 5
RULES = ("cron", "every_sec", "run_at")


class RuleForm(forms.Form):
    """The fields of a schedule's form that decide when it is due; everything else that is sent along is ignored."""

    cron = forms.CharField(required=False, max_length=1000)
    timezone = forms.CharField(required=False, max_length=1000)
    every_sec = forms.CharField(required=False, max_length=100)
    anchor_at = forms.SplitDateTimeField(required=False)
    run_at = forms.SplitDateTimeField(required=False)


@dataclass(frozen=True)
class Preview:
    words: str = ""
    zone: str = ""
    problem: str = ""
    coming: list[Upcoming] = field(default_factory=list)


def of_form(data: Any) -> Preview:
    """Of what somebody has typed so far."""
    form = RuleForm(data)
    if not form.is_valid():
        return Preview(problem=" ".join(f"{name}: {' '.join(map(str, told))}" for name, told in form.errors.items()))
    said = {name: value for name, value in form.cleaned_data.items() if value not in (None, "")}
    if len([name for name in RULES if name in said]) != 1:
        return Preview(problem=_("Say exactly one of a cron expression, an interval and a single time."))
    try:
        return of_schedule(_schedule(said))
    except (JobSchedulerError, ValueError) as error:
        return Preview(problem=str(error))


def of_schedule(schedule: Schedule, count: int = SHOWN) -> Preview:
    """Raises Broken for a row that makes no sense."""
    return Preview(in_words(schedule), schedule.timezone, "", history.of_schedule(schedule, count))


def _schedule(said: dict[str, Any]) -> Schedule:
    if "every_sec" in said:
        said = {**said, "every_sec": int(said["every_sec"])}
    else:
        said = {name: value for name, value in said.items() if name != "anchor_at"}
    clean = fields.clean(said, {})
    return Schedule(enabled=False, created_at=clock.now(), **{"timezone": "UTC", **clean})
