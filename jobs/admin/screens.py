"""Screens of the console that are no model's list, on any AdminSite that shows jobs.

How a screen is added: write a view `(admin, request, **from_the_route) -> HttpResponse`, decorate it, and answer with
`render`; import its module in `jobs/admin/__init__.py` (or in the `admin` package of another app).

    @screen("workers-at-work", _("At work"), permission="jobscheduler_jobs.view_worker")
    def at_work(admin: ModelAdmin, request: HttpRequest) -> HttpResponse:
        return render(admin, request, "jobs/console/at_work.html", {"workers": ...}, mark=latest_event())

Its template extends `jobs/console/base.html` and fills the block `console`. It is found under `url_of(site, name)` and
listed in the navigation of every screen and at the top of the site's app list, unless `listed=False`. What stands in
an element with `data-live="some-name"` is kept fresh if a `mark` is given: the browser asks for the page again, and is
told in one small query that nothing happened. What changes a page is its `mark` and the clock's minute, for its ages.
A form that changes something is a plain POST with a CSRF token to a screen with `methods=("POST",)`.
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
ASKING = "X-Jobs-Live"  # says that a page is asked for by its own script


@dataclass(frozen=True)
class Screen:
    """`route` follows the path of the job list; `permission` is what opening it takes, beside a login."""

    name: str
    title: Promise | str
    view: View
    permission: str
    route: str
    methods: tuple[str, ...]
    listed: bool


SCREENS: dict[str, Screen] = {}
LISTS: dict[str, tuple[Promise, str, str]] = {  # by label: an app that is not installed is simply not there
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
    def decorate(view: View) -> View:
        SCREENS[name] = Screen(name, title, view, permission, route or f"{name}/", methods, listed)
        return view

    return decorate


def urls(admin: ModelAdmin) -> list[URLPattern]:
    """What the admin of jobs adds to its own."""
    guarded = {each.name: admin.admin_site.admin_view(_guarded(admin, each)) for each in SCREENS.values()}
    return [path(each.route, guarded[each.name], name=f"{APP}_{each.name}") for each in SCREENS.values()]


def url_of(site: AdminSite, name: str, *args: Any) -> str:
    return reverse(f"admin:{APP}_{name}", args=args, current_app=site.name)


def render(
    admin: ModelAdmin,
    request: HttpRequest,
    template: str,
    context: Mapping[str, Any] | Callable[[], Mapping[str, Any]],
    *,
    title: Promise | str = "",
    mark: str = "",
) -> HttpResponse:
    """A screen as a page of its site. A `context` that takes long is given as a function: see `live_page`."""
    site = admin.admin_site
    request.current_app = site.name

    def build(shared: dict[str, Any]) -> HttpResponse:
        own = context() if callable(context) else context
        page = {**site.each_context(request), "opts": admin.opts, "title": title, **shared, **own}
        return TemplateResponse(request, template, page)

    return live_page(site, request, mark, build)


def listed(site: AdminSite, request: HttpRequest) -> list[dict[str, Any]]:
    """The screens that this user may open here, each with its address."""
    if not site.is_registered(Job) or not getattr(site.get_model_admin(Job), "has_screens", False):
        return []  # a site with a job list of its own
    found = []
    for each in SCREENS.values():
        if each.listed and request.user.has_perm(each.permission):
            url = url_of(site, each.name)
            found.append({"name": each.name, "title": each.title, "url": url, "is_current": request.path == url})
    return found


def places(site: AdminSite, request: HttpRequest) -> list[dict[str, Any]]:
    """The way through the console: our screens, and the lists that people look at most."""
    found = {each["name"]: each for each in listed(site, request)}
    for name, (title, app, model) in LISTS.items():
        if request.user.has_perm(f"{app}.view_{model}"):
            try:
                url = reverse(f"admin:{app}_{model}_changelist", current_app=site.name)
            except NoReverseMatch:
                continue
            found[name] = {"name": name, "title": title, "url": url, "is_current": request.path == url}
    first = [found.pop(name) for name in ("dashboard", "jobs", "queue") if name in found]
    return [*first, *found.values()]


def list_first(site: AdminSite) -> None:
    """Let the site's app list begin, for our app, with our screens: they are no models, so no ModelAdmin can."""
    if getattr(site, "lists_job_screens", False):
        return
    # A site has no hook for entries that are no models: the one method that makes its list is wrapped, once.
    site.lists_job_screens = True  # type: ignore[attr-defined]
    site.get_app_list = partial(_app_list, site, site.get_app_list)  # type: ignore[method-assign]


def _app_list(site: AdminSite, known: Any, request: HttpRequest, *args: Any, **kwargs: Any) -> list[Any]:
    apps: list[Any] = known(request, *args, **kwargs)
    # As a site describes a model that may only be looked at.
    perms = {"add": False, "change": False, "delete": False, "view": True}
    fixed = {"model": Job, "perms": perms, "add_url": None, "view_only": True}
    screens = [
        {**fixed, "name": each["title"], "object_name": each["name"].title().replace("-", ""), "admin_url": each["url"]}
        for each in listed(site, request)
    ]
    for app in apps:
        if app["app_label"] == APP:
            app["models"] = [*screens, *app["models"]]
    return apps


def _guarded(admin: ModelAdmin, each: Screen) -> View:
    # A site may wrap requests in a transaction; what a screen does to many jobs must not hold all their locks.
    @db.non_atomic
    def view(request: HttpRequest, **kwargs: Any) -> HttpResponse:
        if not request.user.has_perm(each.permission):
            raise PermissionDenied
        if request.method not in each.methods:
            return HttpResponseNotAllowed(each.methods)
        return each.view(admin, request, **kwargs)

    return view


def latest_event() -> str:
    """The number of the last thing that happened to any job."""
    return str(JobEvent.objects.aggregate(last=Max("pk"))["last"] or 0)


def live_page(
    site: AdminSite, request: HttpRequest, mark: str, build: Callable[[dict[str, Any]], HttpResponse]
) -> HttpResponse:
    """Build a page with what all pages of the console show, and what it needs to ask for itself if it has a `mark`.

    304 where its own script asks and nothing happened since: a person who reloads a page gets it, with the messages
    that wait for it. The ETag is never a hash of the content, which would have to be made first.
    """
    if not mark:
        return build({"places": places(site, request)})
    parts = (mark, str(int(time.time()) // 60), str(request.user.pk), request.get_full_path())
    etag = f'W/"{hashlib.sha256(chr(10).join(parts).encode()).hexdigest()[:32]}"'
    is_polled = ASKING in request.headers
    response: HttpResponse
    if is_polled and request.headers.get("If-None-Match") == etag:
        response = HttpResponseNotModified()
    else:
        unread = {"messages": ()} if is_polled else {}  # they wait for a page that a person sees
        live = {"live_url": request.get_full_path(), "live_etag": etag, **unread}
        response = build({"places": places(site, request), **live})
    if is_polled:
        response["ETag"] = etag
    return response
