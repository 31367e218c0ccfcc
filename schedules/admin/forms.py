"""A schedule as a person writes it: the form asks the same gates, and the same question as a whole, as the services."""

from __future__ import annotations

from typing import Any

from django import forms
from django.utils.translation import gettext_lazy as _

from jobs.admin.forms import JsonField
from jobs.errors import InvalidInput
from jobs.models import JobTemplate
from jobs.registry import registry
from schedules import services
from schedules.models import CatchUp, Schedule
from schedules.zones import NAME_LENGTH, names_of_zones

SAID = (
    *("name", "cron", "timezone", "every_sec", "anchor_at", "run_at", "max_fires", "enabled", "job_type", "template"),
    *("params", "fire_time_param", "priority", "target", "resource", "catch_up", "catch_up_max", "overlap"),
    *("misfire_grace_sec", "jitter_sec"),
)
CATCH_UP = [
    (CatchUp.NONE, _("Nothing")),
    (CatchUp.LATEST, _("The latest due time")),
    (CatchUp.ALL, _("All due times, up to the cap")),
]


class TemplateChoice(forms.ModelChoiceField):
    def label_from_instance(self, obj: Any) -> str:
        template: JobTemplate = obj
        return template.name if template.tenant == "default" else f"{template.name} ({template.tenant})"


class ScheduleForm(forms.ModelForm):
    job_type = forms.ChoiceField(label=_("Job type"), required=False, help_text=_("Or a template."))
    template = TemplateChoice(
        label=_("Template"), required=False, queryset=JobTemplate.objects.defer("params", "retry_policy", "tags")
    )
    params = JsonField(label=_("Params"), required=False)
    timezone = forms.CharField(  # judged by the services, which say what was meant
        label=_("Time zone"),
        max_length=NAME_LENGTH,
        initial="UTC",
        widget=forms.Select,
        help_text=_("Where cron is read."),
    )
    catch_up = forms.ChoiceField(
        label=_("Catch-up"),
        choices=CATCH_UP,
        initial=CatchUp.LATEST,
        help_text=_("What is made up for after an absence of the scheduler."),
    )

    class Meta:
        model = Schedule
        fields = ("tenant", *SAID)
        help_texts = {
            "cron": _("Five fields, or @daily and the like; or say an interval or a single time below."),
            "anchor_at": _("What the interval is counted from. Empty: from now."),
            "misfire_grace_sec": _("How late is still in time."),
            "jitter_sec": _("Spreads the starts over so long; due times stay."),
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if isinstance(choice := self.fields.get("job_type"), forms.ChoiceField):
            names = {*registry.names(), self.instance.job_type} - {""}
            choice.choices = [("", "---------"), *((name, name) for name in sorted(names))]
        if "timezone" in self.fields:
            zones = sorted({*names_of_zones(), self.instance.timezone or "UTC"})
            self.fields["timezone"].widget.choices = [(name, name) for name in zones]

    def said(self) -> dict[str, Any]:
        """What services take: every field of a new schedule, and of one that is there what was changed.

        A field that this person's page does not show is not said, whatever was posted.
        """
        is_new, shown = self.instance._state.adding, set(self._meta.fields or ()) & self.cleaned_data.keys()
        names = [name for name in SAID if name in shown and (is_new or name in self.changed_data)]
        return {name: _value(self.cleaned_data[name]) for name in names}

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        if not self.errors:
            tenant = cleaned.get("tenant", self.instance.tenant)
            stored = None if self.instance._state.adding else self.instance.pk
            try:
                services.require_sense_of(self.said(), tenant=tenant, schedule_id=stored)
            except InvalidInput as error:
                self._refuse(error)
        if cleaned.get("params") is None and "params" in cleaned:
            cleaned["params"] = {}
        return cleaned

    def _get_validation_exclusions(self) -> set[str]:
        """What the services judge is left to them: a constraint of the database could only say its own name."""
        left = set(SAID) - {"name"}
        return left | super()._get_validation_exclusions()  # type: ignore[misc]

    def _refuse(self, error: InvalidInput) -> None:
        for each in error.errors:
            field = str(each["loc"][0]) if each["loc"] else ""
            place = ".".join(str(step) for step in each["loc"][1:])
            told = f"{place}: {each['msg']}" if place else each["msg"]
            self.add_error(field if field in self.fields else None, told)


def _value(value: Any) -> Any:
    if isinstance(value, JobTemplate):
        return value.name
    return None if value == "" else value
