"""Fifteen tasks of an operator, from the overview on: each is done, in few clicks, and the page then says what is true.

`pytest` prints the clicks of each task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.core.management import call_command
from django.utils import timezone
from playwright.sync_api import Locator, Page, expect

from jobs.models import ConcurrencyLimit, Job, Worker, WorkerState
from jobs.services import jobs as job_services
from jobs.services import limits
from jobs.states import Status
from schedules.models import Schedule
from tests.browser.conftest import Opener
from tests.browser.paths import get_screen_path
from tests.factories import JobEventFactory, JobFactory, JobMinuteFactory, ScheduleFactory, WorkerFactory
from tests.support import webhooks
from tests.support.snapshots import list_events
from tests.support.webhook_receiver import run_receiver
from tests.support.worker_processes import LONG_LEASE_SETTINGS, Fleet, wait_for_status
from webhooks.models import DeliveryStatus, WebhookDelivery

pytestmark = [pytest.mark.browser, pytest.mark.once, pytest.mark.django_db(transaction=True)]
ERROR = 'Traceback (most recent call last):\n  File "press.py", line 7, in send\nConnectionError: no route'


class Operator:
    """A person at the overview, whose clicks are counted. Typing is none."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.clicks = 0

    def click(self, what: Locator) -> None:
        self.clicks += 1
        what.click()

    def navigate(self, entry: str) -> None:
        self.click(self.page.locator("#nav-sidebar").get_by_role("link", name=entry, exact=False).first)

    def open_row(self, text: str) -> None:
        self.click(self.page.locator("#result_list tbody tr", has_text=text).locator("a").first)

    def search(self, text: str) -> None:
        box = self.page.locator("#searchbar")
        box.fill(text)
        with self.page.expect_navigation():
            box.press("Enter")

    def confirm(self, verb: str) -> None:
        """Open a verb's confirmation on a job's page, and submit it."""
        self.click(self.page.locator(f"#verb-{verb} summary"))
        self.click(self.page.locator(f"#verb-{verb} button[type=submit]"))

    def expect_text(self, text: str) -> None:
        expect(self.page.locator("#container").get_by_text(text).first).to_be_visible()


Start = Callable[..., Operator]


@pytest.fixture
def operator(
    open_as: Opener, transactional_db: None, record_property: Callable[[str, object], None]
) -> Iterator[Start]:
    """Return a function that opens the overview for a user with a role."""
    make_site()
    call_command("createroles", verbosity=0)
    started: list[Operator] = []

    def start(role: str = "Job operator") -> Operator:
        boss = User.objects.create_user("boss", is_staff=True)
        boss.groups.add(Group.objects.get(name=role))
        found = Operator(open_as(boss, get_screen_path("overview"), viewport={"width": 1440, "height": 900}))
        started.append(found)
        return found

    yield start
    record_property("clicks", sum(one.clicks for one in started))


def make_site() -> None:
    """A worker with two slots, and some jobs in every state."""
    WorkerFactory.create(name="press-1", slots=2, serves={"types": ["sample.add", "sample.noop", "sample.count"]})
    for number in range(3):
        JobFactory.create(completed=True, job_type="sample.add")
        job_services.enqueue("sample.add", {"a": number, "b": 0})
    JobFactory.create(running=True, job_type="sample.noop")
    JobFactory.create(cancelled=True, job_type="sample.noop")


def fail_job(ago: timedelta = timedelta(), **fields: object) -> Job:
    """Create a failed job with the event of its end."""
    at = timezone.now() - ago
    ended = {"run__error": ERROR, "run__finished_at": at}
    job: Job = JobFactory.create(failed=True, job_type="sample.noop", created_at=at, **ended, **fields)
    JobEventFactory.create(job=job, kind=str(Status.FAILED), at=at)
    return job


def test_1_it_is_seen_why_a_job_waits(operator: Start) -> None:
    limits.pause("resource", "plotter", reason="out of paper")
    job_services.enqueue("sample.add", {"a": 7, "b": 7}, resource="plotter")
    person = operator()
    person.navigate("Queue")
    person.expect_text("resource plotter paused")
    person.expect_text("out of paper")
    assert person.clicks == 1


def test_2_and_3_a_running_job_is_paused_resumed_and_cancelled(operator: Start, fleet: Fleet) -> None:
    fleet.start("--name=one", settings=LONG_LEASE_SETTINGS)
    job = job_services.enqueue("sample.count", {"upto": 100_000, "pace": 0.05})
    wait_for_status(job.pk, Status.RUNNING, fleet=fleet)
    person = operator()
    person.click(person.page.locator("#jc-running").get_by_role("link", name="sample.count"))
    person.confirm("pause")
    wait_for_status(job.pk, Status.PAUSED, fleet=fleet)
    expect(person.page.locator("#job-title .jc-paused")).to_be_visible()
    assert person.clicks == 3
    assert [event.actor_name for event in list_events(job) if event.kind == "PAUSE_REQUESTED"] == ["boss"]
    person.confirm("resume")
    wait_for_status(job.pk, Status.RUNNING, fleet=fleet)
    person.confirm("cancel")
    wait_for_status(job.pk, Status.CANCELLED, fleet=fleet)
    expect(person.page.locator("#job-title")).to_contain_text("Cancelled")
    assert person.clicks == 7


