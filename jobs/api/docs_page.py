"""The documentation page of the API, made of files that are installed with django-ninja.

Nothing is loaded from another host, whether or not "ninja" is in INSTALLED_APPS. Swagger UI (Apache License 2.0) is
part of django-ninja (MIT License).
"""

from __future__ import annotations

from pathlib import Path

import ninja
from django.http import FileResponse, HttpRequest, HttpResponse, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.urls import NoReverseMatch, reverse
from django.utils.http import urlencode
from django.utils.translation import gettext as _
from django.views.static import serve

from jobs.api.auth import build_authenticators
from jobs.api.problems import Unauthorized
from jobs.services.permissions import build_requirement

ASSETS_DIR = Path(ninja.__file__).parent / "static" / "ninja"
ASSETS = {
    "icon": "favicon.svg",
    "style": "swagger-ui.css",
    "bundle": "swagger-ui-bundle.js",
    "start": "swagger-ui-init.js",
}
ASSET_AGE_SEC = 3600


def show_docs(request: HttpRequest, title: str, prefix: str) -> HttpResponseBase:
    """Return the page to a caller with the scope `read`; `prefix` is the path of the API.

    A browser without a session is sent to the log-in of the admin, if the site has one at the usual name.
    """
    if not any(authenticate(request) is not None for authenticate in build_authenticators(build_requirement("read"))):
        if request.accepts("text/html") and (login_url := _find_login_url()):
            return HttpResponseRedirect(f"{login_url}?{urlencode({'next': request.get_full_path()})}")
        raise Unauthorized(_("Send a token as “Authorization: Bearer …”, or sign in to the console."))
    context = {
        "title": title,
        "assets": {key: f"{prefix}docs/{name}" for key, name in ASSETS.items()},
        "swagger_settings": {"layout": "BaseLayout", "deepLinking": True, "url": f"{prefix}openapi.json"},
    }
    response = render(request, "jobs/api_docs.html", context)
    response["Cache-Control"] = "no-store"  # it has the CSRF token of the session
    return response


def send_asset(request: HttpRequest, name: str) -> FileResponse | HttpResponse:
    """Return one of ASSETS, which are the same in every site."""
    response: FileResponse | HttpResponse = serve(request, name, document_root=str(ASSETS_DIR))
    response["Cache-Control"] = f"public, max-age={ASSET_AGE_SEC}"
    return response


def _find_login_url() -> str | None:
    try:
        return reverse("admin:login")
    except NoReverseMatch:
        return None
