"""Preview a rule before it is saved: a description, and its next due times with notes on clock changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from django import forms
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext as _
from django.views.decorators.csrf import csrf_protect
from django.views.decorators.http import require_http_methods

from jobs import clock
from jobs.admin.base import ConsoleAdmin
from jobs.errors import JobSchedulerError
from schedules import history, validation
from schedules.describe import describe_rule
from schedules.models import Schedule

RULE_FIELDS = ("cron", "every_sec", "run_at")


class RuleForm(forms.Form):
    """The fields of a schedule's form that decide when it is due. Other fields of the request are ignored."""

    cron = forms.CharField(required=False, max_length=1000)
    timezone = forms.CharField(required=False, max_length=1000)
    every_sec = forms.CharField(required=False, max_length=100)
    anchor_at = forms.SplitDateTimeField(required=False)
    run_at = forms.SplitDateTimeField(required=False)


@dataclass(frozen=True)
class RulePreview:
    """A described rule and its next due times, or the problem with it."""

    description: str = ""
    zone: str = ""
    problem: str = ""
    upcoming: list[history.UpcomingFire] = field(default_factory=list)


def preview_form(data: Any) -> RulePreview:
    """Preview a form that is not complete yet."""
    form = RuleForm(data)
    if not form.is_valid():
        errors = (f"{name}: {' '.join(map(str, messages))}" for name, messages in form.errors.items())
        return RulePreview(problem=" ".join(errors))
    fields = {name: value for name, value in form.cleaned_data.items() if value not in (None, "")}
    if len([name for name in RULE_FIELDS if name in fields]) != 1:
        return RulePreview(problem=_("Say exactly one of a cron expression, an interval and a single time."))
    try:
        if "every_sec" in fields:
            fields["every_sec"] = int(fields["every_sec"])
        else:
            fields.pop("anchor_at", None)
        cleaned = {"timezone": "UTC", **validation.clean_fields(fields, {})}
        return preview_schedule(Schedule(enabled=False, created_at=clock.now(), **cleaned))
    except (JobSchedulerError, ValueError) as error:
        return RulePreview(problem=str(error))


def preview_schedule(schedule: Schedule, count: int = history.DEFAULT_COUNT) -> RulePreview:
    """Preview the rule of a schedule; raise BrokenSchedule for an invalid row."""
    return RulePreview(describe_rule(schedule), schedule.timezone, "", history.preview_schedule(schedule, count))


class PreviewAdmin(ConsoleAdmin):
    """Adds the preview of the rule to a schedule's form."""

    class Media:
        js = ("schedules/preview.js",)

    def preview_view(self, request: HttpRequest) -> HttpResponse:
        """Return the preview: the button posts the whole form, the script sends the rule's fields by GET."""
        if not (self.has_view_or_change_permission(request) or self.has_add_permission(request)):
            raise PermissionDenied
        data = request.POST if request.method == "POST" else request.GET
        context = {"preview": preview_form(data)}
        if "fragment" in request.GET:
            return TemplateResponse(request, "schedules/preview.html", context)
        page = {**self.admin_site.each_context(request), "title": _("Next fires"), "opts": self.opts}
        return TemplateResponse(request, "schedules/preview_page.html", {**page, **context})

    def get_urls(self) -> list[URLPattern]:
        protected = csrf_protect(require_http_methods(["GET", "HEAD", "POST"])(self.preview_view))
        view = self.admin_site.admin_view(protected)
        return [path("preview/", view, name=f"{self.opts.app_label}_schedule_preview"), *super().get_urls()]

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> Any:
        obj = context.get("original")
        can_edit = self.has_add_permission(request) if obj is None else self.has_change_permission(request, obj)
        if can_edit:
            name = f"admin:{self.opts.app_label}_schedule_preview"
            context["preview_url"] = reverse(name, current_app=self.admin_site.name)
        return super().render_change_form(request, context, *args, **kwargs)
