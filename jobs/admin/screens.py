"""Screens: pages of the console that are no model's list, on any AdminSite that shows jobs; and live refresh.

To add a screen, write a view `(admin, request, **route_arguments) -> HttpResponse`, decorate it and return `render(…)`.
Import its module in `jobs/admin/__init__.py` (or in the `admin` package of another app).

    @screen("busy-workers", _("Busy workers"), permission="jobscheduler_jobs.view_worker")
    def busy_workers(admin: ModelAdmin, request: HttpRequest) -> HttpResponse:
        context = {"workers": ...}
        return render(admin, request, "jobs/console/busy_workers.html", context, version=latest_event_id())

Its template extends `jobs/console/base.html` and fills the block `console`. Its URL is `screen_url(site, name)`, below
`scheduler/` of the site. It is listed in the navigation under Insight, or under another `group` of
`jobs/admin/navigation.py`, unless `listed=False`. Elements with `data-live="some-name"` are refreshed if a `version` is
given: the browser requests the page again and gets a 304 while the version and the minute of the clock (for ages such
as "3 min ago") are the same. A form that changes something is a plain POST with a CSRF token to a screen with
`methods=("POST",)`.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.contrib.admin import AdminSite, ModelAdmin
from django.core.exceptions import PermissionDenied
from django.db.models import Max
from django.http import (
    HttpRequest,
    HttpResponse,
    HttpResponseNotAllowed,
    HttpResponseNotModified,
    HttpResponsePermanentRedirect,
)
from django.template.response import TemplateResponse
from django.urls import URLPattern, path, reverse
from django.utils.functional import Promise

from jobs import db
from jobs.models import Activity, Job, JobEvent

APP = Job._meta.app_label
VIEW_JOBS = f"{APP}.view_job"
View = Callable[..., HttpResponse]
LIVE_HEADER = "X-Jobs-Live"  # sent by the script that refreshes a page


@dataclass(frozen=True)
class Screen:
    """`route` is relative to `scheduler/` of the site; `permission` is required beside a login.

    A route that begins with the id of a job is relative to the job list.
    """

    name: str
    title: Promise | str
    view: View
    permission: str
    route: str
    methods: tuple[str, ...]
    listed: bool
    group: str

    @property
    def is_of_job(self) -> bool:
        return self.route.startswith("<")


SCREENS: dict[str, Screen] = {}
ROOT = "scheduler/"
OLD_NAMES = {"dashboard": "overview"}  # by former name: bookmarks lead to the screen


def screen(
    name: str,
    title: Promise | str,
    *,
    permission: str = VIEW_JOBS,
    route: str = "",
    methods: tuple[str, ...] = ("GET", "HEAD"),
    listed: bool = True,
    group: str = "insight",
) -> Callable[[View], View]:
    """Register a view as a screen; see the module's docstring."""

    def decorate(view: View) -> View:
        SCREENS[name] = Screen(name, title, view, permission, route or f"{name}/", methods, listed, group)
        return view

    return decorate


def build_job_urls(admin: ModelAdmin) -> list[URLPattern]:
    """Return the URL patterns of the screens of one job, and of the former addresses of all others."""
    screens = SCREENS.values()
    former = {entry.name: entry.name for entry in screens if "GET" in entry.methods and "<" not in entry.route}
    former |= OLD_NAMES
    redirects = [path(f"{old}/", partial(_redirect, admin, new)) for old, new in former.items() if new in SCREENS]
    return [*(_build_pattern(admin, entry, "") for entry in screens if entry.is_of_job), *redirects]


def add_urls(site: AdminSite) -> None:
    """Add the screens to the URLs of a site, below `scheduler/`: no list's address is the beginning of theirs."""
    if getattr(site, "has_job_screens", False):
        return
    site.has_job_screens = True  # type: ignore[attr-defined]
    site.get_urls = partial(_urls_with_screens, site, site.get_urls)  # type: ignore[method-assign]


def _urls_with_screens(site: AdminSite, get_urls: Any) -> list[Any]:
    if not _shows_screens(site):
        return list(get_urls())
    admin = site.get_model_admin(Job)
    return [*(_build_pattern(admin, entry, ROOT) for entry in SCREENS.values() if not entry.is_of_job), *get_urls()]


def _build_pattern(admin: ModelAdmin, entry: Screen, prefix: str) -> URLPattern:
    view = admin.admin_site.admin_view(_build_view(admin, entry))
    return path(f"{prefix}{entry.route}", view, name=f"{APP}_{entry.name}")


