"""The page's script: refreshing that survives what it replaces, says why it rests, and keys for rows."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.contrib.sessions.models import Session
from django.urls import reverse
from playwright.sync_api import Page, expect

from jobs.models import ConcurrencyLimit, Job
from jobs.services import jobs as job_services
from jobs.states import Status
from tests.browser.conftest import Opener
from tests.factories import job_in
from tests.support.admin_pages import get_list_url, get_page_url

pytestmark = [pytest.mark.browser, pytest.mark.once, pytest.mark.django_db(transaction=True)]
WITHOUT_CLIPBOARD = "delete Navigator.prototype.clipboard"  # as over plain HTTP
STALE = re.compile("jc-is-stale")


@pytest.fixture
def boss(transactional_db: None) -> User:
    return User.objects.create_superuser("boss")


def enqueue_jobs(count: int) -> list[Job]:
    return [job_services.enqueue("sample.add", {"a": number, "b": 0}) for number in range(count)]


def is_refresh(response: Any) -> bool:
    return response.request.headers.get("x-jobs-live") == "1" and "counts" not in response.url


def choose_interval(page: Page, seconds: int) -> None:
    page.locator(".jc-live-every").select_option(str(seconds))
    page.evaluate("document.activeElement.blur()")


def expect_live(page: Page) -> None:
    expect(page.locator(".jc-live-state")).to_have_text("Live")
    expect(page.locator(".jc-bar")).not_to_have_class(STALE)


def test_a_running_job_is_refreshed_again_and_again(open_as: Opener, boss: User) -> None:
    job = job_in(Status.RUNNING)
    page = open_as(boss, get_page_url(job))
    choose_interval(page, 2)
    for step in ("first part", "second part", "third part"):
        Job.objects.filter(pk=job.pk).update(progress=0.5, progress_message=step)
        expect(page.locator("#content").get_by_text(step).first).to_be_visible()
        expect_live(page)


def test_an_empty_list_is_refreshed_again_and_again(open_as: Opener, boss: User) -> None:
    page = open_as(boss, f"{get_list_url(Job)}?q=type:none")
    choose_interval(page, 2)
    for _ in range(2):
        with page.expect_response(lambda response: is_refresh(response) and response.status == 200):
            enqueue_jobs(1)
        expect_live(page)


def test_a_lost_connection_is_said_and_found_again(open_as: Opener, boss: User) -> None:
    page = open_as(boss, get_list_url(Job))
    page.evaluate("() => { window.known = fetch; window.fetch = () => Promise.reject(new TypeError('offline')); }")
    page.keyboard.press("r")
    expect(page.locator(".jc-live-state")).to_have_text("Connection lost")
    expect(page.locator(".jc-live-age")).to_have_text(re.compile(r"retrying in \d+ s"))
    page.evaluate("() => { window.fetch = window.known; }")
    page.keyboard.press("r")
    expect_live(page)


def test_a_session_that_is_over_is_said_with_the_way_to_log_in(open_as: Opener, boss: User) -> None:
    path = f"{get_list_url(Job)}?status=FAILED"
    page = open_as(boss, path)
    Session.objects.all().delete()
    page.keyboard.press("r")
    expect(page.locator(".jc-live-state")).to_have_text("You are logged out.")
    with page.expect_navigation():
        page.get_by_role("link", name="Log in").click()
    assert "/login/?next=%2Fadmin%2Fjobscheduler_jobs%2Fjob%2F%3Fstatus%3DFAILED" in page.url


def test_it_is_said_why_a_page_rests(open_as: Opener, boss: User) -> None:
    enqueue_jobs(1)
    page = open_as(boss, get_list_url(Job))
    expect_live(page)
    page.locator("#result_list input.action-select").check()
    expect(page.locator(".jc-live-state")).to_have_text("Paused while rows are selected")
    page.locator("#result_list input.action-select").uncheck()
    page.locator("#searchbar").focus()
    expect(page.locator(".jc-live-state")).to_have_text("Paused while you type")
    page.evaluate("document.activeElement.blur()")
    choose_interval(page, 0)
    expect(page.locator(".jc-live-state")).to_have_text("Paused")


@pytest.mark.parametrize("script", ["", WITHOUT_CLIPBOARD], ids=["https", "http"])
def test_a_text_is_copied_and_the_button_says_so(open_as: Opener, boss: User, script: str) -> None:
    page = open_as(boss, reverse("admin:jobscheduler_jobs_overview"))  # without jobs: steps to copy
    if script:
        page.add_init_script(script)
        page.reload()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    copied = page.evaluate_handle(
        "() => { const seen = []; document.addEventListener('copy', () => seen.push(getSelection().toString()));"
        " return seen; }"
    )
    button = page.locator("[data-copy]").first
    button.click()
    expect(button).to_have_text("Copied")
    text = page.locator(f"#{button.get_attribute('data-copy')}").inner_text()
    if script:
        assert page.evaluate("document.activeElement.dataset.copy") == button.get_attribute("data-copy")
        assert len(copied.json_value()) == 1
    else:
        assert page.evaluate("navigator.clipboard.readText()") == text
    expect(button).to_have_text("Copy")


def test_without_the_script_nothing_is_shown_that_needs_it(open_as: Opener, boss: User) -> None:
    page = open_as(boss, reverse("admin:jobscheduler_jobs_overview"), java_script_enabled=False)
    assert page.locator("[data-copy]").count() > 0
    for hidden in page.locator("[data-copy], .jc-live").all():
        assert not hidden.is_visible()


def test_keys_move_through_the_rows_of_a_list(open_as: Opener, boss: User) -> None:
    newest, older = reversed([str(job.pk) for job in enqueue_jobs(2)])
    page = open_as(boss, get_list_url(Job))
    page.keyboard.press("j")
    page.keyboard.press("x")
    checked = page.locator("input.action-select:checked")
    assert checked.get_attribute("value") == newest
    page.keyboard.press("x")
    page.keyboard.press("j")
    page.keyboard.press("j")  # the last row stays the last
    page.keyboard.press("x")
    assert checked.get_attribute("value") == older
    page.keyboard.press("k")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    assert newest in page.url


@pytest.mark.parametrize("name", ["activity", "performance", "enqueue"])
def test_the_help_is_there_on_pages_that_do_not_refresh(open_as: Opener, boss: User, name: str) -> None:
    page = open_as(boss, reverse(f"admin:jobscheduler_jobs_{name}"))
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()


def test_the_help_is_there_on_forms(open_as: Opener, boss: User) -> None:
    page = open_as(boss, f"{get_list_url(ConcurrencyLimit)}add/")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()


def test_exact_times_are_shown_in_the_zone_of_the_browser_if_asked(open_as: Opener, boss: User) -> None:
    job = job_in(Status.COMPLETED)
    page = open_as(boss, get_page_url(job), timezone_id="Asia/Tokyo")
    moment = page.locator("time[datetime]").first
    assert "UTC" in str(moment.get_attribute("title"))
    page.keyboard.press("?")
    with page.expect_navigation():
        page.get_by_label("Show exact times in the time zone of this browser").check()
    expect(page.locator("time[datetime]").first).to_have_attribute("title", re.compile(r"GMT\+9|JST"))


def test_a_page_that_is_only_read_loads_few_scripts(open_as: Opener, boss: User) -> None:
    page = open_as(boss, get_page_url(job_in(Status.COMPLETED)))
    scripts = page.evaluate("[...document.scripts].map((script) => script.src.split('/').pop())")
    assert not {"RelatedObjectLookups.js", "urlify.js", "prepopulate.js", "actions.js"} & set(scripts)
    assert len(scripts) <= 10


@pytest.mark.parametrize(("width", "is_shown"), [(1280, False), (1000, True), (390, True)])
def test_the_bar_is_for_screens_without_a_sidebar(open_as: Opener, boss: User, width: int, is_shown: bool) -> None:
    page = open_as(boss, get_list_url(Job), viewport={"width": width, "height": 800})
    assert page.locator(".jc-bar nav").is_visible() is is_shown
    if width == 1280:
        page.locator("#toggle-nav-sidebar").click()
        expect(page.locator(".jc-bar nav")).to_be_visible()


CONTRAST = """
() => {
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const parse = (text) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = text; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const luminance = (color) => {
    const [r, g, b] = color.slice(0, 3).map((v) => (v /= 255, v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const over = (front, back) => [0, 1, 2].map((i) => front[i] * front[3] / 255 + back[i] * (1 - front[3] / 255));
  const table = document.createElement("table");
  table.className = "jc jc-table";
  const kinds = ["ok", "bad", "warn", "run", "hold", "skipped", "failed"];
  const backs = ["var(--body-bg)", "var(--darkened-bg)", "var(--selected-row)"];
  const results = [];
  document.querySelector("#content").append(table);
  for (const back of backs) for (const kind of kinds) {
    const row = table.insertRow(), cell = row.insertCell(), badge = document.createElement("span");
    cell.style.background = back;
    badge.className = `jc-badge jc-${kind}`;
    badge.textContent = kind;
    cell.append(badge);
    const surface = over(parse(getComputedStyle(cell).backgroundColor), [255, 255, 255]);
    const tint = over(parse(getComputedStyle(badge).backgroundColor), surface);
    const [a, b] = [luminance(parse(getComputedStyle(badge).color)), luminance(tint)].sort((x, y) => y - x);
    results.push([`${kind} on ${back}`, (a + 0.05) / (b + 0.05), getComputedStyle(badge).fontWeight]);
  }
  return results;
}
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_badge_can_be_read_on_every_background(open_as: Opener, boss: User, scheme: str) -> None:
    page = open_as(boss, reverse("admin:jobscheduler_jobs_overview"), color_scheme=scheme)
    results = page.evaluate(CONTRAST)
    assert [(name, contrast) for name, contrast, _weight in results if contrast < 4.5] == []
    assert {name.split()[0] for name, _contrast, weight in results if weight == "700"} == {"failed"}
