"""The page behind the Preview button, and the same as a fragment for the panel that follows what is typed."""

from __future__ import annotations

from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.translation import gettext as _
from django.views.decorators.csrf import csrf_protect
from django.views.decorators.http import require_http_methods

from jobs.admin.reading import LeanAdmin
from schedules.admin import preview


class Previewing(LeanAdmin):
    class Media:
        js = ("schedules/preview.js",)

    def preview_view(self, request: HttpRequest) -> HttpResponse:
        """Changes nothing. The button posts the form as it stands, the script asks with the rule's fields only."""
        if not (self.has_view_or_change_permission(request) or self.has_add_permission(request)):
            raise PermissionDenied
        typed = request.POST if request.method == "POST" else request.GET
        context = {"preview": preview.of_form(typed)}
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
