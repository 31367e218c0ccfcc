"""Form fields that several screens use, and those for a handler's parameters, made of its own signature."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from django import forms
from django.contrib.admin.helpers import ActionForm
from django.contrib.admin.widgets import AdminTextareaWidget, AdminTextInputWidget
from django.core.exceptions import ValidationError
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobs.admin.formatting import format_json
from jobs.errors import InvalidInput, JobSchedulerError
from jobs.redaction import redact, restore
from jobs.registry import Handler
from jobs.services.jobs import REASON_LENGTH
from jobs.validation import fields

PARAM_PREFIX = "param-"  # a parameter may have any name, also that of a field of ours
EXTRA_PARAMS = "more_params"
MAX_LENGTH = 1_000_000


def validate_with(gate: Callable[..., Any], value: Any, *field: str) -> Any:
    """What the API's gate makes of a value; what it refuses is an error of the form."""
    try:
        return gate(value, *field)
    except InvalidInput as error:
        raise ValidationError(error.errors[0]["msg"]) from None


def text_field(label: Any, help_text: Any = "", length: int = 255, initial: str | None = None) -> forms.CharField:
    widget = AdminTextInputWidget()
    return forms.CharField(
        label=label, required=False, initial=initial, max_length=length, help_text=help_text, widget=widget
    )


def reason_field() -> forms.CharField:
    widget = AdminTextareaWidget(attrs={"rows": 2})
    return forms.CharField(label=_("Reason"), required=False, max_length=REASON_LENGTH, widget=widget)


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
        return value if isinstance(value, str) else format_json(value)

    def has_changed(self, initial: Any, data: Any) -> bool:
        return super().has_changed(redact(initial), data)

    def to_python(self, value: Any) -> Any:
        if value in self.empty_values:
            return None
        return validate_with(lambda text: fields.parse_json_value(fields.decode_json(text, "json"), "json"), value)


class TextField(forms.CharField):
    """Lines end as they were shown; a browser would send them with another end."""

    def to_python(self, value: Any) -> Any:
        return super().to_python(value.replace("\r\n", "\n") if isinstance(value, str) else value)


def build_param_fields(handler: Handler[..., Any], preset: Mapping[str, Any] | None = None) -> dict[str, forms.Field]:
    """A field for each parameter, in their order; `preset` is what a template says, as this person may see it."""
    schema = handler.signature.schema()
    required = set(schema.get("required", ()))
    shown = preset or {}
    made: dict[str, forms.Field] = {}
    for name, described in schema.get("properties", {}).items():
        reference = described.get("$ref", "").removeprefix("#/$defs/")  # an enum class stands behind one
        resolved = {**schema.get("$defs", {}).get(reference, {}), **described}
        made[PARAM_PREFIX + name] = _build_field(name, resolved, name in required and name not in shown, shown)
    if schema.get("additionalProperties", False) is not False:
        made[EXTRA_PARAMS] = forms.CharField(
            label=gettext("Further params"),
            required=False,
            max_length=MAX_LENGTH,
            widget=AdminTextareaWidget(attrs={"rows": 3}),
            help_text=gettext("An object in JSON: this job type takes params of any name."),
        )
    return made


def parse_params(handler: Handler[..., Any], form: forms.BaseForm, preset: Mapping[str, Any]) -> dict[str, Any]:
    """The params that were typed. A field that stands as it stood says nothing; a mask in one that does not is still
    what it hides in `preset`. InvalidInput for bad JSON."""
    written = {
        name.removeprefix(PARAM_PREFIX): form.cleaned_data[name]
        for name in form.fields
        if name.startswith(PARAM_PREFIX) and name in form.changed_data and form.cleaned_data.get(name) not in (None, "")
    }
    more = form.cleaned_data.get(EXTRA_PARAMS) or "{}"
    further = fields.parse_json_object(fields.decode_json(more, EXTRA_PARAMS), EXTRA_PARAMS)
    typed = {**further, **handler.signature.coerce_text(written)}
    restored: dict[str, Any] = restore(typed, preset, "params")
    return restored


def add_errors(form: forms.BaseForm, error: JobSchedulerError) -> None:
    """Each thing that is wrong beside the field that it is about; what is about none of them, above them all."""
    if not isinstance(error, InvalidInput):
        form.add_error(None, str(error))
        return
    for each in error.errors:
        place = [str(step) for step in each["loc"]]
        name, rest = (place[0], place[1:]) if place else ("", [])
        if name == "params" and rest:
            name, rest = PARAM_PREFIX + rest[0], rest[1:]
        where = name if name in form.fields else None
        before = rest if where else place
        form.add_error(where, f"{'.'.join(before)}: {each['msg']}" if before else each["msg"])


def _build_field(name: str, schema: dict[str, Any], required: bool, shown: Mapping[str, Any]) -> forms.Field:
    told: dict[str, Any] = {
        "label": name,
        "required": required,
        "initial": _to_text(shown[name]) if name in shown else None,
        "help_text": _build_help_text(schema),
    }
    kind = schema.get("type")
    values = schema.get("enum") or ([schema["const"]] if "const" in schema else None)
    choices = [(_to_text(value), _to_text(value)) for value in values or ()]
    if kind == "boolean":
        choices = [("true", gettext("Yes")), ("false", gettext("No"))]
    if choices:
        return forms.ChoiceField(choices=[("", "---------"), *choices], **told)
    if kind in ("integer", "number"):
        return forms.CharField(max_length=400, widget=AdminTextInputWidget(attrs={"inputmode": "decimal"}), **told)
    if kind == "string" and schema.get("maxLength", 1000) <= 200:
        return TextField(max_length=MAX_LENGTH, strip=False, widget=AdminTextInputWidget, **told)
    rows = 2 if kind == "string" else 3
    return TextField(max_length=MAX_LENGTH, strip=False, widget=AdminTextareaWidget(attrs={"rows": rows}), **told)


def _build_help_text(schema: dict[str, Any]) -> str:
    """What kind of value it takes, and what it is without one."""
    kinds = [schema, *schema.get("anyOf", ())]
    named = [str(each.get("format") or each["type"]) for each in kinds if each.get("type")]
    bounds = (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))
    limits = [f"{sign} {schema[bound]}" for bound, sign in bounds if bound in schema]
    told = [", ".join([" | ".join(named), *limits]) if named else gettext("JSON, or plain text")]
    if schema.get("description"):
        told.insert(0, str(schema["description"]))
    if "default" in schema:
        told.append(gettext("Empty: %s") % _to_text(schema["default"])[:200])
    return ". ".join(each for each in told if each)


def _to_text(value: Any) -> str:
    return (
        value
        if isinstance(value, str)
        else (format_json(value) if isinstance(value, dict | list) else json.dumps(value))
    )
