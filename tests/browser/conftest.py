"""One Chromium for all of these tests, and a logged-in browser context for each test."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PATIENCE_MS = 20_000
Opener = Callable[..., Page]
expect.set_options(timeout=PATIENCE_MS)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--screenshots"):
        items[:] = [item for item in items if item.name != "test_screenshots"]


@pytest.fixture(scope="session")
def chromium() -> str:
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    if found is None and os.environ.get("CI_BROWSER") == "1":
        pytest.fail("CI_BROWSER is 1 and there is no Chromium: apt-get install chromium")
    if found is None:
        pytest.skip("there is no Chromium on this machine: apt-get install chromium, or say where in CHROMIUM")
    return found


@pytest.fixture(scope="package")
def browser(chromium: str) -> Iterator[Browser]:
    # The browser's driver runs an event loop in this thread; Django would take our own queries for its. It ends before
    # this process goes on to other tests, some of which run a loop of their own.
    os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"] = "1"
    with sync_playwright() as driver:
        made = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-dev-shm-usage"])
        yield made
        made.close()
    del os.environ["DJANGO_ALLOW_ASYNC_UNSAFE"]


@pytest.fixture
def open_as(browser: Browser, live_server: Any) -> Iterator[Opener]:
    """`open_as(user, "/admin/…")`: a page that has said nothing wrong yet. What it complains of fails the test."""
    complaints: list[str] = []
    contexts = []

    def open_page(user: User, path: str = "/admin/", **options: Any) -> Page:
        context = browser.new_context(
            base_url=live_server.url, **{"viewport": {"width": 1280, "height": 900}, **options}
        )
        contexts.append(context)
        client = Client()
        client.force_login(user)
        session = client.cookies["sessionid"].value
        context.add_cookies([{"name": "sessionid", "value": session, "url": live_server.url}])
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.on("console", lambda item: complaints.append(f"{item.text} {item.location}") if _is_wrong(item) else None)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(path)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


def _is_wrong(message: ConsoleMessage) -> bool:
    """A browser asks for a site's icon by itself."""
    return message.type == "error" and not str(message.location.get("url", "")).endswith("/favicon.ico")
