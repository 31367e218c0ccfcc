"""Templates: presets that operators write here."""

from __future__ import annotations

from typing import Any

from django.contrib.admin.utils import unquote
from django.db.models import Model
from django.http import HttpRequest, HttpResponse
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from jobs.admin.enqueueing import run_url
from jobs.admin.filters import JobTypeFilter
from jobs.admin.forms import JobTemplateForm
from jobs.admin.reading import LeanAdmin, may_view_payload
from jobs.admin.showing import isolated, json_block, shown
from jobs.models import JobTemplate


class JobTemplateAdmin(LeanAdmin):
    form = JobTemplateForm
    change_form_template = "jobs/template_page.html"
    list_display = ("shown_name", "tenant", "job_type", "priority", "resource", "created_at")
    list_filter = (JobTypeFilter,)
    list_defer = ("params", "retry_policy", "tags")
    ordering = ("tenant", "name")
    name_field = "name"
    qualifiers = {"type": "job_type", "tenant": "tenant", "resource": "resource"}

    def get_fieldsets(self, request: HttpRequest, obj: Model | None = None) -> list[Any]:
        return [
            (_("What"), {"fields": ("tenant", "name", "job_type", *self._params(request, obj))}),
            (_("When"), {"fields": ("priority", "target", "max_runtime_sec", "retry_policy")}),
            (_("How much"), {"fields": ("resource", "cost_units", "token_limit", "tags")}),
        ]

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        template = self.get_object(request, unquote(object_id))
        more = {} if template is None else {"run_url": run_url(self, request, template)}
        return super().change_view(request, object_id, form_url, {**more, **(extra_context or {})})

    @shown(_("name"))
    def shown_name(self, template: JobTemplate) -> SafeString:
        return isolated(template.name)

    @shown(_("params"))
    def shown_params(self, template: JobTemplate) -> SafeString | None:
        return json_block(template.params)

    def _params(self, request: HttpRequest, template: Model | None) -> tuple[str, ...]:
        """Params that somebody may not see, that one may not overwrite either."""
        if template is not None and not may_view_payload(request):
            return ()
        may_edit = template is None or self.has_change_permission(request, template)
        return ("params",) if may_edit else ("shown_params",)