def test_4_failures_of_one_kind_are_seen_and_retried(operator: Start) -> None:
    failed = [fail_job() for _ in range(8)]
    person = operator()
    person.click(person.page.get_by_role("button", name="Retry 8 jobs…"))
    person.expect_text("Nothing has changed yet.")
    assert not Job.objects.filter(retry_of__isnull=False).exists()
    person.click(person.page.get_by_role("button", name="Retry", exact=True))
    person.expect_text("8 jobs retried.")
    assert set(Job.objects.filter(retry_of__isnull=False).values_list("retry_of", flat=True)) == {j.pk for j in failed}
    assert person.clicks == 2


def test_5_a_job_is_moved_to_the_front_of_the_queue(operator: Start) -> None:
    last = job_services.enqueue("sample.add", {"a": 99, "b": 0})
    person = operator()
    person.navigate("Queue")
    row = person.page.locator(f"#next-{last.pk}")
    expect(row).to_contain_text('"a": 99')
    person.click(row.get_by_role("link", name="Move…"))
    person.click(person.page.locator(f"#job-{last.pk}").get_by_role("button", name="First of its priority"))
    expect(person.page.locator("tr[data-job]").first).to_have_attribute("data-job", str(last.pk))
    assert Job.objects.filter(status=Status.QUEUED).order_by("position").first() == last
    assert person.clicks == 3


def test_6_a_limit_is_raised_and_the_change_is_recorded(operator: Start) -> None:
    limits.set_maximum("resource", "plotter", maximum=1)
    person = operator("Job admin")
    person.navigate("Limits")
    person.page.get_by_label("Maximum: Resource plotter").fill("5")
    person.click(person.page.get_by_role("button", name="Save"))
    person.expect_text("changed successfully")
    assert ConcurrencyLimit.objects.get(scope="resource", key="plotter").max == 5
    assert person.clicks == 2
    person.navigate("Activity")
    expect(person.page.locator("#activity tbody tr").first).to_contain_text("1 → 5")


def test_7_a_resource_is_paused_with_a_reason(operator: Start) -> None:
    job_services.enqueue("sample.add", {"a": 1, "b": 1}, resource="plotter")
    person = operator()
    row = person.page.locator("#jc-resources tbody tr", has_text="plotter")
    person.click(row.get_by_role("link", name="Pause…"))
    person.page.get_by_label("Reason").fill("out of paper")
    person.click(person.page.get_by_role("button", name="Pause"))
    expect(person.page.locator("#jc-resources tbody tr", has_text="plotter")).to_contain_text("out of paper")
    limit = ConcurrencyLimit.objects.get(scope="resource", key="plotter")
    assert (limit.paused, limit.paused_by, limit.reason) == (True, "boss", "out of paper")
    assert person.clicks == 2


def test_8_the_failures_of_last_night_are_listed(operator: Start) -> None:
    now = timezone.now()
    old, recent = fail_job(timedelta(hours=10)), fail_job()
    person = operator()
    person.navigate("Jobs")
    person.click(person.page.locator(".jc-statuses").get_by_role("link", name="Failed"))
    person.click(person.page.get_by_text("Add filter"))
    finished = person.page.get_by_role("group", name="Finished")
    finished.get_by_label("From").fill(f"{now - timedelta(hours=12):%Y-%m-%dT%H:%M}")
    finished.get_by_label("To", exact=True).fill(f"{now - timedelta(hours=5):%Y-%m-%dT%H:%M}")
    person.click(person.page.get_by_role("button", name="Filter", exact=True))
    expect(person.page.locator("#result_list tbody tr")).to_have_count(1)
    person.expect_text(str(old.pk)[-12:])
    expect(person.page.get_by_text(str(recent.pk)[-12:])).to_have_count(0)
    assert person.clicks == 4


def test_9_the_jobs_of_a_customer_are_found(operator: Start) -> None:
    wanted = job_services.enqueue("sample.add", {"a": 1, "b": 1}, tags=["acme"])
    person = operator()
    person.navigate("Jobs")
    for words in ("tag:acme", "acme"):
        person.search(words)
        expect(person.page.locator("#result_list tbody tr")).to_have_count(1)
        person.expect_text(str(wanted.pk)[-12:])
    assert person.clicks == 1


