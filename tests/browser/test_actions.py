"""Every verb by hand, on the list and on the job's page, with and without a script."""

from __future__ import annotations

import pytest
from django.contrib.auth.models import User
from playwright.sync_api import Page, expect

from jobs.admin.job_actions import JOB_ACTIONS
from jobs.models import Job
from jobs.states import Status
from tests.admin.test_actions import VERBS as TRIED
from tests.browser.conftest import Opener
from tests.factories import job_in
from tests.support.admin_pages import get_list_url, get_page_url
from tests.support.snapshots import list_events

pytestmark = [pytest.mark.browser, pytest.mark.once, pytest.mark.django_db(transaction=True)]
SCRIPTED = pytest.mark.parametrize("is_scripted", [True, False], ids=["with a script", "without"])


@pytest.fixture
def boss(transactional_db: None) -> User:
    return User.objects.create_superuser("boss")


def act(page: Page, job: Job, action: str) -> None:
    page.locator(f'input[name="_selected_action"][value="{job.pk}"]').check()
    page.get_by_label("Action:").select_option(action)
    page.get_by_label("Reason:").fill("by hand")
    page.get_by_role("button", name="Go").click()


def read_last_event(job: Job) -> tuple[str, str, str]:
    event = list_events(job)[-1]
    return event.kind, event.actor_name, event.reason


@SCRIPTED
@pytest.mark.parametrize("verb", TRIED)
def test_a_verb_is_done_from_the_list(open_as: Opener, boss: User, verb: str, is_scripted: bool) -> None:
    status, event = TRIED[verb]
    job = job_in(status)
    page = open_as(boss, get_list_url(Job), java_script_enabled=is_scripted)
    act(page, job, verb)
    expect(page.get_by_text(str(JOB_ACTIONS[verb].done_text % {"count": 1}))).to_be_visible()
    assert read_last_event(job) == (event, "boss", "by hand")


@SCRIPTED
@pytest.mark.parametrize("verb", TRIED)
def test_a_verb_is_done_on_the_jobs_page(open_as: Opener, boss: User, verb: str, is_scripted: bool) -> None:
    status, event = TRIED[verb]
    job = job_in(status)
    page = open_as(boss, get_page_url(job), java_script_enabled=is_scripted)
    confirmation = page.locator(f"#verb-{verb}")
    confirmation.locator("summary").click()
    confirmation.get_by_label("Reason:").fill("by hand")
    confirmation.get_by_role("button", name=str(JOB_ACTIONS[verb].label), exact=True).click()
    expect(page.get_by_text(str(JOB_ACTIONS[verb].done_text % {"count": 1}))).to_be_visible()
    assert read_last_event(job) == (event, "boss", "by hand")


@SCRIPTED
def test_the_priority_of_a_job_is_changed_from_the_list(open_as: Opener, boss: User, is_scripted: bool) -> None:
    job = job_in(Status.QUEUED)
    page = open_as(boss, get_list_url(Job), java_script_enabled=is_scripted)
    act(page, job, "change_priority")
    page.get_by_label("Priority").fill("77")
    page.get_by_role("button", name="Change priority").click()
    expect(page.get_by_text("1 job changed.")).to_be_visible()
    job.refresh_from_db()
    assert job.priority == 77


def test_a_dry_run_of_one_job_only_says_what_would_happen(open_as: Opener, boss: User) -> None:
    job = job_in(Status.QUEUED)
    page = open_as(boss, get_list_url(Job))
    page.locator(f'input[name="_selected_action"][value="{job.pk}"]').check()
    page.get_by_label("Preview only").check()
    act(page, job, "pause")
    expect(page.get_by_role("heading", name="Pause 1 job?")).to_be_visible()
    job.refresh_from_db()
    assert job.status == Status.QUEUED
