"""The console in a real browser, under the strict policy: what a person clicks, types, drags and sees."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.urls import reverse
from playwright.sync_api import Page, expect

from jobs import demo
from jobs.actors import Actor, ActorKind
from jobs.models import Job, Worker
from jobs.services import jobs as job_services
from jobs.states import Status
from schedules.models import Schedule
from tests.admin.test_pages import SHOWN
from tests.browser.conftest import Opener
from tests.factories import job_in
from tests.packaging.processes import until
from tests.support.admin_pages import get_list_url, get_page_url
from tests.support.admin_rows import create_all_rows
from tests.support.admin_users import create_reader
from tests.support.worker_processes import LONG_LEASE_SETTINGS, Fleet, wait_for_status

pytestmark = [pytest.mark.browser, pytest.mark.once, pytest.mark.django_db(transaction=True)]
IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
SCREENS = ("overview", "queue", "enqueue", "activity", "performance")


@pytest.fixture
def boss(transactional_db: None) -> User:
    return User.objects.create_superuser("boss")


def place(name: str) -> str:
    return reverse(f"admin:jobscheduler_jobs_{name}")


def enqueue_jobs(count: int) -> list[Job]:
    return [job_services.enqueue("sample.add", {"a": number, "b": 0}) for number in range(count)]


def confirm(page: Page, verb: str) -> None:
    """Open the confirmation of a verb on a job's page, and submit it."""
    page.locator(f"#verb-{verb} summary").click()
    page.locator(f"#verb-{verb} button[type=submit]").click()


def order(page: Page) -> list[str]:
    return [str(item.get_attribute("data-job")) for item in page.locator("tr[data-job]").all()]


def test_a_verb_on_the_list_and_on_the_job_page(open_as: Opener, boss: User) -> None:
    job = enqueue_jobs(2)[0]
    page = open_as(boss, get_list_url(Job))
    page.locator(f'input[name="_selected_action"][value="{job.pk}"]').check()
    page.get_by_label("Action:").select_option("pause")
    page.get_by_label("Reason:").fill("later")
    page.get_by_role("button", name="Go").click()
    expect(page.get_by_text("1 job paused.")).to_be_visible()
    page.locator(f'a[href*="{job.pk}"]').first.click()
    confirm(page, "resume")
    expect(page.get_by_text("1 job resumed.")).to_be_visible()
    expect(page.locator(".jc-steps")).to_contain_text("later")
    job.refresh_from_db()
    assert job.status == Status.QUEUED


def test_a_running_job_is_paused_and_resumed_by_its_buttons(open_as: Opener, boss: User, fleet: Fleet) -> None:
    fleet.start("--name=one", settings=LONG_LEASE_SETTINGS)
    job = job_services.enqueue("sample.count", {"upto": 100_000, "pace": 0.05})
    wait_for_status(job.pk, Status.RUNNING, fleet=fleet)
    page = open_as(boss, get_page_url(job))
    confirm(page, "pause")
    wait_for_status(job.pk, Status.PAUSED, fleet=fleet)
    expect(page.locator("#job-title .jc-paused")).to_be_visible()  # by itself: the page keeps fresh
    confirm(page, "resume")
    wait_for_status(job.pk, Status.RUNNING, fleet=fleet)
    confirm(page, "cancel")
    wait_for_status(job.pk, Status.CANCELLED, fleet=fleet)


def test_a_queue_is_reordered_by_buttons_keys_and_drag(open_as: Opener, boss: User) -> None:
    a, b, c = [str(job.pk) for job in enqueue_jobs(3)]
    page = open_as(boss, f"{place('queue')}?tenant=default&priority=50")
    page.locator(f"#job-{c}").get_by_role("button", name="One place up").click()
    page.wait_for_url(re.compile(f"#job-{c}$"))
    assert order(page) == [a, c, b]
    page.locator(f"#job-{c}").focus()
    with page.expect_navigation():
        page.keyboard.press("Alt+ArrowUp")
    assert order(page) == [c, a, b]
    with page.expect_navigation():
        row = page.locator(f"#job-{b} td").first
        row.drag_to(page.locator(f"#job-{c} td").first, target_position={"x": 5, "y": 2})
    assert order(page) == [b, c, a]


def test_many_jobs_are_retried_after_a_look_at_what_would_happen(open_as: Opener, boss: User) -> None:
    [job_in(Status.FAILED) for _ in range(3)], job_in(Status.RUNNING)
    page = open_as(boss, get_list_url(Job))
    page.locator("#action-toggle").check()
    page.get_by_label("Action:").select_option("retry")
    page.get_by_role("button", name="Go").click()
    expect(page.get_by_role("heading", name="Retry 3 jobs?")).to_be_visible()
    expect(page.locator("#jc-skipped")).to_have_text("1 will be skipped: already running")
    assert Job.objects.count() == 4
    page.get_by_role("button", name="Retry").click()
    expect(page.get_by_text("3 jobs retried, 1 skipped: already running")).to_be_visible()


def test_a_list_keeps_itself_fresh_and_stops_while_somebody_chooses(open_as: Opener, boss: User) -> None:
    first = enqueue_jobs(1)[0]
    page = open_as(boss, get_list_url(Job))
    page.locator(".jc-live-every").select_option("2")
    job_services.pause(first.pk)
    expect(page.locator("#result_list .jc-paused")).to_be_visible()
    expect(page.locator('[data-count="stopped"]')).to_have_text("1")
    page.locator("#result_list input.action-select").check()
    with page.expect_response(lambda answer: answer.request.headers.get("x-jobs-live") == "1"):
        job_services.resume(first.pk)
        page.evaluate("document.querySelector('input.action-select:checked').blur()")
        page.keyboard.press("r")
    expect(page.locator("#result_list .jc-paused")).to_be_visible()
    page.locator("#result_list input.action-select").uncheck()
    page.evaluate("document.activeElement.blur()")
    expect(page.locator("#result_list .jc-warn")).to_be_visible()  # there is no worker
    page.locator("#result_list input.action-select").check()
    expect(page.locator(".action-counter")).to_contain_text("1 of 1")


