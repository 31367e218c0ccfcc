"""What the screens show in a real browser: fresh lists, next fires, hostile texts, forms, and every width."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db.models import Model
from django.urls import reverse
from django.utils import timezone
from playwright.sync_api import expect

from jobs import demo
from jobs.actors import Actor, ActorKind
from jobs.admin.screens import SCREENS
from jobs.models import Job, JobGroup, Target, Worker
from jobs.services import targets
from schedules.models import Schedule
from tests import factories
from tests.admin.test_pages import SHOWN
from tests.admin.test_payload import hostile_rows
from tests.browser.conftest import Opener
from tests.support.admin_pages import get_list_url, get_page_url
from tests.support.admin_rows import create_all_rows
from tests.support.admin_users import create_reader
from webhooks.models import WebhookDelivery

pytestmark = [pytest.mark.browser, pytest.mark.once, pytest.mark.django_db(transaction=True)]
LISTED = [item.name for item in SCREENS.values() if item.listed]


@pytest.fixture
def boss(transactional_db: None) -> User:
    return User.objects.create_superuser("boss")


def place(name: str) -> str:
    return reverse(f"admin:jobscheduler_jobs_{name}")


def beats(worker: Worker) -> None:
    Worker.objects.filter(pk=worker.pk).update(busy=1, heartbeat_at=timezone.now() + timedelta(seconds=1))


def is_paused(target: Target) -> None:
    targets.pause(target.key, tenant=target.tenant, reason="wet paint")


def is_disabled(schedule: Schedule) -> None:
    Schedule.objects.filter(pk=schedule.pk).update(enabled=False, disabled_reason="wet paint")


FRESH: dict[str, tuple[Any, Any, str]] = {
    "workers": (lambda: factories.WorkerFactory.create(slots=3, busy=0), beats, "1/3"),
    "targets": (lambda: factories.TargetFactory.create(), is_paused, "wet paint"),
    "schedules": (lambda: factories.ScheduleFactory.create(), is_disabled, "wet paint"),
}


def is_delivered(delivery: WebhookDelivery) -> None:
    factories.WebhookAttemptFactory.create(delivery=delivery, error="wet paint")
    WebhookDelivery.objects.filter(pk=delivery.pk).update(attempts=1)


FRESH_PAGES: dict[str, tuple[Any, Any, str]] = {
    "worker": FRESH["workers"],
    "target": FRESH["targets"],
    "delivery": (lambda: factories.WebhookDeliveryFactory.create(attempts=0), is_delivered, "wet paint"),
}


@pytest.mark.parametrize("name", FRESH_PAGES)
def test_a_page_of_what_is_no_job_keeps_itself_fresh(open_as: Opener, boss: User, name: str) -> None:
    make, change, text = FRESH_PAGES[name]
    row: Model = make()
    page = open_as(boss, get_page_url(row))
    content = page.locator("#content")
    expect(content).not_to_contain_text(text)
    page.locator(".jc-live-every").select_option("2")
    change(row)
    expect(content).to_contain_text(text)
    expect(page.locator(".jc-live-state")).to_have_text("Live")


@pytest.mark.parametrize("name", FRESH)
def test_a_list_of_what_is_no_job_keeps_itself_fresh_too(open_as: Opener, boss: User, name: str) -> None:
    make, change, text = FRESH[name]
    row: Model = make()
    page = open_as(boss, get_list_url(type(row)))
    expect(page.locator(".jc-bar a[aria-current]")).to_contain_text(name.title())
    expect(page.locator("#result_list")).not_to_contain_text(text)
    page.locator(".jc-live-every").select_option("2")
    change(row)
    expect(page.locator("#result_list")).to_contain_text(text)
    expect(page.locator(".jc-live-state")).to_have_text("Live")


def test_a_schedule_shows_its_next_fires_while_it_is_written(open_as: Opener, boss: User) -> None:
    page = open_as(boss, reverse("admin:jobscheduler_schedules_schedule_add"))
    page.locator("#id_timezone").select_option("Europe/Berlin")
    page.locator("#id_cron").fill("30 2 * * *")
    panel = page.locator("#schedule-preview")
    expect(panel).to_contain_text("At 02:30 every day")
    expect(panel.locator("tbody tr")).to_have_count(5)
    page.locator("#id_cron").fill("0 0 31 2 *")
    expect(panel.locator("tbody tr")).to_have_count(0)


def test_figures_and_columns_fit_beside_the_sidebar(open_as: Opener, boss: User) -> None:
    demo.fill(actor=Actor(ActorKind.CLI, "ada"))
    page = open_as(boss, place("overview"), viewport={"width": 1280, "height": 900})
    tops = "[...document.querySelectorAll('.jc-figures .jc-card')].map((card) => card.getBoundingClientRect().top)"
    assert len(set(page.evaluate(tops))) == 1
    paths = [*map(place, ("overview", "activity", "queue", "performance")), get_list_url(WebhookDelivery)]
    for path in (*paths, get_page_url(Schedule.objects.get(name="demo: when clocks change"))):
        page.goto(path)
        hidden = "[...document.querySelectorAll('.jc-scroll, .results')].map((b) => b.scrollWidth - b.clientWidth)"
        assert set(page.evaluate(hidden)) == {0}, path
    page.goto(get_page_url(Job.objects.filter(status="FAILED").latest("pk")))
    title, live = (page.locator(name).bounding_box() for name in ("#job-title", ".jc-live"))
    assert title is not None
    assert live is not None
    assert abs(title["y"] - live["y"]) < 10  # in one row


def test_a_job_is_submitted_by_a_form_made_of_its_handlers_params(open_as: Opener, boss: User) -> None:
    page = open_as(boss, f"{place('enqueue')}?job_type=sample.add")
    page.get_by_label("a:", exact=True).fill("2")
    page.get_by_label("b:", exact=True).fill("40")
    page.get_by_role("button", name="Submit").click()
    page.wait_for_url("**/change/**")
    assert Job.objects.get().params == {"a": 2, "b": 40}


def test_a_filter_is_added_above_the_list_and_keeps_the_tab(open_as: Opener, boss: User) -> None:
    factories.job_in(factories.Status.FAILED)
    page = open_as(boss, f"{get_list_url(Job)}?status=FAILED")
    page.get_by_text("Add filter").click()
    page.get_by_label("Within").first.select_option("24h")
    page.get_by_role("button", name="Filter", exact=True).click()
    page.wait_for_url("**?status=FAILED&**created=24h**")
    expect(page.locator("#result_list tbody tr")).to_have_count(1)
    page.get_by_role("link", name="Clear filters").click()
    page.wait_for_url(f"**{get_list_url(Job)}?")


def test_hostile_texts_stay_texts_and_the_pages_whole(open_as: Opener, boss: User) -> None:
    rows = hostile_rows()
    page = open_as(boss, place("overview"))
    page.on("dialog", lambda dialog: pytest.fail(f"a text spoke: {dialog.message}"))
    for path in (*map(place, LISTED), *{get_list_url(type(row)) for row in rows}, *map(get_page_url, rows)):
        answer = page.goto(path)
        assert answer is not None
        assert answer.ok, path
        assert page.locator('img[src="x"], script:not([src]):not([type])').count() == 0, path
        assert page.evaluate("document.documentElement.scrollWidth") <= 1290, path


def test_a_jobs_deliveries_fit_into_their_column_in_a_language_with_longer_words(open_as: Opener, boss: User) -> None:
    job = factories.JobFactory.create(failed=True)
    endpoint = factories.WebhookEndpointFactory.create(url="https://former-shop.example.invalid/hooks")
    factories.WebhookDeliveryFactory.create(failed=True, job_id=job.pk, event="job.failed", endpoint=endpoint)
    page = open_as(boss, get_page_url(job), locale="de-DE")
    expect(page.locator("#job-webhooks")).to_contain_text("Fehlgeschlagen")
    assert page.locator("#job-webhooks").evaluate("panel => panel.scrollWidth - panel.clientWidth") == 0
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


# Words of up to 20 letters that a line break cuts, other than in preformatted text.
BROKEN_WORDS = """
() => {
  const broken = [];
  const texts = document.createTreeWalker(document.querySelector("#content"), NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const text = texts.currentNode;
    if (!text.parentElement.offsetParent || text.parentElement.closest("pre, code, select, .jc-skip")) continue;
    for (const word of text.data.matchAll(/[\\p{L}\\p{N}]{2,20}/gu)) {
      const range = document.createRange();
      range.setStart(text, word.index);
      range.setEnd(text, word.index + word[0].length);
      const lines = new Set([...range.getClientRects()].map((box) => Math.round(box.top)));
      if (lines.size > 1) broken.push(word[0]);
    }
  }
  return broken;
}
"""


@pytest.mark.timeout(300)  # all screens and lists there are, one after the other
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_screen_list_or_page_is_wider_than_a_phone(open_as: Opener, boss: User, scheme: str) -> None:
    rows = create_all_rows()
    page = open_as(boss, place("overview"), color_scheme=scheme, viewport={"width": 390, "height": 844})
    lists = (*map(get_list_url, SHOWN), *(get_page_url(row) for row in rows if type(row) in SHOWN))
    for path in (*map(place, LISTED), f"{place('enqueue')}?job_type=sample.add", *lists):
        page.goto(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 400, path
        assert page.evaluate(BROKEN_WORDS) == [], path


def test_words_of_a_list_stay_whole_and_its_numbers_end_their_column(open_as: Opener, boss: User) -> None:
    create_all_rows()
    events = ["job.completed", "job.cancelled", "group.finished"]
    endpoint = factories.WebhookEndpointFactory.create(url="https://hooks.example.com/jobs", events=events)
    page = open_as(boss, get_list_url(type(endpoint)))
    for path in (get_list_url(type(endpoint)), get_list_url(Job), place("performance")):
        page.goto(path)
        assert page.evaluate(BROKEN_WORDS) == [], path
    sides = page.locator(".jc-table td.jc-number").evaluate_all(
        "cells => cells.map((c) => getComputedStyle(c).textAlign)"
    )
    assert set(sides) == {"end"}


@pytest.mark.timeout(300)
def test_a_reader_is_offered_no_form_anywhere(open_as: Opener, transactional_db: None) -> None:
    rows = create_all_rows()
    page = open_as(create_reader("looker"), place("overview"))
    expect(page.locator(".jc-bar")).not_to_contain_text("New job")
    screens = [name for name in LISTED if name != "enqueue"]  # that is nothing but a form
    for path in (*map(place, screens), *map(get_list_url, SHOWN), *map(get_page_url, rows)):
        page.goto(path)
        buttons = page.locator('#content form[method="post"] :is(button, input[type="submit"]):visible')
        assert buttons.count() == 0, path
        assert page.locator("#content a.addlink, #content a.deletelink").count() == 0, path


def test_a_group_shows_its_progress_as_a_bar_with_words(open_as: Opener, boss: User) -> None:
    group = factories.JobGroupFactory.create()
    for index, status in enumerate(("completed", "completed", "failed")):
        factories.JobFactory.create(**{status: True}, group=group, group_index=index)
    page = open_as(boss, get_list_url(JobGroup))
    expect(page.locator("#result_list .field-members")).to_contain_text("3 of 3 finished")
    expect(page.locator("#result_list .field-members svg")).to_be_visible()
