"""The dashboard: alerts only when true, numbers that are links, plots from the rollup, and a switch per resource."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib import admin
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.test import Client, RequestFactory
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

import tests.sample_app.job_types  # noqa: F401
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
    WebhookEndpointFactory,
    WorkerFactory,
    job_in,
)
from tests.support.admin_pages import get_list_url, get_page_url, read_messages
from tests.support.admin_users import create_reader, log_in
from tests.support.snapshots import dump_tables

MOST_STATEMENTS = 30


def place(name: str, *args: Any) -> str:
    return reverse(f"admin:jobscheduler_jobs_{name}", args=args)


def messages_of(client: Client) -> str:
    return " ".join(alert.message for alert in client.get(place("dashboard")).context["alerts"])


def test_it_is_the_first_entry_of_the_app_list(boss: Client, looker: Client) -> None:
    for client in (boss, looker):
        page = client.get(reverse("admin:index"))
        ours = next(app for app in page.context["app_list"] if app["app_label"] == "jobscheduler_jobs")
        assert (str(ours["models"][0]["name"]), ours["models"][0]["admin_url"]) == ("Dashboard", place("dashboard"))
        assert page.context["app_list"] == client.get(reverse("admin:index")).context["app_list"]


def test_who_may_not_see_jobs_is_shown_no_screen(client: Client, django_user_model: Any) -> None:
    client.force_login(django_user_model.objects.create_user("staff", is_staff=True))
    assert [client.get(place(name)).status_code for name in ("dashboard", "queue", "counts")] == [403, 403, 403]
    request = RequestFactory().get("/")
    request.user = django_user_model.objects.get()
    assert "Dashboard" not in str(admin.site.get_app_list(request))


def test_an_empty_install_is_told_three_steps_and_no_alarm(boss: Client) -> None:
    page = boss.get(place("dashboard"))
    assert (page.context["is_new"], page.context["alerts"], "manage.py worker" in page.content.decode()) == (
        True,
        [],
        True,
    )


def test_each_card_counts_what_its_link_lists(boss: Client) -> None:
    for status in (Status.QUEUED, Status.QUEUED, Status.RUNNING, Status.PAUSED, Status.PENDING):
        job_in(status)
    job_in(Status.FAILED, in_lane=True)
    job_services.enqueue("tests.note", {"text": "later"}, not_before=timezone.now() + timedelta(hours=1))
    for status, ago in ((Status.COMPLETED, 3), (Status.COMPLETED, 20), (Status.FAILED, 5), (Status.COMPLETED, 30)):
        at = timezone.now() - timedelta(hours=ago)
        job = job_in(status, created_at=at - timedelta(days=9))
        JobEventFactory.create(job=job, kind=str(status), at=at)
        JobMinuteFactory.create(minute=at.replace(second=0, microsecond=0), outcome=str(status), jobs=1)
    WorkerFactory.create(busy=1, slots=3)
    cards = boss.get(place("dashboard")).context["cards"]
    assert [card["count"] for card in cards] == [3, 1, 1, 1, 1, 1, 2, 1]
    for card in cards:
        assert boss.get(card["url"]).context["cl"].result_count == card["count"], card


def test_alerts_say_what_is_true_and_nothing_else(boss: Client) -> None:
    now = timezone.now()
    assert messages_of(boss) == ""
    job_in(Status.QUEUED, created_at=now - timedelta(minutes=20))
    job_in(Status.RUNNING, lease_expires_at=now - timedelta(minutes=5))
    job_in(Status.FAILED, in_lane=True)
    ScheduleFactory.create(next_fire_at=now - timedelta(minutes=10))
    WebhookEndpointFactory.create(enabled=False, disabled_reason="gone")
    JobMinuteFactory.create(minute=now - timedelta(minutes=2), outcome="FAILED", jobs=50)
    messages = messages_of(boss)
    expected = (
        "No worker is running",
        "without a sign of life",
        "target is blocked",
        "has been waiting for 20 min",
        "50 of 50 jobs failed",
        "Schedules are late",
        "endpoint was disabled",
    )
    assert [words for words in expected if words not in messages] == []
    WorkerFactory.create()
    assert "No worker is running" not in messages_of(boss)


def test_what_waits_because_somebody_paused_it_is_no_alarm(boss: Client) -> None:
    WorkerFactory.create()
    job_in(Status.QUEUED, resource="plotter", created_at=timezone.now() - timedelta(minutes=20))
    assert "has been waiting for 20 min" in messages_of(boss)
    limits.pause("resource", "plotter", reason="out of paper")
    assert messages_of(boss) == ""


@pytest.mark.parametrize("window", ["1h", "24h", "7d", "nonsense", ""])
def test_every_window_plots_what_the_rollup_has(window: str, boss: Client) -> None:
    minute = timezone.now().replace(second=0, microsecond=0) - timedelta(minutes=5)
    JobMinuteFactory.create(minute=minute, outcome="COMPLETED", jobs=7)
    JobMinuteFactory.create(minute=minute, outcome="FAILED", jobs=3)
    page = boss.get(place("dashboard"), {"window": window})
    assert [(slot.completed, slot.failed) for slot, *_ in page.context["table"]] == [(7, 3)]
    assert "7 completed, 3 failed, 0 other" in page.content.decode()


def test_failures_that_look_alike_stand_together_and_are_retried_together(boss: Client) -> None:
    trace = 'Traceback:\n  File "/site-packages/x.py", line 9\n  File "/app/{}.py", line {}\n{}: boom\n'
    alike = [job_in(Status.FAILED, run__error=trace.format("mail", 3, "ValueError")) for _ in range(3)]
    job_in(Status.FAILED, run__error=trace.format("mail", 7, "KeyError"))
    job_in(Status.FAILED, resolved_at=timezone.now())
    failures = [failure for failure, _ in boss.get(place("dashboard")).context["failures"]]
    assert [(failure.error, failure.location, len(failure.job_ids)) for failure in failures] == [
        ("ValueError", "mail.py:3", 3),
        ("KeyError", "mail.py:7", 1),
    ]
    post = {"action": "retry", "index": "0", "dry_run": "on", "_selected_action": failures[0].job_ids}
    page = boss.post(get_list_url(Job), post)
    assert str(page.context["dry_run"]) == "3 jobs: 3 will be retried."
    assert set(failures[0].job_ids) == {job.pk for job in alike}


def test_the_next_fires_are_shown_in_order(boss: Client) -> None:
    now = timezone.now()
    later = ScheduleFactory.create(name="later", next_fire_at=now + timedelta(hours=3))
    sooner = ScheduleFactory.create(name="sooner", next_fire_at=now + timedelta(minutes=10))
    ScheduleFactory.create(name="never", enabled=False, next_fire_at=None)
    page = boss.get(place("dashboard")).content.decode()
    assert page.index(get_page_url(sooner)) < page.index(get_page_url(later))
    assert ">never<" not in page


def test_a_resource_is_paused_and_resumed_by_those_who_may(db: Any, looker: Client) -> None:
    job_services.enqueue("tests.note", {"text": "a"}, resource="smtp")
    client = log_in(create_reader("operator", "change_limits"))
    response = client.post(place("resource", "pause"), {"key": "smtp", "reason": "maintenance"})
    assert (response["Location"], read_messages(response)) == (
        place("dashboard"),
        "Resource smtp is paused; what runs goes on.",
    )
    state = limits.get_state("resource", "smtp")
    assert (state.paused, state.paused_by, state.reason) == (True, "operator", "maintenance")
    row = next(row for row in client.get(place("dashboard")).context["resources"] if row.name == "smtp")
    assert (row.queued, row.limit.paused, row.reason) == (1, True, "maintenance")
    client.post(place("resource", "resume"), {"key": "smtp"})
    assert not limits.get_state("resource", "smtp").paused
    before = dump_tables()
    assert looker.post(place("resource", "pause"), {"key": "smtp"}).status_code == 403
    assert 'action="' + place("resource", "pause") not in looker.get(place("dashboard")).content.decode()
    assert client.get(place("resource", "pause")).status_code == 405
    assert client.post(place("resource", "explode"), {"key": "smtp"}).status_code == 404
    for key in ("", "a\nb", "x" * 300, "\0"):
        assert client.post(place("resource", "pause"), {"key": key}).status_code == 302
    assert client.post(place("resource", "pause"), {"key": "smtp", "reason": "x" * 5000}).status_code == 302
    assert dump_tables() == before


def test_the_dashboard_takes_few_statements_however_much_goes_on(boss: Client) -> None:
    def statements() -> int:
        boss.get(place("dashboard"))
        with CaptureQueriesContext(connection) as captured:
            assert boss.get(place("dashboard")).status_code == 200
        return len(captured)

    job_in(Status.FAILED, in_lane=True), job_in(Status.QUEUED), WorkerFactory.create(), ScheduleFactory.create()
    baseline = statements()
    for number in range(20):
        job_in(Status.FAILED, in_lane=True), job_in(Status.QUEUED, resource=f"pool-{number}")
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


def test_the_dashboard_reads_as_many_rows_for_ten_thousand_names_as_for_a_hundred(boss: Client) -> None:
    now, read_rows = timezone.now(), []
    for numbers in (range(100), range(100, 10_000)):
        names = [{"resource": f"pool-{number}", "job_type": f"type-{number}"} for number in numbers]
        queued: Any = {"status": "QUEUED", "gate": Gate.READY, "flow_id": 1, "position": 1}
        ended: Any = {"outcome": "COMPLETED", "jobs": 1, "minute": now, "wait_bucket": 0, "run_bucket": 0}
        Job.objects.bulk_create([Job(**name, **queued) for name in names])
        JobMinute.objects.bulk_create([JobMinute(**name, **ended) for name in names])
        live_counts.clear_cache()
        with CaptureQueriesContext(connection) as captured:
            page = boss.get(place("dashboard"))
        assert len(page.context["resources"]) == 50
        read_rows.append(count_read_rows(captured))
    assert read_rows[1] == read_rows[0] < 1000


def test_the_busiest_resources_are_shown(boss: Client) -> None:
    for number in range(60):
        JobFactory.create_batch(1 + (number >= 57), resource=f"pool-{number}")
    job_in(Status.RUNNING, resource="pool-58")
    shown = [(row.name, row.queued, row.running) for row in boss.get(place("dashboard")).context["resources"]]
    assert len(shown) == 50
    assert shown[:3] == [("pool-58", 2, 1), ("pool-57", 2, 0), ("pool-59", 2, 0)]


def test_a_dashboard_that_asks_for_itself_is_told_that_nothing_happened(boss: Client) -> None:
    asked = {"X-Jobs-Live": "1"}
    first = boss.get(place("dashboard"), headers=asked)
    with CaptureQueriesContext(connection) as captured:
        again = boss.get(place("dashboard"), headers={**asked, "If-None-Match": first["ETag"]})
    assert (again.status_code, again.content) == (304, b"") or again["ETag"] != first["ETag"]
    assert again.status_code == 200 or len(captured) <= 3  # who asks, and what happened last
    job_services.enqueue("tests.note", {"text": "a"})
    assert boss.get(place("dashboard"), headers={**asked, "If-None-Match": first["ETag"]}).status_code == 200


def test_grouped_digits_stay_out_of_what_a_browser_reads_as_a_number(boss: Client, settings: Any) -> None:
    settings.USE_THOUSAND_SEPARATOR = True
    limits.set_maximum("resource", "smtp", maximum=5000)
    JobMinuteFactory.create(minute=timezone.now() - timedelta(minutes=5), outcome="COMPLETED", jobs=12_345)
    page = boss.get(place("dashboard")).content.decode()
    assert ('max="5000"' in page, "12,345" in page) == (True, True)
    assert boss.get(place("queue"), {"from": "2000"}).status_code == 200


def test_a_database_that_lacks_migrations_is_said(db: Any) -> None:
    client = log_in(create_reader("ann"))
    assert "migrate" not in messages_of(client)
    MigrationRecorder(connection).record_unapplied("jobscheduler_jobs", "0002_invariants")
    assert "The database lacks 1 migrations (jobscheduler_jobs 0002_invariants): run migrate." in messages_of(client)
