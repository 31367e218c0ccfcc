"""Requests that fail on the standalone site: a page in the frame of the admin, with a way back."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib import admin
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from jobs.models import Job
from jobscheduler import error_pages
from tests.support.admin_pages import get_list_url
from tests.support.admin_users import log_in

OVERVIEW = "/admin/scheduler/overview/"


def assert_framed(response: Any, status: int, sentence: str) -> None:
    text = response.content.decode()
    assert response.status_code == status
    assert sentence in text
    assert 'id="header"' in text
    assert f'href="{OVERVIEW}"' in text
    assert f'href="{get_list_url(Job)}"' in text
    assert "default-src" in response.headers["Content-Security-Policy"]


def test_an_address_without_a_page(boss: Client) -> None:
    for client in (boss, Client()):
        assert_framed(client.get("/nowhere/"), 404, "There is no page at this address.")
    assert 'id="nav-sidebar"' in boss.get("/nowhere/").content.decode()


def test_an_address_with_a_value_that_is_not_allowed(boss: Client) -> None:
    assert_framed(boss.get(f"{get_list_url(Job)}?foo=bar"), 400, "a value that is not allowed")


def test_a_page_without_its_permission(db: Any) -> None:
    client = log_in(User.objects.create_user("staff", is_staff=True))
    assert_framed(client.get(OVERVIEW), 403, "Your account does not have the permission for this page.")


def test_a_form_without_its_token(db: Any) -> None:
    client = Client(enforce_csrf_checks=True)
    assert_framed(client.post(reverse("admin:login"), {}), 403, "The form has expired")


def test_a_failure_of_the_server_reads_nothing_from_the_database(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: Any, **kwargs: Any) -> None:
        raise RuntimeError("broken")

    boss.raise_request_exception = False
    monkeypatch.setattr("jobs.admin.screens.live_page", fail)
    assert_framed(boss.get(OVERVIEW), 500, "The request failed")
    with CaptureQueriesContext(connection) as captured:
        error_pages.server_error(boss.get("/healthz").wsgi_request)
    assert len(captured) == 0


def test_the_standalone_site_opens_at_the_overview(boss: Client, db: Any) -> None:
    assert boss.get("/admin/")["Location"] == OVERVIEW
    assert boss.get("/", follow=True).redirect_chain[-1] == (OVERVIEW, 302)
    assert "View site" not in boss.get(OVERVIEW).content.decode()
    assert admin.site.site_url is None
    anonymous = Client().get("/admin/")
    assert anonymous["Location"].startswith("/admin/login/?next=/admin/")
    stranger = log_in(User.objects.create_user("staff", is_staff=True))
    assert stranger.get("/admin/").status_code == 200


def test_browsers_find_an_icon(client: Client) -> None:
    assert client.get("/favicon.ico")["Location"] == "/static/jobs/favicon.svg"