def test_10_a_schedule_is_made_in_the_time_of_berlin(operator: Start) -> None:
    person = operator("Job admin")
    person.click(person.page.locator('#nav-sidebar a.addlink[href*="schedule/add"]'))
    person.page.get_by_label("Name:").fill("nightly")
    person.page.locator("#id_job_type").select_option("sample.noop")
    person.page.locator("#id_cron").fill("30 2 * * *")
    person.page.locator("#id_timezone").select_option("Europe/Berlin")
    preview = person.page.locator("#schedule-preview")
    expect(preview).to_contain_text("At 02:30 every day")
    expect(preview.locator("tbody tr").first).to_contain_text("02:30:00 C")
    person.click(person.page.get_by_role("button", name="Save", exact=True))
    person.expect_text("was added successfully")
    schedule = Schedule.objects.get(name="nightly")
    assert schedule.next_fire_at is not None
    assert (schedule.timezone, schedule.next_fire_at.minute, schedule.next_fire_at.hour in (0, 1)) == (
        "Europe/Berlin",
        30,
        True,
    )
    assert person.clicks == 2


def test_11_a_schedule_is_run_now(operator: Start) -> None:
    schedule = ScheduleFactory.create(name="nightly", job_type="sample.noop", params={})
    person = operator()
    person.navigate("Schedules")
    person.open_row("nightly")
    person.click(person.page.get_by_role("button", name="Run now"))
    expect(person.page.locator(".messagelist")).to_be_visible()
    job = Job.objects.get(schedule=schedule)
    expect(person.page.locator(f'#content a[href*="{job.pk}"]').first).to_be_visible()
    assert person.clicks == 3


def test_12_a_webhook_is_sent_again(operator: Start, settings: Any) -> None:
    settings.JOBSCHEDULER = {**settings.JOBSCHEDULER, "WEBHOOK_ALLOW_PRIVATE": True}
    person = operator()
    with run_receiver() as answering:
        endpoint = webhooks.create_endpoint(answering.url)
        job_services.cancel(job_services.enqueue("sample.add", {"a": 1, "b": 1}).pk)
        webhooks.send_round()
        delivery = WebhookDelivery.objects.filter(endpoint=endpoint).first()
        assert delivery is not None
        requests = len(answering.seen)
        WebhookDelivery.objects.filter(pk=delivery.pk).update(status=DeliveryStatus.FAILED)
        person.navigate("Deliveries")
        person.open_row("Failed")
        person.click(person.page.get_by_role("button", name="Resend"))
        person.expect_text("queued for resending")
        webhooks.send_round()
        assert len(answering.seen) == requests + 1
    person.page.reload()
    person.expect_text("Delivered")
    assert person.clicks == 3


def test_13_a_worker_is_drained(operator: Start) -> None:
    person = operator()
    person.click(person.page.locator("#jc-workers").get_by_role("link", name="press-1"))
    person.page.get_by_label("Reason:").fill("new kernel")
    person.click(person.page.get_by_role("button", name="Drain"))
    person.expect_text("new kernel")
    assert Worker.objects.get(name="press-1").request == WorkerState.QUIET
    person.navigate("Overview")
    expect(person.page.locator("#jc-workers")).to_contain_text("Draining")
    assert person.clicks == 3


def test_14_throughput_and_latency_are_read(operator: Start) -> None:
    minute = timezone.now().replace(second=0, microsecond=0) - timedelta(minutes=3)
    JobMinuteFactory.create(minute=minute, job_type="sample.add", jobs=1440, wait_bucket=2, run_bucket=3)
    person = operator()
    finished = person.page.locator(".jc-card", has_text="Finished")
    expect(finished).to_contain_text("1,440")
    expect(finished).to_contain_text("/min")
    assert person.page.locator("#jc-finished svg a").count() > 0
    person.navigate("Performance")
    row = person.page.locator("#content tbody tr", has_text="sample.add")
    expect(row).to_contain_text("1,440")
    expect(row).to_contain_text("≤")
    assert person.clicks == 1


def test_15_it_is_seen_who_cancelled_a_job(operator: Start) -> None:
    job = job_services.enqueue("sample.add", {"a": 5, "b": 5})
    person = operator()
    User.objects.create_superuser("grace")
    person.navigate("Jobs")
    person.open_row(str(job.pk)[-12:])
    person.click(person.page.locator("#verb-cancel summary"))
    person.page.locator("#reason-cancel").fill("wrong order")
    person.click(person.page.locator("#verb-cancel button[type=submit]"))
    person.expect_text("1 job cancelled.")
    expect(person.page.locator(".jc-steps")).to_contain_text("wrong order")
    person.clicks = 0
    person.navigate("Activity")
    row = person.page.locator("#activity tbody tr").first
    for words in ("boss", "Cancel job", "sample.add", "wrong order"):
        expect(row).to_contain_text(words)
    last = list_events(job)[-1]
    assert (last.kind, last.actor_name, last.reason) == ("CANCELLED", "boss", "wrong order")
    assert person.clicks == 1