def _redirect(admin: ModelAdmin, name: str, request: HttpRequest) -> HttpResponse:
    query = request.META.get("QUERY_STRING", "")
    return HttpResponsePermanentRedirect(screen_url(admin.admin_site, name) + (f"?{query}" if query else ""))


def _shows_screens(site: AdminSite) -> bool:
    """Return whether the site shows jobs with our job admin; it may have registered one of its own."""
    return site.is_registered(Job) and getattr(site.get_model_admin(Job), "has_screens", False)


def screen_url(site: AdminSite, name: str, *args: Any) -> str:
    return reverse(f"admin:{APP}_{name}", args=args, current_app=site.name)


def render(
    admin: ModelAdmin,
    request: HttpRequest,
    template: str,
    context: Mapping[str, Any] | Callable[[], Mapping[str, Any]],
    *,
    title: Promise | str = "",
    version: str = "",
) -> HttpResponse:
    """Render a screen as a page of its site. A slow `context` is passed as a function, which a 304 does not call."""
    site = admin.admin_site
    request.current_app = site.name

    def build(shared: dict[str, Any]) -> HttpResponse:
        own = context() if callable(context) else context
        page = {**site.each_context(request), "opts": admin.opts, "title": title, **shared, **own}
        return TemplateResponse(request, template, page)

    return live_page(site, request, version, build)


def list_screens(site: AdminSite, request: HttpRequest) -> list[dict[str, Any]]:
    """Return the screens that this user may open on this site, with their URLs."""
    if not _shows_screens(site):
        return []
    return [
        {"name": entry.name, "title": entry.title, "url": screen_url(site, entry.name)}
        for entry in SCREENS.values()
        if entry.listed and request.user.has_perm(entry.permission)
    ]


def build_navigation(site: AdminSite, request: HttpRequest) -> list[dict[str, Any]]:
    """Return the entries of all groups but Diagnostics, see `jobs/admin/navigation.py`, for the bar."""
    listed = site.get_app_list(request)
    return [
        {
            "name": model["entry"],
            "title": model["name"],
            "url": model["admin_url"],
            "is_current": request.path == model["admin_url"],
        }
        for app in listed
        if app.get("is_console") and not app.get("is_diagnostics")
        for model in app["models"]
        if model["admin_url"]
    ]


def _build_view(admin: ModelAdmin, entry: Screen) -> View:
    # A site may wrap requests in a transaction; a screen that changes many jobs must not hold all their locks.
    @db.non_atomic
    def view(request: HttpRequest, **kwargs: Any) -> HttpResponse:
        if not request.user.has_perm(entry.permission):
            raise PermissionDenied
        if request.method not in entry.methods:
            return HttpResponseNotAllowed(entry.methods)
        return entry.view(admin, request, **kwargs)

    return view


def latest_event_id() -> str:
    """Return the id of the latest event of any job, as a version of pages that show jobs."""
    return str(JobEvent.objects.aggregate(last=Max("pk"))["last"] or 0)


def latest_activity_id() -> str:
    """Return the id of the latest activity, as a version of pages that show limits, targets and the like."""
    return str(Activity.objects.order_by("-pk").values_list("pk", flat=True).first() or "")


def live_page(
    site: AdminSite, request: HttpRequest, version: str, build: Callable[[dict[str, Any]], HttpResponse]
) -> HttpResponse:
    """Build a page with the context that all pages of the console share; with a `version` it refreshes itself.

    Return 304 if the page's script asks and the version is unchanged. A reload by the user always gets the page, with
    its pending messages. The ETag is never a hash of the content, which would have to be built first.
    """
    if not version:
        return build({"navigation": build_navigation(site, request)})
    parts = (version, str(int(time.time()) // 60), str(request.user.pk), request.get_full_path())
    etag = f'W/"{hashlib.sha256(chr(10).join(parts).encode()).hexdigest()[:32]}"'
    is_polled = LIVE_HEADER in request.headers
    response: HttpResponse
    if is_polled and request.headers.get("If-None-Match") == etag:
        response = HttpResponseNotModified()
    else:
        unread = {"messages": ()} if is_polled else {}  # a refresh leaves messages for the next full page
        live = {"live_url": request.get_full_path(), "live_etag": etag, **unread}
        response = build({"navigation": build_navigation(site, request), **live})
    if is_polled:
        response["ETag"] = etag
    return response
