"""Job templates, which operators write here, and the validation of their form."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from django import forms
from django.contrib.admin.utils import unquote
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext as _now
from django.utils.translation import gettext_lazy as _

from jobs.admin.base import ConsoleAdmin, can_view_payload
from jobs.admin.filters import JobTypeFilter
from jobs.admin.formatting import column, isolate_text, json_block
from jobs.admin.forms import JsonField
from jobs.admin.screens import APP, screen_url
from jobs.conf.rules import YEAR_SEC
from jobs.errors import InvalidInput, InvalidParams
from jobs.models import Job, JobTemplate
from jobs.redaction import restore
from jobs.registry import registry
from jobs.services import job_spec
from jobs.validation import fields as validation


def validate_retry_policy(value: Any, field: str) -> dict[str, Any]:
    """Return the retry policy of a template. Raise InvalidInput for an unknown name or a bad value."""
    policy = validation.parse_json_object(value, field)
    for name, given in policy.items():
        if name not in RETRY_VALIDATORS:
            raise InvalidInput([field, name], _now("is not one of %s") % ", ".join(RETRY_VALIDATORS), "extra_forbidden")
        RETRY_VALIDATORS[name](given, [field, name])
    return policy


RETRY_VALIDATORS: dict[str, Callable[[Any, Any], Any]] = {
    "max_attempts": partial(validation.parse_integer, minimum=0, maximum=1000),
    "base_sec": partial(validation.parse_number, minimum=0, maximum=YEAR_SEC),
    "max_sec": partial(validation.parse_number, minimum=0, maximum=YEAR_SEC),
    "jitter": partial(validation.parse_number, minimum=0, maximum=1),
}
TEMPLATE_VALIDATORS: dict[str, Callable[[Any, Any], Any]] = {
    "name": validation.parse_identifier,
    "params": validation.parse_json_object,
    "retry_policy": validate_retry_policy,
    **{
        name: job_spec.VALIDATORS[name]
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
            *("tenant", "name", "job_type", "params", "retry_policy", "priority", "resource", "target"),
            *("max_runtime_sec", "token_limit", "cost_units", "tags"),
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
            if name not in TEMPLATE_VALIDATORS or cleaned[name] in (None, ""):
                continue
            try:
                value = restore(cleaned[name], self.instance.params, name) if name == "params" else cleaned[name]
                cleaned[name] = TEMPLATE_VALIDATORS[name](value, name)
                if name == "params" and "job_type" in cleaned:
                    _check_params(cleaned["job_type"], cleaned[name])
            except InvalidInput as error:
                self.add_error(name, str(error))
        return cleaned


def _check_params(job_type: str, params: dict[str, Any]) -> None:
    """Raise InvalidParams for wrong params; missing ones are allowed in a template."""
    try:
        registry.get(job_type).signature.validate(params)
    except InvalidParams as error:
        wrong = [problem for problem in error.errors if problem["type"] != "missing"]
        if wrong:
            raise InvalidParams.from_errors(wrong) from None


class JobTemplateAdmin(ConsoleAdmin):
    form = JobTemplateForm
    change_form_template = "jobs/template_page.html"
    list_display = ("shown_name", "tenant", "job_type", "priority", "resource", "created_at")
    list_filter = (JobTypeFilter,)
    list_defer = ("params", "retry_policy", "tags")
    ordering = ("tenant", "name")
    name_field = "name"
    qualifiers = {"type": "job_type", "tenant": "tenant", "resource": "resource"}

    shown_name = column(_("name"), "name", isolate_text)
    shown_params = column(_("params"), "params", json_block)

    def get_fieldsets(self, request: HttpRequest, obj: Model | None = None) -> list[Any]:
        can_edit = obj is None or self.has_change_permission(request, obj)
        params: tuple[str, ...] = ("params",) if can_edit else ("shown_params",)
        if obj is not None and not can_view_payload(request):
            params = ()  # editing params requires the permission to view them
        return [
            (_("What"), {"fields": ("tenant", "name", "job_type", *params)}),
            (_("When"), {"fields": ("priority", "target", "max_runtime_sec", "retry_policy")}),
            (_("How much"), {"fields": ("resource", "cost_units", "token_limit", "tags")}),
        ]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        template = self.get_object(request, unquote(object_id))
        can_run = request.user.has_perm(f"{APP}.run_jobtemplate") and self.admin_site.is_registered(Job)
        run_url = screen_url(self.admin_site, "template-run", template.pk) if template is not None and can_run else ""
        return super().change_view(request, object_id, form_url, {"run_url": run_url, **(extra_context or {})})
