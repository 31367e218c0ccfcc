"""Form fields that several pages share, and form fields built from a handler's signature."""

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

PARAM_PREFIX = "param-"  # a parameter may have the name of a field of the submission
EXTRA_PARAMS = "more_params"
MAX_LENGTH = 1_000_000


def validate_with(validator: Callable[..., Any], value: Any, *field: str) -> Any:
    """Return the value as the API's validator parses it. Raise ValidationError if the validator rejects it."""
    try:
        return validator(value, *field)
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
    dry_run = forms.BooleanField(label=_("Preview only"), required=False)


class JsonField(forms.Field):
    """JSON as text, read by the strict parser of the API. Django's field fails on deep nesting and long numbers."""

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
    """Text with the line ends as they were stored; browsers send CRLF."""

    def to_python(self, value: Any) -> Any:
        return super().to_python(value.replace("\r\n", "\n") if isinstance(value, str) else value)


def build_param_fields(handler: Handler[..., Any], preset: Mapping[str, Any] | None = None) -> dict[str, forms.Field]:
    """Return a field for each parameter, in order; `preset` has the initial values, as far as the user may see them."""
    schema = handler.signature.get_schema()
    required = set(schema.get("required", ()))
    initial = preset or {}
    param_fields: dict[str, forms.Field] = {}
    for name, described in schema.get("properties", {}).items():
        reference = described.get("$ref", "").removeprefix("#/$defs/")  # of an enum class
        resolved = {**schema.get("$defs", {}).get(reference, {}), **described}
        is_required = name in required and name not in initial
        param_fields[PARAM_PREFIX + name] = _build_field(name, resolved, is_required, initial)
    if schema.get("additionalProperties", False) is not False:
        param_fields[EXTRA_PARAMS] = forms.CharField(
            label=gettext("Further params"),
            required=False,
            max_length=MAX_LENGTH,
            widget=AdminTextareaWidget(attrs={"rows": 3}),
            help_text=gettext("An object in JSON: this job type takes params of any name."),
        )
    return param_fields


def parse_params(handler: Handler[..., Any], form: forms.BaseForm, preset: Mapping[str, Any]) -> dict[str, Any]:
    """Return the params of the changed fields. Raise InvalidInput for bad JSON.

    A masked secret within a changed field is restored from `preset`, if nothing else differs from it.
    """
    changed = {
        name.removeprefix(PARAM_PREFIX): form.cleaned_data[name]
        for name in form.fields
        if name.startswith(PARAM_PREFIX) and name in form.changed_data and form.cleaned_data.get(name) not in (None, "")
    }
    extra_text = form.cleaned_data.get(EXTRA_PARAMS) or "{}"
    extra = fields.parse_json_object(fields.decode_json(extra_text, EXTRA_PARAMS), EXTRA_PARAMS)
    params = {**extra, **handler.signature.coerce_text(changed)}
    restored = restore({**preset, **params}, preset, "params")
    return {name: restored[name] for name in params}


def add_errors(form: forms.BaseForm, error: JobSchedulerError) -> None:
    """Add each problem to the field that it is about, or to the form if there is no such field."""
    if not isinstance(error, InvalidInput):
        form.add_error(None, str(error))
        return
    for problem in error.errors:
        loc = [str(step) for step in problem["loc"]]
        name, rest = (loc[0], loc[1:]) if loc else ("", [])
        if name == "params" and rest and PARAM_PREFIX + rest[0] in form.fields:
            name, rest = PARAM_PREFIX + rest[0], rest[1:]
        field = name if name in form.fields else None
        path = rest if field else loc
        form.add_error(field, f"{'.'.join(path)}: {problem['msg']}" if path else problem["msg"])


def _build_field(name: str, schema: dict[str, Any], required: bool, initial: Mapping[str, Any]) -> forms.Field:
    common: dict[str, Any] = {
        "label": name,
        "required": required,
        "initial": _to_text(initial[name]) if name in initial else None,
        "help_text": _build_help_text(schema),
    }
    kind = schema.get("type")
    values = schema.get("enum") or ([schema["const"]] if "const" in schema else None)
    choices = [(_to_text(value), _to_text(value)) for value in values or ()]
    if kind == "boolean":
        choices = [("true", gettext("Yes")), ("false", gettext("No"))]
    if choices:
        return forms.ChoiceField(choices=[("", "---------"), *choices], **common)
    if kind in ("integer", "number"):
        return forms.CharField(max_length=400, widget=AdminTextInputWidget(attrs={"inputmode": "decimal"}), **common)
    if kind == "string" and schema.get("maxLength", 1000) <= 200:
        return TextField(max_length=MAX_LENGTH, strip=False, widget=AdminTextInputWidget, **common)
    rows = 2 if kind == "string" else 3
    return TextField(max_length=MAX_LENGTH, strip=False, widget=AdminTextareaWidget(attrs={"rows": rows}), **common)


def _build_help_text(schema: dict[str, Any]) -> str:
    """Describe the type, the bounds and the default of a parameter."""
    alternatives = [schema, *schema.get("anyOf", ())]
    types = [str(part.get("format") or part["type"]) for part in alternatives if part.get("type")]
    bounds = (("minimum", "≥"), ("exclusiveMinimum", ">"), ("maximum", "≤"), ("exclusiveMaximum", "<"))
    limits = [f"{sign} {schema[bound]}" for bound, sign in bounds if bound in schema]
    sentences = [", ".join([" | ".join(types), *limits]) if types else gettext("JSON, or plain text")]
    if schema.get("description"):
        sentences.insert(0, str(schema["description"]))
    if "default" in schema:
        sentences.append(gettext("Default: %s") % _to_text(schema["default"])[:200])
    return ". ".join(sentence for sentence in sentences if sentence)


def _to_text(value: Any) -> str:
    if isinstance(value, str):
        return value
    return format_json(value) if isinstance(value, dict | list) else json.dumps(value)
