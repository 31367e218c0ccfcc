"""The job list in a real browser: where its first row is, how many keys lead there, and when its actions are shown."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.auth.models import User
from django.urls import reverse
from playwright.sync_api import expect

from jobs.models import ApiToken, ConcurrencyLimit, Job, JobGroup, JobTemplate, Target, Worker
from jobs.services import limits
from jobs.states import Status
from schedules.models import Schedule
from tests.browser.conftest import Opener
from tests.factories import JobFactory, job_in
from tests.support.admin_pages import get_list_url, get_page_url
from tests.support.admin_rows import create_all_rows
from webhooks.models import WebhookDelivery, WebhookEndpoint

WIDE = {"viewport": {"width": 1440, "height": 900}}
PHONE = {"viewport": {"width": 390, "height": 844}}

FIRST_ROW = "document.querySelector('#result_list tbody tr').getBoundingClientRect().top"


@pytest.fixture
def boss(transactional_db: None) -> User:
    return User.objects.create_superuser("boss")


@pytest.mark.parametrize(("size", "limit"), [(WIDE, 260), (WIDE | {"locale": "de-DE"}, 260), (PHONE, 300)])
def test_the_first_row_is_on_the_first_screen(size: Any, limit: int, open_as: Opener, boss: User) -> None:
    job_in(Status.FAILED), job_in(Status.QUEUED, target="a target with a long name " * 3)
    limits.pause("resource", "plotter", reason="out of paper " * 20)
    page = open_as(boss, get_list_url(Job), **size)
    expect(page.locator('[data-count="FAILED"]')).to_have_text("1")
    page.evaluate("for (const count of document.querySelectorAll('[data-count]')) count.textContent = '10,000+'")
    assert page.evaluate(FIRST_ROW) <= limit
    assert page.evaluate("document.documentElement.scrollWidth") <= size["viewport"]["width"]


def test_the_first_row_is_few_keys_away(open_as: Opener, boss: User) -> None:
    job_in(Status.FAILED)
    page = open_as(boss, get_list_url(Job), **WIDE)
    page.get_by_role("link", name="Skip to the jobs").focus()
    page.keyboard.press("Enter")
    for _presses in range(1, 4):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.closest('#result_list tbody tr') !== null"):
            break
    assert page.evaluate("document.activeElement.closest('#result_list tbody tr') !== null")


def test_actions_are_shown_for_ticked_rows(open_as: Opener, boss: User) -> None:
    job_in(Status.FAILED)
    page = open_as(boss, get_list_url(Job))
    actions = page.get_by_label("Action:")
    expect(actions).to_be_hidden()
    page.locator("#result_list input.action-select").check()
    expect(actions).to_be_visible()
    page.locator("#result_list input.action-select").uncheck()
    expect(actions).to_be_hidden()


def test_search_filters_and_tabs_go_together(open_as: Opener, boss: User) -> None:
    mail, other = JobFactory.create(job_type="demo.mail", failed=True), job_in(Status.FAILED)
    page = open_as(boss, get_list_url(Job))
    page.get_by_role("combobox", name="Search jobs").fill("type:demo.mail")
    page.keyboard.press("Enter")
    expect(page.locator('[data-count="FAILED"]')).to_have_text("1")
    page.locator(".jc-statuses").get_by_role("link", name="Failed").click()
    expect(page.get_by_role("combobox", name="Search jobs")).to_have_value("type:demo.mail")
    expect(page.get_by_text(str(mail.pk)[-12:])).to_be_visible()
    expect(page.get_by_text(str(other.pk)[-12:])).to_have_count(0)
    page.get_by_text("Add filter").click()
    page.get_by_label("From").first.fill("2020-01-01T00:00")
    page.get_by_role("button", name="Filter", exact=True).click()
    page.wait_for_url("**submitted_from=2020-01-01T00%3A00**")
    assert "ended_from" not in page.url
    page.get_by_role("link", name="submitted").click()
    page.wait_for_url(lambda url: "submitted_from" not in url)
    expect(page.get_by_role("combobox", name="Search jobs")).to_have_value("type:demo.mail")


LISTS = (Schedule, Worker, JobGroup, Target, ConcurrencyLimit, JobTemplate, WebhookEndpoint, WebhookDelivery, ApiToken)


@pytest.mark.parametrize(("size", "limit"), [(WIDE, 260), (PHONE, 300)])
def test_the_first_row_of_every_list_is_on_the_first_screen(size: Any, limit: int, open_as: Opener, boss: User) -> None:
    create_all_rows()
    page = open_as(boss, get_list_url(Job), **size)
    for model in LISTS:
        page.goto(get_list_url(model))
        assert page.evaluate(FIRST_ROW) <= limit, model


def test_the_buttons_that_move_a_job_stand_in_columns(open_as: Opener, boss: User) -> None:
    JobFactory.create_batch(3)
    page = open_as(boss, f"{reverse('admin:jobscheduler_jobs_queue')}?priority=50")
    for name in ("top", "up", "down", "bottom"):
        buttons = page.locator(f'[data-move="{name}"]')
        assert buttons.count() == 3
        assert len({button.bounding_box()["x"] for button in buttons.all()}) == 1, name


def test_the_panels_of_a_job_stand_apart_on_a_phone(open_as: Opener, boss: User) -> None:
    page = open_as(boss, get_page_url(job_in(Status.COMPLETED)), **PHONE)
    above, below = (page.locator(name).bounding_box() for name in ("#job-events", "#job-logs"))
    assert below["y"] - above["y"] - above["height"] >= 12
