"""What a rule would do, before it is saved: in words, and its next due times with a note where clocks change."""

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
from schedules.describe import in_words
from schedules.history import Upcoming
from schedules.models import Schedule

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
    """Preview a form that is not complete yet."""
    form = RuleForm(data)
    if not form.is_valid():
        return Preview(problem=" ".join(f"{name}: {' '.join(map(str, told))}" for name, told in form.errors.items()))
    said = {name: value for name, value in form.cleaned_data.items() if value not in (None, "")}
    if len([name for name in RULES if name in said]) != 1:
        return Preview(problem=_("Say exactly one of a cron expression, an interval and a single time."))
    try:
        if "every_sec" in said:
            said["every_sec"] = int(said["every_sec"])
        else:
            said.pop("anchor_at", None)
        clean = {"timezone": "UTC", **validation.clean(said, {})}
        return of_schedule(Schedule(enabled=False, created_at=clock.now(), **clean))
    except (JobSchedulerError, ValueError) as error:
        return Preview(problem=str(error))


def of_schedule(schedule: Schedule, count: int = SHOWN) -> Preview:
    """Raises Broken for a row that makes no sense."""
    return Preview(in_words(schedule), schedule.timezone, "", history.of_schedule(schedule, count))


class Previewing(ConsoleAdmin):
    class Media:
        js = ("schedules/preview.js",)

    def preview_view(self, request: HttpRequest) -> HttpResponse:
        """Changes nothing. The button posts the form as it stands, the script asks with the rule's fields only."""
        if not (self.has_view_or_change_permission(request) or self.has_add_permission(request)):
            raise PermissionDenied
        typed = request.POST if request.method == "POST" else request.GET
        context = {"preview": of_form(typed)}
        if "fragment" in request.GET:
            return TemplateResponse(request, "schedules/preview.html", context)
        shown = {**self.admin_site.each_context(request), "title": _("Next fires"), "opts": self.opts}
        return TemplateResponse(request, "schedules/preview_page.html", {**shown, **context})

    def get_urls(self) -> list[URLPattern]:
        guarded = csrf_protect(require_http_methods(["GET", "HEAD", "POST"])(self.preview_view))
        view = self.admin_site.admin_view(guarded)
        return [path("preview/", view, name=f"{self.opts.app_label}_schedule_preview"), *super().get_urls()]

    def render_change_form(self, request: HttpRequest, context: Any, *args: Any, **kwargs: Any) -> Any:
        obj = context.get("original")
        may_write = self.has_add_permission(request) if obj is None else self.has_change_permission(request, obj)
        if may_write:
            name = f"admin:{self.opts.app_label}_schedule_preview"
            context["preview_url"] = reverse(name, current_app=self.admin_site.name)
        return super().render_change_form(request, context, *args, **kwargs)
