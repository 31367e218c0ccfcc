"""The overview: alerts only when true, numbers that are links, plots from the rollup, and a switch per resource."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib import admin
from django.db import connection
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

import tests.sample_app.job_types  # noqa: F401
from jobs.admin.overview import show_on_overview
from jobs.models import Gate, Job, JobMinute
from jobs.services import jobs as job_services
from jobs.services import limits
from jobs.states import Status
from jobs.stats import live_counts
from tests.factories import (
    JobEventFactory,
    JobFactory,
    JobMinuteFactory,
    ScheduleFactory,
    WorkerFactory,
    job_in,
)
from tests.support.admin_pages import get_list_url, get_page_url, read_messages
from tests.support.admin_users import create_reader, log_in
from tests.support.snapshots import dump_tables

MOST_STATEMENTS = 30
SERVES = {"types": ["tests.note", "sample.noop"], "resources": None, "tenant": None}


def place(name: str, *args: Any) -> str:
    return reverse(f"admin:jobscheduler_jobs_{name}", args=args)


def fail_job(at: Any = None, **fields: Any) -> Job:
    """A failed job with the event of its end."""
    job = job_in(Status.FAILED, **fields)
    JobEventFactory.create(job=job, kind=str(Status.FAILED), at=at or timezone.now())
    return job


def test_it_is_the_first_entry_of_the_app_list(boss: Client, looker: Client) -> None:
    for client in (boss, looker):
        url = reverse("admin:app_list", args=["jobscheduler_jobs"])
        first = client.get(url).context["app_list"][0]["models"][0]
        assert (str(first["name"]), first["admin_url"]) == ("Overview", place("overview"))
        assert client.get(url).context["app_list"] == client.get(url).context["app_list"]


def test_who_may_not_see_jobs_is_shown_no_screen(client: Client, django_user_model: Any) -> None:
    client.force_login(django_user_model.objects.create_user("staff", is_staff=True))
    assert [client.get(place(name)).status_code for name in ("overview", "queue", "counts")] == [403, 403, 403]
    request = RequestFactory().get("/")
    request.user = django_user_model.objects.get()
    assert "Overview" not in str(admin.site.get_app_list(request))


def test_an_empty_install_shows_three_steps_and_no_alarm(boss: Client) -> None:
    page = boss.get(place("overview"))
    assert (page.context["is_new"], page.context["alerts"], "manage.py worker" in page.content.decode()) == (
        True,
        [],
        True,
    )


def test_the_next_fires_are_shown_in_order(boss: Client) -> None:
    now = timezone.now()
    later = ScheduleFactory.create(name="later", next_fire_at=now + timedelta(hours=3))
    sooner = ScheduleFactory.create(name="sooner", next_fire_at=now + timedelta(minutes=10))
    ScheduleFactory.create(name="never", enabled=False, next_fire_at=None)
    page = boss.get(place("overview")).content.decode()
    assert page.index(get_page_url(sooner)) < page.index(get_page_url(later))
    assert ">never<" not in page


def test_the_overview_takes_few_statements_however_much_goes_on(boss: Client) -> None:
    def statements() -> int:
        boss.get(place("overview"))
        with CaptureQueriesContext(connection) as captured:
            assert boss.get(place("overview")).status_code == 200
        return len(captured)

    fail_job(in_lane=True), job_in(Status.QUEUED), WorkerFactory.create(), ScheduleFactory.create()
    job_in(Status.RUNNING), JobMinuteFactory.create()
    baseline = statements()
    for number in range(20):
        fail_job(in_lane=True), job_in(Status.RUNNING), job_in(Status.QUEUED, resource=f"pool-{number}")
        ScheduleFactory.create(), JobMinuteFactory.create()
    assert statements() == baseline <= MOST_STATEMENTS


def count_read_rows(captured: CaptureQueriesContext) -> int:
    """Return how many rows the captured statements return."""
    selects = [query["sql"] for query in captured if query["sql"].startswith("SELECT")]
    with connection.cursor() as cursor:
        counts = []
        for sql in selects:
            cursor.execute(f"SELECT count(*) FROM ({sql}) q")
            counts.append(cursor.fetchone()[0])
    return sum(counts)


def test_the_overview_reads_as_many_rows_for_ten_thousand_names_as_for_two_hundred(boss: Client) -> None:
    now, read_rows = timezone.now(), []
    for numbers in (range(200), range(200, 10_000)):
        names = [{"resource": f"pool-{number}", "job_type": f"type-{number}"} for number in numbers]
        queued: Any = {"status": "QUEUED", "gate": Gate.READY, "flow_id": 1, "position": 1}
        ended: Any = {"outcome": "COMPLETED", "jobs": 1, "minute": now, "wait_bucket": 0, "run_bucket": 0}
        Job.objects.bulk_create([Job(**name, **queued) for name in names])
        JobMinute.objects.bulk_create([JobMinute(**name, **ended) for name in names])
        live_counts.clear_cache()
        with CaptureQueriesContext(connection) as captured:
            page = boss.get(place("overview"))
        assert len(page.context["resources"]) == 50
        read_rows.append(count_read_rows(captured))
    assert read_rows[1] == read_rows[0] < 1000


def test_the_busiest_resources_are_shown(boss: Client) -> None:
    for number in range(60):
        JobFactory.create_batch(1 + (number >= 57), resource=f"pool-{number}")
    job_in(Status.RUNNING, resource="pool-58")
    shown = [(row.name, row.queued, row.running) for row in boss.get(place("overview")).context["resources"]]
    assert len(shown) == 50
    assert shown[:3] == [("pool-58", 2, 1), ("pool-57", 2, 0), ("pool-59", 2, 0)]


def test_an_overview_that_asks_for_itself_is_told_that_nothing_happened(boss: Client) -> None:
    asked = {"X-Jobs-Live": "1"}
    first = boss.get(place("overview"), headers=asked)
    with CaptureQueriesContext(connection) as captured:
        again = boss.get(place("overview"), headers={**asked, "If-None-Match": first["ETag"]})
    assert (again.status_code, again.content) == (304, b"") or again["ETag"] != first["ETag"]
    assert again.status_code == 200 or len(captured) <= 3  # who asks, and what happened last
    job_services.enqueue("tests.note", {"text": "a"})
    assert boss.get(place("overview"), headers={**asked, "If-None-Match": first["ETag"]}).status_code == 200


@pytest.mark.parametrize("window", ["1h", "24h", "7d", "nonsense", ""])
def test_every_window_shows_what_the_rollup_has(window: str, boss: Client) -> None:
    minute = timezone.now().replace(second=0, microsecond=0) - timedelta(minutes=5)
    for outcome, jobs in (("COMPLETED", 7), ("FAILED", 3), ("SKIPPED", 2), ("CANCELLED", 1)):
        JobMinuteFactory.create(minute=minute, outcome=outcome, jobs=jobs)
    page = boss.get(place("overview"), {"window": window})
    rows = [[count for count, _url in row["numbers"]] for row in page.context["table"]]
    assert [row for row in rows if any(row)] == [[7, 3, 2, 1]]
    assert len(rows) == {"1h": 60, "7d": 42}.get(window, 48)  # empty ones keep their place
    assert "7 completed, 3 failed, 3 skipped or cancelled" in page.content.decode()
    assert "13 finished, 3 failed; peak 13 at" in page.content.decode()


def test_each_number_leads_to_the_list_that_it_counts(boss: Client) -> None:
    WorkerFactory.create(serves=SERVES, slots=4)
    for status in (Status.QUEUED, Status.QUEUED, Status.RUNNING, Status.PAUSED, Status.PENDING):
        job_in(status)
    job_in(Status.PENDING, hold=False)
    job_in(Status.FAILED, target="book-1")
    job_in(Status.QUEUED, target="book-1")
    job_services.enqueue("tests.note", {"text": "later"}, not_before=timezone.now() + timedelta(hours=1))
    ends = [(30, "COMPLETED"), (26, "FAILED"), (20, "COMPLETED"), (5, "FAILED"), (3, "COMPLETED")]
    for ago, status in (*ends, (2, "SKIPPED"), (2, "CANCELLED")):
        at = timezone.now() - timedelta(hours=ago)
        job = job_in(Status(status), created_at=at - timedelta(days=9))
        JobEventFactory.create(job=job, kind=status, at=at)
        JobMinuteFactory.create(minute=at.replace(second=0, microsecond=0), outcome=status, jobs=1)

    def count(url: str) -> int:
        return int(boss.get(url).context["cl"].result_count)

    page = boss.get(place("overview"), {"window": "24h"})
    finished, failed, running, waiting, _oldest = page.context["figures"]
    assert [figure.value for figure in (finished, failed, running, waiting)] == ["5", "1", "1", "7"]
    assert [count(figure.url) for figure in (finished, failed, running)] == [5, 1, 1]
    assert [part.count for part in waiting.parts] == [3, 1, 1, 2]
    for part in (*waiting.parts, *failed.parts):
        assert count(part.url) == part.count, part
    cells = [cell for row in page.context["table"] for cell in row["numbers"] if cell[0]]
    assert [number for number, _url in cells] == [1] * 5
    for number, url in cells:
        assert count(url) == number
    for resource in page.context["resources"]:
        if resource.trend.total:
            assert count(resource.finished_url) == resource.trend.total
    bars = set(re.findall(r'href="([^"]+)" tabindex', page.content.decode()))
    assert sum(count(bar.replace("&amp;", "&")) for bar in bars if "status=" in bar) == 5
    assert len(bars) == 8  # the whole column of each of four slots, and each of their parts but one of two jobs


def test_the_figures_compare_with_the_window_before(boss: Client) -> None:
    now = timezone.now().replace(second=0, microsecond=0)
    JobMinuteFactory.create(minute=now - timedelta(minutes=30), outcome="COMPLETED", jobs=90)
    JobMinuteFactory.create(minute=now - timedelta(minutes=20), outcome="FAILED", jobs=30)
    JobMinuteFactory.create(minute=now - timedelta(minutes=90), outcome="COMPLETED", jobs=60)
    finished, failed, *_ = boss.get(place("overview"), {"window": "1h"}).context["figures"]
    assert (finished.value, finished.rate[-4:]) == ("120", "/min")
    assert int(finished.note.split(" ")[0]) in range(100, 105)  # the current minute is not over
    assert (failed.value, failed.rate, failed.tone) == ("30", "25.0 %", "bad")


def test_the_figures_say_whether_slots_or_the_limit_hold_jobs_back(boss: Client) -> None:
    worker = WorkerFactory.create(slots=1, busy=1, serves=SERVES)
    job_in(Status.RUNNING), job_in(Status.QUEUED)
    limits.set_maximum("global", maximum=3)
    running = boss.get(place("overview")).context["figures"][2]
    assert (running.value, running.rate, running.note) == (
        "1",
        "of 1 slot · limit 3",
        "Slots, not the limit, hold jobs back",
    )
    worker.slots = 4
    worker.save()
    limits.set_maximum("global", maximum=1)
    running = boss.get(place("overview")).context["figures"][2]
    assert (running.rate, running.note) == ("of 4 slots · limit 1", "The limit, not the slots, holds jobs back")


def test_failures_that_look_alike_stand_together_and_are_retried_together(boss: Client) -> None:
    trace = 'Traceback:\n  File "/site-packages/x.py", line 9\n  File "/app/{}.py", line {}\n{}: boom\n'
    alike = [fail_job(run__error=trace.format("mail", 3, "ValueError")) for _ in range(3)]
    for _ in range(2):
        fail_job(run__error=trace.format("mail", 7, "KeyError"))
    fail_job(resolved_at=timezone.now())
    fail_job(at=timezone.now() - timedelta(hours=30), run__error=trace.format("mail", 9, "OSError"))
    page = boss.get(place("overview"), {"window": "24h"})
    rows = page.context["failures"]
    assert [(row["group"].error, row["group"].location, row["count"]) for row in rows] == [
        ("ValueError", "mail.py:3", 3),
        ("KeyError", "mail.py:7", 2),
    ]
    assert "Retry 3 jobs…" in page.content.decode()
    listed = boss.get(rows[0]["url"]).context["cl"]
    assert {job.pk for job in listed.result_list} == {job.pk for job in alike}
    preview = boss.post(get_list_url(Job), dict_of_lists(rows[0]["fields"]))
    assert [job.pk for job in preview.context["dry_run"].sample] == sorted(job.pk for job in alike)
    assert boss.get(place("overview"), {"window": "7d"}).context["failures"][-1]["group"].error == "OSError"


@pytest.mark.parametrize("limit", ["FAILURES_READ", "FAILURES_SCANNED"])
def test_unhandled_failures_beyond_those_that_are_read_are_counted(
    boss: Client, monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    now = timezone.now()
    for minutes in range(5, 10):
        fail_job(at=now - timedelta(minutes=minutes))
    for _ in range(2):
        fail_job(at=now, resolved_at=now)
    minute = (now - timedelta(minutes=10)).replace(second=0, microsecond=0)
    JobMinuteFactory.create(minute=minute, outcome="FAILED", jobs=7)
    monkeypatch.setattr(f"jobs.admin.failures.{limit}", 2)
    page = boss.get(place("overview"), {"window": "1h"})
    (part,) = page.context["figures"][1].parts
    assert (part.count, boss.get(part.url).context["cl"].result_count) == (5, 5)
    assert "No unhandled failures." not in page.content.decode()


def test_a_window_without_unhandled_failures_says_so(boss: Client) -> None:
    fail_job(resolved_at=timezone.now())
    assert "No unhandled failures." in boss.get(place("overview")).content.decode()


def test_more_workers_than_are_shown_are_all_counted(boss: Client) -> None:
    WorkerFactory.create_batch(12, serves=SERVES)
    page = boss.get(place("overview"))
    assert "All 12 workers" in page.content.decode()
    assert boss.get(page.context["workers_url"]).context["cl"].result_count == 12


def dict_of_lists(fields: Any) -> dict[str, list[Any]]:
    """Return the fields of a form as a browser posts them."""
    posted: dict[str, list[Any]] = {}
    for name, value in fields:
        posted.setdefault(name, []).append(value)
    return posted


def test_running_jobs_are_shown_longest_first_with_progress_and_time_left(boss: Client) -> None:
    now = timezone.now()
    job_in(Status.RUNNING, job_type="tests.new", run__started_at=now - timedelta(seconds=30))
    old = job_in(Status.RUNNING, job_type="tests.old", progress=0.25, run__started_at=now - timedelta(minutes=5))
    page = boss.get(place("overview"))
    assert [row["job"].job_type for row in page.context["running"]] == ["tests.old", "tests.new"]
    row = page.context["running"][0]
    assert (row["job"].pk, row["percent"], round(row["left"].total_seconds() / 60)) == (old.pk, 25, 15)
    assert "about 15 min" in page.content.decode()


def test_a_resource_is_paused_and_resumed_by_those_who_may(db: Any, looker: Client) -> None:
    job_services.enqueue("tests.note", {"text": "a"}, resource="smtp")
    client = log_in(create_reader("operator", "change_limits"))
    before = dump_tables()
    question = client.get(place("resource", "pause"), {"key": "smtp"})
    assert "Nothing has changed yet." in question.content.decode()
    assert dump_tables() == before
    response = client.post(place("resource", "pause"), {"key": "smtp", "reason": "maintenance"})
    assert (response["Location"], read_messages(response)) == (
        place("overview"),
        "smtp paused. Running jobs continue.",
    )
    state = limits.get_state("resource", "smtp")
    assert (state.paused, state.paused_by, state.reason) == (True, "operator", "maintenance")
    row = next(row for row in client.get(place("overview")).context["resources"] if row.name == "smtp")
    assert (row.queued, row.limit.paused, row.reason) == (1, True, "maintenance")
    assert read_messages(client.post(place("resource", "resume"), {"key": "smtp"})) == "smtp resumed."
    assert not limits.get_state("resource", "smtp").paused
    before = dump_tables()
    assert looker.post(place("resource", "pause"), {"key": "smtp"}).status_code == 403
    assert looker.get(place("resource", "pause"), {"key": "smtp"}).status_code == 403
    assert place("resource", "pause") not in looker.get(place("overview")).content.decode()
    assert client.get(place("resource", "resume"), {"key": "smtp"}).status_code == 302
    assert client.post(place("resource", "explode"), {"key": "smtp"}).status_code == 404
    for key in ("", "a\nb", "x" * 300, "\0"):
        assert client.post(place("resource", "pause"), {"key": key}).status_code == 302
        assert client.get(place("resource", "pause"), {"key": key}).status_code == 200
    assert client.post(place("resource", "pause"), {"key": "smtp", "reason": "x" * 5000}).status_code == 302
    assert dump_tables() == before


def test_grouped_digits_stay_out_of_what_a_browser_reads_as_a_number(boss: Client, settings: Any) -> None:
    settings.USE_THOUSAND_SEPARATOR = True
    limits.set_maximum("resource", "smtp", maximum=5000)
    JobMinuteFactory.create(minute=timezone.now() - timedelta(minutes=5), outcome="COMPLETED", jobs=12_345)
    job_in(Status.RUNNING, progress=0.5)
    page = boss.get(place("overview")).content.decode()
    assert ('value="50"' in page, "12,345" in page, 'viewBox="0 0 880 210"' in page) == (True, True, True)
    assert boss.get(place("queue"), {"from": "2000"}).status_code == 200


def test_the_former_module_of_the_overview_can_still_be_imported() -> None:
    from jobs.admin.dashboard import show_on_dashboard

    assert show_on_dashboard is show_on_overview
