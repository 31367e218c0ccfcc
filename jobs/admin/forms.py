"""What an operator may write: limits and templates, each field through the same gate as the API's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from django import forms
from django.contrib.admin.helpers import ActionForm
from django.contrib.admin.widgets import AdminTextareaWidget
from django.core.exceptions import ValidationError
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobs import parsing, submission
from jobs.admin.showing import pretty
from jobs.conf import conf
from jobs.errors import InvalidInput, InvalidParams
from jobs.models import ConcurrencyLimit, JobTemplate, LimitScope
from jobs.redaction import redact, restore
from jobs.registry import registry
from jobs.services import REASON_LENGTH
from jobs.setting_rules import YEAR_SEC


class ReasonForm(ActionForm):
    reason = forms.CharField(
        label=_("Reason:"), required=False, max_length=REASON_LENGTH, widget=forms.TextInput(attrs={"size": 30})
    )


class DryRunForm(ReasonForm):
    dry_run = forms.BooleanField(label=_("Only say what would happen"), required=False)


class JsonField(forms.Field):
    """JSON as text, read by our own strict parser. Django's field fails on deep nesting and on endless digits."""

    widget = AdminTextareaWidget
    empty_values = [None, ""]

    def prepare_value(self, value: Any) -> Any:
        if value is None:
            return ""
        return value if isinstance(value, str) else pretty(value)

    def has_changed(self, initial: Any, data: Any) -> bool:
        return super().has_changed(redact(initial), data)

    def to_python(self, value: Any) -> Any:
        if value in self.empty_values:
            return None
        try:
            return parsing.json_value(parsing.decode_json(value, "json"), "json")
        except InvalidInput as error:
            raise ValidationError(error.errors[0]["msg"]) from None


class LimitForm(forms.ModelForm):
    max = forms.IntegerField(
        label=_("Maximum"), required=False, min_value=1, max_value=2**31 - 1, help_text=_("Empty: unlimited.")
    )
    overridden = forms.BooleanField(
        label=_("Overrides the settings"),
        required=False,
        help_text=_("Without it, the maximum is that of the settings."),
    )

    reason = forms.CharField(
        label=_("Reason"), required=False, max_length=REASON_LENGTH, widget=AdminTextareaWidget(attrs={"rows": 2})
    )

    class Meta:
        model = ConcurrencyLimit
        fields = ("scope", "key", "max", "overridden", "paused", "reason")

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        scope, key = cleaned.get("scope", self.instance.scope), cleaned.get("key", self.instance.key)
        if "key" in self.fields and scope:
            self._check_key(scope, key)
        if "overridden" not in cleaned or "max" not in cleaned:
            return cleaned
        if not cleaned["overridden"] and "max" in self.changed_data and "overridden" not in self.changed_data:
            cleaned["overridden"] = True  # a maximum of one's own is an override
        if not cleaned["overridden"]:
            cleaned["max"] = conf.LIMITS.of(scope, key) if scope else None
        return cleaned

    def _check_key(self, scope: str, key: str) -> None:
        if scope == LimitScope.GLOBAL:
            if key:
                self.add_error("key", _("The global limit has no key."))
            return
        gate = parsing.tenant if scope == LimitScope.TENANT else parsing.identifier
        try:
            gate(key, "key")
        except InvalidInput as error:
            self.add_error("key", error.errors[0]["msg"])


def retry_policy(value: Any, field: str) -> dict[str, Any]:
    policy = parsing.json_object(value, field)
    for name, given in policy.items():
        if name not in RETRY_GATES:
            raise InvalidInput([field, name], gettext("is not one of %s") % ", ".join(RETRY_GATES), "extra_forbidden")
        RETRY_GATES[name](given, [field, name])
    return policy


RETRY_GATES: dict[str, Callable[[Any, Any], Any]] = {
    "max_attempts": partial(parsing.integer, minimum=0, maximum=1000),
    "base_sec": partial(parsing.number, minimum=0, maximum=YEAR_SEC),
    "max_sec": partial(parsing.number, minimum=0, maximum=YEAR_SEC),
    "jitter": partial(parsing.number, minimum=0, maximum=1),
}
TEMPLATE_GATES: dict[str, Callable[[Any, Any], Any]] = {
    "name": parsing.identifier,
    "params": parsing.json_object,
    "retry_policy": retry_policy,
    **{
        name: submission.GATES[name]
        for name in ("tenant", "resource", "target", "max_runtime_sec", "token_limit", "cost_units", "tags")
    },
}


class JobTemplateForm(forms.ModelForm):
    job_type = forms.ChoiceField(label=_("Job type"))
    params = JsonField(label=_("Params"), required=False, help_text=_("Defaults; what a submission says wins."))
    retry_policy = JsonField(
        label=_("Retry policy"), required=False, help_text=_("max_attempts, base_sec, max_sec and jitter.")
    )
    tags = JsonField(label=_("Tags"), required=False)

    class Meta:
        model = JobTemplate
        fields = (
            "tenant",
            "name",
            "job_type",
            "params",
            "retry_policy",
            "priority",
            "resource",
            "target",
            "max_runtime_sec",
            "token_limit",
            "cost_units",
            "tags",
        )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if isinstance(choice := self.fields.get("job_type"), forms.ChoiceField):
            names = {*registry.names(), self.instance.job_type} - {""}
            choice.choices = [(name, name) for name in sorted(names)]

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        for name, empty in (("params", {}), ("retry_policy", {}), ("tags", [])):
            if name in cleaned and cleaned[name] is None:
                cleaned[name] = empty
        for name in list(cleaned):
            if name in TEMPLATE_GATES and cleaned[name] not in (None, ""):
                self._through(name, cleaned)
        return cleaned

    def _through(self, name: str, cleaned: dict[str, Any]) -> None:
        try:
            value = restore(cleaned[name], self.instance.params, name) if name == "params" else cleaned[name]
            cleaned[name] = TEMPLATE_GATES[name](value, name)
            if name == "params" and "job_type" in cleaned:
                _fit(cleaned["job_type"], cleaned[name])
        except InvalidInput as error:
            self.add_error(name, str(error))


def _fit(job_type: str, params: dict[str, Any]) -> None:
    """Params of a template may be incomplete, not wrong."""
    try:
        registry.get(job_type).signature.validate(params)
    except InvalidParams as error:
        wrong = [each for each in error.errors if each["type"] != "missing"]
        if wrong:
            raise InvalidParams.of(wrong) from None
