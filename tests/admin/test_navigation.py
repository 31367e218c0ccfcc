"""The navigation: groups of tasks with counts of what needs attention, one lit entry, internals apart."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from django.apps import apps
from django.contrib.admin import AdminSite
from django.contrib.auth.models import Group, User
from django.db import DatabaseError, connection
from django.http import HttpResponse
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone
from django.utils.html import escape

import jobs.admin
from jobs import roles
from jobs.admin import navigation, screens
from jobs.models import Job, JobRun
from jobs.services import limits
from jobs.states import Status
from tests import factories
from tests.factories import job_in
from tests.support.admin_pages import get_list_url, read_messages
from tests.support.admin_users import create_reader, log_in

GROUPS = {
    "Operate": ["Overview", "Jobs", "Queue", "Schedules", "Workers", "Groups"],
    "Control": ["Targets", "Limits & pauses", "Job templates"],
    "Insight": ["Performance", "Activity"],
    "Integrations": ["Webhook endpoints", "Deliveries", "API tokens"],
}
INTERNALS = ["Runs", "Log lines", "Events", "Schedule runs", "Leases", "Remote workers", "Host metrics", "Rollups"]
INDEX = reverse("admin:app_list", args=["jobscheduler_jobs"])


def list_apps(client: Client, path: str = INDEX) -> list[dict[str, Any]]:
    apps: list[dict[str, Any]] = client.get(path).context["available_apps"]
    return apps


def list_groups(client: Client, path: str = INDEX) -> dict[str, list[str]]:
    def strip(name: str) -> str:
        return re.sub(r"\s*<.*", "", str(name)).replace("&amp;", "&")

    ours = [app for app in list_apps(client, path) if app.get("is_console")]
    return {app["name"]: [strip(model["name"]) for model in app["models"]] for app in ours}


def list_counts(client: Client) -> dict[str, str]:
    """Return the texts of the counts that are shown, by entry."""
    html = client.get(INDEX).content.decode()
    counts = re.findall(r'<span class="jc-count[^"]*" data-live="count-([a-z]+)">([^<]+)</span>', html)
    return dict(counts)


def create_user(*codenames: str) -> Client:
    user = create_reader("reader")
    user.user_permissions.set(user.user_permissions.filter(codename__in=codenames))
    return log_in(user)


def test_a_site_shows_groups_of_tasks_before_its_other_apps(boss: Client) -> None:
    assert list_groups(boss) == {**GROUPS, "Diagnostics": ["All diagnostics"]}
    labels = [app["app_label"] for app in list_apps(boss)]
    assert labels[-1] == "auth"
    assert not {"jobscheduler_jobs", "jobscheduler_schedules", "jobscheduler_webhooks"} & set(labels)


def test_only_what_is_usually_added_has_an_add_link(boss: Client) -> None:
    ours = [model for app in list_apps(boss) if app.get("is_console") for model in app["models"]]
    added = [model["entry"] for model in ours if model["add_url"]]
    assert added == ["schedules", "limits", "templates", "endpoints", "tokens"]


def test_who_may_view_one_list_sees_that_entry_alone(db: Any) -> None:
    assert list_groups(create_user("view_worker")) == {"Operate": ["Workers"]}


def test_exactly_one_entry_is_lit_on_every_page_of_the_navigation(boss: Client) -> None:
    job = job_in(Status.QUEUED)
    urls = [model["admin_url"] for app in list_apps(boss) if app.get("is_console") for model in app["models"]]
    for url in (*urls, get_list_url(JobRun), reverse("admin:jobscheduler_jobs_job_change", args=[job.pk])):
        html = boss.get(url).content.decode()
        sidebar = html[html.index('id="nav-sidebar"') : html.index("</nav>", html.index('id="nav-sidebar"'))]
        assert sidebar.count('aria-current="page"') == 1, url


def test_counts_say_what_needs_attention(boss: Client) -> None:
    assert list_counts(boss) == {}
    [job_in(Status.FAILED) for _ in range(2)], job_in(Status.QUEUED), job_in(Status.PENDING)
    job_in(Status.FAILED, in_lane=True)
    factories.WorkerFactory.create()
    limits.pause("resource", "plotter", reason="out of paper")
    factories.ScheduleFactory.create(next_fire_at=timezone.now() - timezone.timedelta(hours=1))
    factories.WebhookEndpointFactory.create(enabled=False, disabled_reason="410 Gone")
    assert list_counts(boss) == {
        "jobs": "3 failed",
        "queue": "2",
        "schedules": "1 late",
        "workers": "1",
        "targets": "1 blocked",
        "limits": "1 paused",
        "endpoints": "1 disabled",
    }


def test_failures_that_were_handled_need_no_attention(boss: Client) -> None:
    failed = job_in(Status.FAILED)
    job_in(Status.FAILED, resolved_at=timezone.now())
    job_in(Status.QUEUED, retry_of=failed, attempt=2)
    assert "jobs" not in list_counts(boss)


def test_all_counts_of_a_page_are_one_statement_that_stops_counting(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(navigation, "COUNT_LIMIT", 2)
    [job_in(Status.FAILED) for _ in range(4)]
    with CaptureQueriesContext(connection) as captured:
        counts = list_counts(boss)
    assert counts["jobs"] == "2+ failed", counts
    counting = [query["sql"] for query in captured if "counted" in query["sql"]]
    assert len(counting) == 1
    assert counting[0].count("LIMIT 3") == counting[0].count("counted")


def test_counts_that_cannot_be_read_do_not_break_the_page(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Any:
        raise DatabaseError("permission denied for table jobscheduler_job")

    monkeypatch.setitem(navigation._counts, "jobs", navigation.Count(refuse, lambda n, text: text))
    assert list_counts(boss) == {}
    assert list_groups(boss)["Operate"][1] == "Jobs"


def test_internals_are_folded_and_take_a_permission(boss: Client, db: Any) -> None:
    diagnostics = reverse("admin:jobscheduler_jobs_diagnostics")
    for path in (diagnostics, get_list_url(JobRun)):
        assert list_groups(boss, path)["Diagnostics"] == ["All diagnostics", *INTERNALS, "Webhook attempts"]
    page = boss.get(diagnostics).content.decode()
    assert all(name in page for name in INTERNALS)
    client = create_user("view_job", "view_jobrun")
    assert "Diagnostics" not in list_groups(client)
    assert client.get(diagnostics).status_code == 403
    assert client.get(get_list_url(JobRun)).status_code == 200  # the list itself has a permission of its own


@pytest.mark.parametrize(("role", "may"), [("Job viewer", False), ("Job operator", False), ("Job admin", True)])
def test_diagnostics_are_for_the_admin_role(role: str, may: bool, db: Any) -> None:
    roles.create_roles()
    user = User.objects.create_user("someone", is_staff=True)
    user.groups.add(Group.objects.get(name=role))
    assert user.has_perm(navigation.VIEW_DIAGNOSTICS) is may


def test_former_addresses_lead_to_the_screens(boss: Client) -> None:
    former = {"dashboard": "overview", "queue": "queue", "enqueue": "enqueue", "performance": "performance"}
    for old, name in former.items():
        response = boss.get(f"{get_list_url(Job)}{old}/?window=7d")
        new = reverse(f"admin:jobscheduler_jobs_{name}")
        assert (response.status_code, response["Location"]) == (301, f"{new}?window=7d")
        assert new.startswith("/admin/scheduler/")


@pytest.fixture
def screen_of_another_app() -> Iterator[str]:
    @screens.screen("busy-workers", "Busy workers", permission="jobscheduler_jobs.view_worker")
    def busy_workers(admin: Any, request: Any) -> HttpResponse:
        return HttpResponse("busy")

    yield "busy-workers"
    del screens.SCREENS["busy-workers"]


def test_a_screen_of_another_app_is_listed_and_served(screen_of_another_app: str, rf: RequestFactory, db: Any) -> None:
    site = AdminSite(name="mine")
    jobs.admin.register(site)
    patterns = {pattern.name: str(pattern.pattern) for pattern in site.get_urls() if hasattr(pattern, "name")}
    assert patterns["jobscheduler_jobs_busy-workers"] == "scheduler/busy-workers/"


def test_the_address_of_a_job_that_is_gone_leads_to_the_list_and_says_so(boss: Client, settings: Any) -> None:
    missing = "01a1e8c1-8852-7daf-afaf-553961d85598"
    url = reverse("admin:jobscheduler_jobs_job_change", args=[missing])
    response = boss.get(url)
    assert response["Location"] == get_list_url(Job)
    assert read_messages(response) == f"Job {missing} is not here."
    settings.JOBSCHEDULER = {**settings.JOBSCHEDULER, "RETENTION_DAYS": 30}
    expected = f"Job {missing} is not here. Jobs are deleted 30 days after they finish."
    assert expected in read_messages(boss.get(url))
    verb = reverse("admin:jobscheduler_jobs_job_verb", args=[missing, "cancel"])
    assert boss.post(verb)["Location"] == get_list_url(Job)


def test_a_list_has_the_title_of_its_entry(boss: Client) -> None:
    for entry in (entry for group in navigation.GROUPS for entry in group.entries if entry.model):
        model = apps.get_model(entry.model)
        page = boss.get(get_list_url(model)).content.decode()
        assert f"<h1>{escape(entry.title)}</h1>" in page, entry.name
        assert f"&rsaquo; {escape(entry.title)}" in page, entry.name
