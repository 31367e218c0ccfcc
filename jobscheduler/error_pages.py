"""The pages of the standalone site for requests that failed: 400, 403, 404 and 500, in the frame of the admin."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.http import HttpRequest, HttpResponse
from django.template.loader import render_to_string
from django.urls import reverse
from django.utils.translation import gettext as _


def bad_request(request: HttpRequest, exception: Exception) -> HttpResponse:
    return _render(request, 400, _("Bad request"), _("The address or the form contains a value that is not allowed."))


def permission_denied(request: HttpRequest, exception: Exception) -> HttpResponse:
    return _render(request, 403, _("Not allowed"), _("Your account does not have the permission for this page."))


def csrf_failure(request: HttpRequest, reason: str = "") -> HttpResponse:
    sentence = _("The form has expired, or cookies are blocked: reload its page and send it again.")
    return _render(request, 403, _("Not allowed"), sentence)


def page_not_found(request: HttpRequest, exception: Exception) -> HttpResponse:
    return _render(request, 404, _("Page not found"), _("There is no page at this address."))


def server_error(request: HttpRequest) -> HttpResponse:
    # The database may be the cause, so neither the session nor the navigation is read.
    return _render(None, 500, _("Server error"), _("The request failed; the log of the web process has the reason."))


def _render(request: HttpRequest | None, status: int, title: str, sentence: str) -> HttpResponse:
    has_session = request is not None and hasattr(request, "user")  # missing if a middleware before it refused
    context: dict[str, Any] = {
        **(admin.site.each_context(request) if request is not None and has_session else {}),
        "title": title,
        "sentence": sentence,
        "overview_url": reverse("admin:jobscheduler_jobs_overview"),
        "jobs_url": reverse("admin:jobscheduler_jobs_job_changelist"),
    }
    html = render_to_string("jobscheduler/error.html", context, request if has_session else None)
    return HttpResponse(html, status=status)
