"""The documentation page is made of installed files and is shown to callers with the scope `read`."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.apps import apps
from django.contrib.auth.models import Permission, User
from django.test import Client

from jobs.api.docs_page import ASSETS, ASSETS_DIR
from tests.support.api_client import ApiClient

pytestmark = [pytest.mark.django_db, pytest.mark.once]


def log_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def test_everything_on_the_page_comes_from_this_site_without_ninja_among_its_apps() -> None:
    assert not apps.is_installed("ninja")
    page = log_in(User.objects.create_superuser("boss")).get("/api/docs")
    assert (page.status_code, page["Cache-Control"]) == (200, "no-store")
    urls = re.findall(r'(?:src|href)="([^"]+)"', page.content.decode())
    assert sorted(urls) == sorted(f"/api/docs/{name}" for name in ASSETS.values())
    for url in urls:
        asset = Client().get(url)
        assert b"".join(asset.streaming_content) == (ASSETS_DIR / url.rpartition("/")[2]).read_bytes()  # type: ignore[attr-defined]
        assert Client().get(url, headers={"If-Modified-Since": asset["Last-Modified"]}).status_code == 304
    assert "https://" not in page.content.decode()


def test_a_caller_needs_the_scope_or_the_permission_to_read() -> None:
    assert ApiClient("read").get("/docs").status_code == 200
    assert ApiClient("submit").get("/docs").status_code == 403
    staff = User.objects.create_user("staff", is_staff=True)
    assert log_in(staff).get("/api/docs").status_code == 403
    staff.user_permissions.add(Permission.objects.get(codename="view_job"))
    assert log_in(staff).get("/api/docs").status_code == 200


def test_a_browser_without_a_session_is_sent_to_the_log_in_and_a_program_gets_401() -> None:
    browser = Client().get("/api/docs", headers={"Accept": "text/html,*/*;q=0.8"})
    assert (browser.status_code, browser["Location"]) == (302, "/admin/login/?next=%2Fapi%2Fdocs")
    program = Client().get("/api/docs", headers={"Accept": "application/json"})
    assert (program.status_code, program.json()["code"]) == (401, "unauthorized")


@pytest.mark.urls("jobscheduler.urls")
def test_without_an_admin_a_browser_gets_401(settings: Any) -> None:
    assert Client().get("/api/docs", headers={"Accept": "text/html"}).status_code == 401


@pytest.mark.parametrize("path", ["redoc.standalone.js", "../../__init__.py", "%2e%2e/__init__.py", "swagger-ui.css/x"])
def test_no_other_file_is_served(path: str) -> None:
    assert Client().get(f"/api/docs/{path}").status_code == 404
