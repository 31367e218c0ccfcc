"""The console's navigation: groups of tasks in place of the three apps, with counts of what needs attention.

A site's app list shows the groups first and the site's other apps below. `add_count` gives an entry its count; a screen
of another app is listed under Insight, see `jobs/admin/screens.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from django.contrib.admin import AdminSite, ModelAdmin
from django.db import DatabaseError
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse
from django.utils.functional import Promise
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _now
from django.utils.translation import gettext_lazy as _
from django.utils.translation import ngettext

from jobs import db
from jobs.admin.base import COUNT_LIMIT, LIST_TITLES, CappedInt
from jobs.admin.formatting import format_count
from jobs.admin.screens import APP, SCREENS, list_screens, render, screen, screen_url
from jobs.models import ConcurrencyLimit, Job
from jobs.roles import APP_LABELS
from jobs.stats import queries
from jobs.stats.cache import RateLimitedCache

VIEW_DIAGNOSTICS = f"{APP}.view_diagnostics"
SCHEDULES, WEBHOOKS = "jobscheduler_schedules", "jobscheduler_webhooks"


@dataclass(frozen=True)
class Entry:
    """A screen, or the list of `model` ("app_label.modelname")."""

    name: str
    title: Promise | str = ""  # of a screen: that of the screen
    model: str = ""
    can_add: bool = False
    about: Promise | str = ""


@dataclass(frozen=True)
class Group:
    name: str
    title: Promise | str
    entries: tuple[Entry, ...]


GROUPS = (
    Group(
        "operate",
        _("Operate"),
        (
            Entry("overview"),
            Entry("jobs", _("Jobs"), f"{APP}.job"),
            Entry("queue"),
            Entry("schedules", _("Schedules"), f"{SCHEDULES}.schedule", can_add=True),
            Entry("workers", _("Workers"), f"{APP}.worker"),
            Entry("groups", _("Groups"), f"{APP}.jobgroup"),
        ),
    ),
    Group(
        "control",
        _("Control"),
        (
            Entry("targets", _("Targets"), f"{APP}.target"),
            Entry("limits", _("Limits & pauses"), f"{APP}.concurrencylimit", can_add=True),
            Entry("templates", _("Job templates"), f"{APP}.jobtemplate", can_add=True),
        ),
    ),
    Group("insight", _("Insight"), (Entry("performance"), Entry("activity"))),
    Group(
        "integrations",
        _("Integrations"),
        (
            Entry("endpoints", _("Webhook endpoints"), f"{WEBHOOKS}.webhookendpoint", can_add=True),
            Entry("deliveries", _("Deliveries"), f"{WEBHOOKS}.webhookdelivery"),
            Entry("tokens", _("API tokens"), f"{APP}.apitoken", can_add=True),
        ),
    ),
)
DIAGNOSTICS = Group(
    "diagnostics",
    _("Diagnostics"),
    (
        Entry("runs", _("Runs"), f"{APP}.jobrun", about=_("Each execution of a job: worker, times, result.")),
        Entry("log-lines", _("Log lines"), f"{APP}.joblog", about=_("Log output of handlers.")),
        Entry("events", _("Events"), f"{APP}.jobevent", about=_("Every change of a job's state.")),
        Entry(
            "schedule-runs", _("Schedule runs"), f"{SCHEDULES}.schedulefire", about=_("Due times and their outcome.")
        ),
        Entry("leases", _("Leases"), f"{APP}.lease", about=_("Slots that direct calls and admission hold.")),
        Entry("remote-workers", _("Remote workers"), f"{APP}.poller", about=_("Last poll of each addon.")),
        Entry("host-metrics", _("Host metrics"), f"{APP}.systemsnapshot", about=_("Load of the workers' machines.")),
        Entry("rollups", _("Rollups"), f"{APP}.jobminute", about=_("Finished jobs per minute, for the charts.")),
        Entry("attempts", _("Webhook attempts"), f"{WEBHOOKS}.webhookattempt", about=_("Each request to a receiver.")),
    ),
)

LIST_TITLES.update(
    {entry.model: entry.title for group in (*GROUPS, DIAGNOSTICS) for entry in group.entries if entry.model}
)


# -- counts ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Count:
    """The rows to count, along an index; `label` returns the text for a number and its formatted count."""

    find_rows: Callable[[], QuerySet[Any]]
    label: Callable[[int, str], str]
    is_bad: bool = False


_counts: dict[str, Count] = {}
_cache: RateLimitedCache[dict[str, int]] = RateLimitedCache()


def add_count(
    name: str, find_rows: Callable[[], QuerySet[Any]], label: Callable[[int, str], str], *, is_bad: bool = False
) -> None:
    """Show a count beside the entry `name` while it is not zero. All counts of a page are one statement."""
    _counts[name] = Count(find_rows, label, is_bad)


add_count(
    "jobs",
    lambda: Job.objects.filter(queries.unhandled_failures()),
    lambda n, text: ngettext("%s failed", "%s failed", n) % text,
    is_bad=True,
)
add_count("queue", lambda: Job.objects.waiting(), lambda n, text: text)
add_count("workers", lambda: queries.online_workers().filter(stopped_at__isnull=True), lambda n, text: text)
add_count("targets", queries.blocking_jobs, lambda n, text: ngettext("%s blocked", "%s blocked", n) % text, is_bad=True)
add_count(
    "limits",
    lambda: ConcurrencyLimit.objects.filter(paused=True),
    lambda n, text: ngettext("%s paused", "%s paused", n) % text,
)


def _count_rows(names: Iterable[str]) -> dict[str, int]:
    """Count the rows of the named entries, each up to COUNT_LIMIT; none if the tables cannot be read."""
    names = sorted(set(names) & set(_counts))
    if not names:
        return {}

    def compute() -> dict[str, int]:
        connection, parts, params = db.connection(), [], []
        for name in names:
            rows = _counts[name].find_rows().order_by().values("pk")[: COUNT_LIMIT + 1]
            sql, values = rows.query.get_compiler(connection=connection).as_sql()
            parts.append(f"(SELECT COUNT(*) FROM ({sql}) counted)")  # noqa: S608  both parts are from the ORM
            params += values
        with connection.cursor() as cursor:
            cursor.execute(f"SELECT {', '.join(parts)}", params)
            return dict(zip(names, cursor.fetchone(), strict=True))

    try:
        return _cache.get((db.alias(), *names), compute, lambda counted: sum(counted.values()))
    except DatabaseError:
        return {}  # a page of another app must not fail for a count


# -- the groups of a site ----------------------------------------------------------------------------------------------


def wrap_app_list(site: AdminSite) -> None:
    """Show the groups in the site's app list."""
    if getattr(site, "lists_job_screens", False):
        return
    # A site has no hook for entries that are no models, so the method that builds its list is wrapped, once.
    site.lists_job_screens = True  # type: ignore[attr-defined]
    site.get_app_list = partial(_app_list_with_groups, site, site.get_app_list)  # type: ignore[method-assign]


