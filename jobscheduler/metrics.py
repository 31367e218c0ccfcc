"""`/metrics` for Prometheus: open if the settings say so, else for whoever may read."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from django.utils.cache import patch_vary_headers
from django.utils.translation import gettext as _
from django.views.decorators.cache import never_cache

from jobs import metrics
from jobs.api.auth import needs
from jobs.api.problems import MethodNotAllowed, Unauthorized, answer_to
from jobs.conf import conf
from jobs.db import non_atomic


@non_atomic
@never_cache
def scrape(request: HttpRequest) -> HttpResponse:
    try:
        response = HttpResponse(metrics.render(_tenant(request)), content_type=metrics.CONTENT_TYPE)
    except Exception as error:  # noqa: BLE001  whatever it is, the answer is a problem document
        response = answer_to(request, error)
    patch_vary_headers(response, ["Authorization", "X-API-Key", "Cookie"])
    return response


def _tenant(request: HttpRequest) -> str | None:
    """Whose jobs the caller may know of; None is everybody's."""
    if request.method not in ("GET", "HEAD"):
        raise MethodNotAllowed("GET, HEAD")
    if conf.METRICS_PUBLIC:
        return None
    for authenticate in needs("read"):
        caller = authenticate(request)
        if caller is not None:
            tenant: str | None = caller.tenant
            return tenant
    raise Unauthorized(_("Send a token as “Authorization: Bearer …”, or sign in to the console."))
