"""The strictest policy that stock admin pages keep; every page of the suite is served with it."""

from __future__ import annotations

from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

POLICY = "default-src 'self'; script-src 'self'; style-src 'self'; img-src 'self' data:"


def strict(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    def middleware(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        if request.path.startswith("/admin/"):
            response["Content-Security-Policy"] = POLICY
        return response

    return middleware
