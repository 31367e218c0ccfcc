"""Job templates, which operators write here, and the validation of their form."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib.admin.utils import unquote
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.utils.translation import gettext_lazy as _

from jobs import actors, db
from jobs.admin.base import can_view_payload
from jobs.admin.columns import column
from jobs.admin.filters import JobTypeFilter
from jobs.admin.formatting import isolate_text, json_block
from jobs.admin.forms import JsonField
from jobs.admin.object_actions import ServiceBackedAdmin
from jobs.admin.screens import APP, screen_url
from jobs.errors import InvalidInput
from jobs.models import Job, JobTemplate
from jobs.redaction import restore
from jobs.registry import registry
from jobs.services import templates
from jobs.validation import fields

VALIDATORS = {**templates.VALIDATORS, "tenant": fields.parse_tenant}


class JobTemplateForm(forms.ModelForm):
    job_type = forms.ChoiceField(label=_("Job type"))
    params = JsonField(
        label=_("Params"), required=False, help_text=_("Defaults; values of a submission take precedence.")
    )
    overridable = JsonField(
        label=_("Overridable params"),
        required=False,
        help_text=_("A list of params that a run may set. By default all, or none if the template contains a secret."),
    )
    retry_policy = JsonField(
        label=_("Retry policy"), required=False, help_text=_("max_attempts, base_sec, backoff, max_sec and jitter.")
    )
    tags = JsonField(label=_("Tags"), required=False)

    class Meta:
        model = JobTemplate
        fields = (
            *("tenant", "name", "job_type", "params", "overridable", "retry_policy", "priority", "resource"),
            *("target", "max_runtime_sec", "token_limit", "cost_units", "tags"),
        )

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if isinstance(choice := self.fields.get("job_type"), forms.ChoiceField):
            names = {*registry.names(), self.instance.job_type} - {""}
            choice.choices = [(name, name) for name in sorted(names)]

    def clean(self) -> dict[str, Any]:
        cleaned = super().clean() or self.cleaned_data
        for name, make_empty in templates.EMPTY_VALUES.items():
            if name in cleaned and cleaned[name] is None:
                cleaned[name] = make_empty()
        # A field that the user's page does not show is not saved, even if it was posted.
        changes = {name: value for name, value in cleaned.items() if name in (self._meta.fields or ())}
        try:
            known_params = templates.get_known_params(self.instance, changes)
        except InvalidInput as error:
            self.add_error(None, str(error))
            return cleaned
        for name in list(cleaned):
            if name not in VALIDATORS or cleaned[name] in (None, ""):
                continue
            try:
                value = restore(cleaned[name], known_params, name) if name == "params" else cleaned[name]
                cleaned[name] = VALIDATORS[name](value, name)
                if name == "params" and "job_type" in cleaned:
                    templates.validate_params(cleaned["job_type"], cleaned[name])
            except InvalidInput as error:
                self.add_error(name, str(error))
        return cleaned


class JobTemplateAdmin(ServiceBackedAdmin):
    form = JobTemplateForm
    delete_service = staticmethod(templates.delete)
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
            (_("Job"), {"fields": ("tenant", "name", "job_type", *params, "overridable")}),
            (_("Order and retries"), {"fields": ("priority", "target", "max_runtime_sec", "retry_policy")}),
            (_("Resources"), {"fields": ("resource", "cost_units", "token_limit", "tags")}),
        ]

    def save_model(self, request: HttpRequest, obj: JobTemplate, form: Any, change: bool) -> None:
        shown = set(form._meta.fields or ()) & form.cleaned_data.keys()  # a field that the page hides may be posted
        names = [name for name in templates.VALIDATORS if name in shown and (not change or name in form.changed_data)]
        values = {name: form.cleaned_data[name] for name in names}
        values = {name: None if value == "" else value for name, value in values.items()}
        actor = actors.make_user_actor(request.user)
        if change:
            templates.update(obj.pk, values, actor=actor)
        else:
            obj.pk = templates.create(values, tenant=form.cleaned_data["tenant"], actor=actor).pk
        obj.refresh_from_db(using=db.alias())

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        template = self.get_object(request, unquote(object_id))
        can_run = request.user.has_perm(f"{APP}.run_jobtemplate") and self.admin_site.is_registered(Job)
        run_url = screen_url(self.admin_site, "template-run", template.pk) if template is not None and can_run else ""
        return super().change_view(request, object_id, form_url, {"run_url": run_url, **(extra_context or {})})