def test_a_reader_sees_everything_and_is_offered_nothing(open_as: Opener, transactional_db: None) -> None:
    rows = [row for row in create_all_rows() if isinstance(row, Job)]
    page = open_as(create_reader("looker"), place("overview"))
    for path in (place("overview"), place("queue"), get_list_url(Job), *(get_page_url(job) for job in rows)):
        page.goto(path)
        forms = page.locator(
            '#content-main form[method="post"]:not(#changelist-form):not([id$="_form"]), .jc form[method="post"]'
        )
        assert forms.count() == 0, path
        assert page.get_by_label("Action:").count() == 0, path


def test_keys_lead_through_the_console(open_as: Opener, boss: User) -> None:
    enqueue_jobs(1)
    page = open_as(boss, place("overview"))
    page.keyboard.type("gj")
    page.wait_for_url(f"**{get_list_url(Job)}")
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.id") == "searchbar"
    page.keyboard.type("gd")  # in a field, keys are letters
    assert page.locator("#searchbar").input_value() == "gd"
    page.evaluate("document.activeElement.blur()")
    expect(page.get_by_role("status")).to_have_text("Live")  # screen readers are not told the seconds
    expect(page.locator(".jc-live-age")).to_have_text(re.compile(r"updated \d+ s ago"))
    page.keyboard.press("p")
    expect(page.get_by_role("status")).to_have_text("Paused")
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()  # until then, its keys are not ours
    page.wait_for_function("!document.activeElement.closest('dialog, input')")  # which has its focus back
    page.keyboard.type("gq")
    page.wait_for_url(f"**{place('queue')}")


@pytest.mark.timeout(300)  # all pages there are, one after the other
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_breaks_the_policy_or_the_layout_in_light_and_dark(open_as: Opener, boss: User, scheme: str) -> None:
    rows = create_all_rows()
    page = open_as(boss, place("overview"), color_scheme=scheme)
    back = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", back)[:3])) < 200) is (scheme == "dark")
    paths = [*map(place, SCREENS), *map(get_list_url, SHOWN), *map(get_page_url, rows)]
    for path in paths if scheme == "light" else paths[:3]:
        answer = page.goto(path)
        assert answer is not None
        assert answer.ok, path
    page.set_viewport_size({"width": 390, "height": 800})
    for path in (*map(place, SCREENS), get_page_url(rows[0])):
        page.goto(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 400, path


def test_every_verb_works_without_a_script(open_as: Opener, boss: User) -> None:
    a, b = [str(job.pk) for job in enqueue_jobs(2)]
    page = open_as(boss, place("queue"), java_script_enabled=False)
    page.locator(f"#next-{b}").get_by_role("link", name="Move…").click()
    page.locator(f"#job-{b}").get_by_role("button", name="First of its priority").click()
    assert order(page) == [b, a]
    page.goto(get_page_url(Job.objects.get(pk=a)))
    confirm(page, "cancel")
    expect(page.get_by_text("1 job cancelled.")).to_be_visible()


def test_screenshots(open_as: Opener, boss: User, fleet: Fleet) -> None:
    """Pictures for the documentation; only with `--screenshots`, see conftest."""
    scene(fleet)
    failed = Job.objects.filter(status=Status.FAILED, job_type="demo.mail", target__isnull=False).latest("pk")
    running = Job.objects.get(target="book-1")
    paths = {
        "overview": place("overview"),
        "job-running": get_page_url(running),
        "queue": place("queue"),
        "jobs": get_list_url(Job),
        "job": get_page_url(failed),
        "schedules": get_list_url(Schedule),
        "activity": place("activity"),
        "workers": get_list_url(Worker),
    }
    wide, phone = {"width": 1440, "height": 900}, {"width": 390, "height": 844}
    views: dict[str, dict[str, Any]] = {
        "": {"viewport": wide},
        "-dark": {"viewport": wide, "color_scheme": "dark"},
        "-phone": {"viewport": phone},
    }
    for suffix, options in views.items():
        page = open_as(boss, place("overview"), **options)
        for name, path in paths.items():
            height = 1180 if name == "overview" else options["viewport"]["height"]
            page.set_viewport_size({**options["viewport"], "height": height})
            page.goto(path)
            page.wait_for_load_state("networkidle")
            page.evaluate(SHORTEN_PATHS, f"{IMAGES.parents[1]}/")
            page.screenshot(path=IMAGES / f"{name}{suffix}.png")


# Tracebacks name the files of the machine on which the pictures are made.
SHORTEN_PATHS = """(root) => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) texts.currentNode.data = texts.currentNode.data.replaceAll(root, "");
}"""


def scene(fleet: Fleet) -> None:
    """The demo, with a worker that has finished some of its jobs."""
    demo.fill(actor=Actor(ActorKind.CLI, "ada"))
    fleet.start("--name=worker-1", "--concurrency=4", settings=LONG_LEASE_SETTINGS)
    long = job_services.enqueue("system.sleep", {"seconds": 90}, target="book-1", priority=90)
    wait_for_status(long.pk, Status.RUNNING, fleet=fleet)
    assert until(Job.objects.filter(job_type="system.sleep", status=Status.COMPLETED, schedule=None).exists, 60)
