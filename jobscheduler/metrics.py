"""Serve `/metrics` to Prometheus: to every caller if METRICS_PUBLIC, else to callers with the scope `read`."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.utils.cache import patch_vary_headers
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache

from jobs import metrics
from jobs.api.auth import build_authenticators
from jobs.api.problems import MethodNotAllowed, Unauthorized, error_response
from jobs.conf import conf
from jobs.db import non_atomic
from jobs.services.permissions import build_requirement

OPENMETRICS_VERSION = "1.0.0"


@non_atomic
@never_cache
def scrape(request: HttpRequest) -> HttpResponse:
    try:
        rendered = metrics.render(_get_tenant(request), as_openmetrics=_prefers_openmetrics(request))
        response = HttpResponse(rendered.body, content_type=rendered.content_type)
    except Exception as error:  # noqa: BLE001  every error becomes a problem document
        response = error_response(request, error)
    patch_vary_headers(response, ["Accept", "Authorization", "X-API-Key", "Cookie"])
    return response


def _prefers_openmetrics(request: HttpRequest) -> bool:
    """Compare the accepted types, best first. A request that names neither gets the text format."""
    for accepted in request.accepted_types:
        media_type = f"{accepted.main_type}/{accepted.sub_type}"
        if media_type == "application/openmetrics-text":
            if accepted.params.get("version", OPENMETRICS_VERSION) == OPENMETRICS_VERSION:
                return True
        elif media_type in ("text/plain", "text/*", "*/*"):
            return False
    return False


def _get_tenant(request: HttpRequest) -> str | None:
    """Return the tenant whose jobs the principal may see; None is every tenant."""
    if request.method not in ("GET", "HEAD"):
        raise MethodNotAllowed("GET, HEAD")
    if conf.METRICS_PUBLIC:
        return None
    for authenticate in build_authenticators(build_requirement("read")):
        principal = authenticate(request)
        if principal is not None:
            tenant: str | None = principal.tenant
            return tenant
    raise Unauthorized(_("Send a token as “Authorization: Bearer …”, or sign in to the console."))
