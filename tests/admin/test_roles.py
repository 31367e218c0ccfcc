"""The roles at the console: who only looks sees every page, changes nothing and is offered nothing."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import reverse

from jobs import roles
from tests import factories
from tests.admin.test_pages import SHOWN
from tests.support.admin_pages import get_list_url, get_page_url
from tests.support.admin_rows import create_all_rows
from tests.support.admin_users import log_in
from tests.support.snapshots import dump_tables

OFFERS = ("formaction", 'name="_save"', 'name="action"', 'class="addlink"', 'class="deletelink"', "/add/")
SECRET = "only-for-some"


def member(role: str) -> Client:
    roles.create_roles()
    user = User.objects.create_user(role, is_staff=True)
    user.groups.add(Group.objects.get(name=role))
    return log_in(user)


def offers(page: str) -> list[str]:
    """What a page lets one do, besides leaving, searching, or choosing a theme or a language."""
    forms = [form for form in re.findall(r"<form[^>]*method=.post[^>]*>", page, re.I) if "logout" not in form]
    shown = [form for form in forms if "changelist-form" not in form and "_form" not in form]
    return [*shown, *(word for word in OFFERS if word in page)]


@pytest.fixture
def viewer(db: Any) -> Client:
    return member("Job viewer")


def test_a_viewer_sees_every_page_and_is_offered_nothing(viewer: Client) -> None:
    rows = create_all_rows()
    for url in (
        *map(get_list_url, SHOWN),
        *map(get_page_url, rows),
        reverse("admin:app_list", args=["jobscheduler_jobs"]),
    ):
        page = viewer.get(url)
        assert (page.status_code, offers(page.content.decode())) == (200, []), url


@pytest.mark.once
def test_a_viewer_changes_nothing_whatever_is_posted(viewer: Client) -> None:
    rows = create_all_rows()
    before = dump_tables()
    for row in rows:
        for verb in ("cancel", "pause", "retry", "trigger", "resend", "quiet", "stop", "unpause", "run"):
            assert viewer.post(f"{get_page_url(row).removesuffix('change/')}verb/{verb}/").status_code in (
                302,
                403,
                404,
            )
            viewer.post(get_list_url(type(row)), {"action": verb, "_selected_action": [row.pk]})
    assert dump_tables() == before


@pytest.mark.parametrize(("role", "sees"), [("Job viewer", False), ("Job operator", True)])
def test_payload_is_for_operators(role: str, sees: bool, db: Any) -> None:
    params = {"note": SECRET}
    job = factories.JobFactory.create(completed=True, started=False, params=params, checkpoint=params)
    group = factories.JobGroupFactory.create()
    factories.JobFactory.create(running=True, params=params, group=group, group_index=0)
    rows = [
        job,
        factories.JobRunFactory.create(job=job, artifacts=params),
        factories.JobTemplateFactory.create(params=params),
        factories.ScheduleFactory.create(params=params),
        factories.JobLogFactory.create(job=job, message=SECRET),
    ]
    client = member(role)
    for row in rows:
        assert (SECRET in client.get(get_page_url(row)).content.decode()) is sees, row
    if not sees:
        for model in SHOWN:
            assert SECRET not in client.get(get_list_url(model)).content.decode(), model