def _app_list_with_groups(
    site: AdminSite, get_app_list: Any, request: HttpRequest, app_label: str | None = None, **kwargs: Any
) -> list[Any]:
    if app_label is not None and app_label not in APP_LABELS:
        return list(get_app_list(request, app_label, **kwargs))
    apps: list[dict[str, Any]] = list(get_app_list(request, **kwargs))
    groups = request.__dict__.setdefault("_jobs_navigation", {})
    if site.name not in groups:
        groups[site.name] = list(_build_groups(site, request, apps))
    others = [app for app in apps if app["app_label"] not in APP_LABELS] if app_label is None else []
    return [*groups[site.name], *others]


def _build_groups(site: AdminSite, request: HttpRequest, apps: Iterable[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yield the groups as apps of an app list, with those of their entries that this user may open."""
    models = {
        f"{app['app_label']}.{model['object_name'].lower()}": model
        for app in apps
        if app["app_label"] in APP_LABELS
        for model in app["models"]
    }
    screens = {entry["name"]: entry for entry in list_screens(site, request)}
    own = {entry.name for group in GROUPS for entry in group.entries}
    listed: list[tuple[Group, list[tuple[Entry, dict[str, Any]]]]] = []
    for group in GROUPS:
        extra = [Entry(name) for name in screens if name not in own and SCREENS[name].group == group.name]
        rows = [(entry, row) for entry in (*group.entries, *extra) if (row := _find_row(entry, models, screens))]
        listed.append((group, rows))
    counted = _count_rows(entry.name for _group, rows in listed for entry, _row in rows)
    for group, rows in listed:
        if rows:
            yield _as_app(
                group, [{**row, "name": _with_count(entry.name, row["name"], counted)} for entry, row in rows]
            )
    if request.user.has_perm(VIEW_DIAGNOSTICS):
        yield from _build_diagnostics(site, request, models)


def _find_row(
    entry: Entry, models: Mapping[str, dict[str, Any]], screens: Mapping[str, dict[str, Any]]
) -> dict[str, Any] | None:
    """Return the entry as a model of an app list; None if the user may not open it."""
    if entry.model:
        model = models.get(entry.model)
        if model is None or not model.get("admin_url"):
            return None
        add_url = model.get("add_url") if entry.can_add else None
        return {**model, "name": str(entry.title), "entry": entry.name, "add_url": add_url}
    found = screens.get(entry.name)
    return None if found is None else _screen_row(entry.name, found["title"], found["url"])


def _screen_row(name: str, title: Any, url: str) -> dict[str, Any]:
    """Return a screen in the form in which a site describes a model that the user may only view."""
    perms = {"add": False, "change": False, "delete": False, "view": True}
    object_name = name.title().replace("-", "")
    fixed = {"model": Job, "perms": perms, "add_url": None, "view_only": True}
    return {**fixed, "name": str(title), "object_name": object_name, "admin_url": url, "entry": name}


def _as_app(group: Group, models: list[dict[str, Any]], **extra: Any) -> dict[str, Any]:
    return {
        "name": str(group.title),
        "app_label": f"jobscheduler_{group.name}",
        "app_url": models[0]["admin_url"],
        "has_module_perms": True,
        "models": models,
        "is_console": True,
        **extra,
    }


def _with_count(name: str, title: str, counted: Mapping[str, int]) -> SafeString | str:
    """Return the title with its count, which the page's script refreshes: the element is there for zero, too."""
    if name not in counted:
        return title
    count, number = _counts[name], counted[name]
    text = count.label(number, format_count(CappedInt(COUNT_LIMIT) if number > COUNT_LIMIT else number))
    kind = "jc-count jc-fg-bad" if count.is_bad else "jc-count"
    element = '{} <span class="{}" data-live="count-{}">{}</span>'
    return format_html(element, title, kind, name, text if number else "")


# -- diagnostics -------------------------------------------------------------------------------------------------------


def _build_diagnostics(
    site: AdminSite, request: HttpRequest, models: Mapping[str, dict[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yield the group of the internals: folded to one entry, unless the page is one of its own."""
    rows = [row for entry in DIAGNOSTICS.entries if (row := _find_row(entry, models, {}))]
    if not rows or not list_screens(site, request):
        return
    first = _screen_row("diagnostics", _now("All diagnostics"), screen_url(site, "diagnostics"))
    is_open = any(request.path.startswith(row["admin_url"]) for row in (first, *rows))
    yield _as_app(DIAGNOSTICS, [first, *rows] if is_open else [first], is_diagnostics=True)


@screen("diagnostics", _("Diagnostics"), permission=VIEW_DIAGNOSTICS, listed=False)
def diagnostics(admin: ModelAdmin, request: HttpRequest) -> HttpResponse:
    """Show the lists of the internals, each with a line about its rows."""
    site = admin.admin_site
    rows = [row for app in site.get_app_list(request) if app.get("is_diagnostics") for row in app["models"]]
    about = {entry.name: entry.about for entry in DIAGNOSTICS.entries}
    lists = [(row, about[row["entry"]]) for row in rows if row["entry"] in about]
    return render(admin, request, "jobs/console/diagnostics.html", {"lists": lists}, title=_("Diagnostics"))
