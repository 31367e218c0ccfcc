"""Screens: pages of the console that are no model's list, on any AdminSite that shows jobs; and live refresh.

To add a screen, write a view `(admin, request, **route_arguments) -> HttpResponse`, decorate it and return `render(…)`.
Import its module in `jobs/admin/__init__.py` (or in the `admin` package of another app).

    @screen("busy-workers", _("Busy workers"), permission="jobscheduler_jobs.view_worker")
    def busy_workers(admin: ModelAdmin, request: HttpRequest) -> HttpResponse:
        context = {"workers": ...}
        return render(admin, request, "jobs/console/busy_workers.html", context, version=latest_event_id())

Its template extends `jobs/console/base.html` and fills the block `console`. Its URL is `screen_url(site, name)`; it is
listed in the navigation of every screen and at the top of the site's app list, unless `listed=False`. Elements with
`data-live="some-name"` are refreshed if a `version` is given: the browser requests the page again and gets a 304 while
the version and the minute of the clock (for ages such as "3 min ago") are the same. A form that changes something is a
plain POST with a CSRF token to a screen with `methods=("POST",)`.
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
from django.http import HttpRequest, HttpResponse, HttpResponseNotAllowed, HttpResponseNotModified
from django.template.response import TemplateResponse
from django.urls import NoReverseMatch, URLPattern, path, reverse
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from jobs import db
from jobs.models import Job, JobEvent

APP = Job._meta.app_label
VIEW_JOBS = f"{APP}.view_job"
View = Callable[..., HttpResponse]
LIVE_HEADER = "X-Jobs-Live"  # sent by the script that refreshes a page


@dataclass(frozen=True)
class Screen:
    """`route` is relative to the job list; `permission` is required beside a login."""

    name: str
    title: Promise | str
    view: View
    permission: str
    route: str
    methods: tuple[str, ...]
    listed: bool


SCREENS: dict[str, Screen] = {}
NAVIGATION_LISTS: dict[str, tuple[Promise, str, str]] = {  # by app label, since an app may not be installed
    "jobs": (_("Jobs"), APP, "job"),
    "schedules": (_("Schedules"), "jobscheduler_schedules", "schedule"),
    "workers": (_("Workers"), APP, "worker"),
    "targets": (_("Targets"), APP, "target"),
}


def screen(
    name: str,
    title: Promise | str,
    *,
    permission: str = VIEW_JOBS,
    route: str = "",
    methods: tuple[str, ...] = ("GET", "HEAD"),
    listed: bool = True,
) -> Callable[[View], View]:
    """Register a view as a screen; see the module's docstring."""

    def decorate(view: View) -> View:
        SCREENS[name] = Screen(name, title, view, permission, route or f"{name}/", methods, listed)
        return view

    return decorate


def build_urls(admin: ModelAdmin) -> list[URLPattern]:
    """Return the URL patterns of all screens, for the admin of jobs."""
    site = admin.admin_site
    return [
        path(entry.route, site.admin_view(_build_view(admin, entry)), name=f"{APP}_{entry.name}")
        for entry in SCREENS.values()
    ]


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
    if not site.is_registered(Job) or not getattr(site.get_model_admin(Job), "has_screens", False):
        return []  # a site that registered a job admin of its own
    entries = []
    for entry in SCREENS.values():
        if entry.listed and request.user.has_perm(entry.permission):
            url = screen_url(site, entry.name)
            entries.append({"name": entry.name, "title": entry.title, "url": url, "is_current": request.path == url})
    return entries


def build_navigation(site: AdminSite, request: HttpRequest) -> list[dict[str, Any]]:
    """Return the entries of the console's navigation: the screens, and the lists in NAVIGATION_LISTS."""
    entries = {entry["name"]: entry for entry in list_screens(site, request)}
    for name, (title, app, model) in NAVIGATION_LISTS.items():
        if request.user.has_perm(f"{app}.view_{model}"):
            try:
                url = reverse(f"admin:{app}_{model}_changelist", current_app=site.name)
            except NoReverseMatch:
                continue
            entries[name] = {"name": name, "title": title, "url": url, "is_current": request.path == url}
    first = [entries.pop(name) for name in ("dashboard", "jobs", "queue") if name in entries]
    return [*first, *entries.values()]


def add_screens_to_app_list(site: AdminSite) -> None:
    """Put the screens at the top of this app in the site's app list."""
    if getattr(site, "lists_job_screens", False):
        return
    # A site has no hook for entries that are no models, so the method that builds its list is wrapped, once.
    site.lists_job_screens = True  # type: ignore[attr-defined]
    site.get_app_list = partial(_app_list_with_screens, site, site.get_app_list)  # type: ignore[method-assign]


def _app_list_with_screens(
    site: AdminSite, get_app_list: Any, request: HttpRequest, *args: Any, **kwargs: Any
) -> list[Any]:
    apps: list[Any] = get_app_list(request, *args, **kwargs)
    # The form in which a site describes a model that the user may only view.
    perms = {"add": False, "change": False, "delete": False, "view": True}
    fixed = {"model": Job, "perms": perms, "add_url": None, "view_only": True}
    screens = []
    for entry in list_screens(site, request):
        object_name = entry["name"].title().replace("-", "")
        screens.append({**fixed, "name": entry["title"], "object_name": object_name, "admin_url": entry["url"]})
    for app in apps:
        if app["app_label"] == APP:
            app["models"] = [*screens, *app["models"]]
    return apps


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
