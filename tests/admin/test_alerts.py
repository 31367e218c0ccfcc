"""What needs attention: each condition is shown only while it is true, with what is affected, since when and verbs."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape
from typing import Any

import pytest
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.test import Client
from django.urls import reverse
from django.utils import timezone

import tests.sample_app.job_types  # noqa: F401
from jobs.admin.alerts import Alert
from jobs.models import Gate, Job, WorkerState
from jobs.services import limits
from jobs.states import Status
from jobs.stats import ready_jobs
from tests.factories import (
    JobFactory,
    JobMinuteFactory,
    ScheduleFactory,
    WebhookEndpointFactory,
    WorkerFactory,
    job_in,
)
from tests.support.admin_pages import get_list_url
from tests.support.admin_users import create_reader, log_in

OVERVIEW = "admin:jobscheduler_jobs_overview"


def serve(*job_types: str, **fields: Any) -> Any:
    """A worker that handles these job types, by default that of the factory."""
    types = list(job_types) or [JobFactory.build().job_type]
    return WorkerFactory.create(serves={"types": types, "resources": None, "tenant": None}, **fields)


def find_alerts(client: Client) -> list[Alert]:
    alerts: list[Alert] = client.get(reverse(OVERVIEW)).context["alerts"]
    return alerts


def count_listed(client: Client, url: str) -> int:
    count: int = client.get(url).context["cl"].result_count
    return count


def read_alerts(client: Client) -> str:
    return " ".join(alert.message for alert in find_alerts(client))


def test_alerts_say_what_is_true_and_nothing_else(boss: Client) -> None:
    now = timezone.now()
    assert read_alerts(boss) == ""
    assert "Nothing needs attention." in boss.get(reverse(OVERVIEW)).content.decode()
    job_in(Status.QUEUED, created_at=now - timedelta(minutes=20))
    job_in(Status.RUNNING, lease_expires_at=now - timedelta(minutes=5))
    job_in(Status.FAILED, in_lane=True)
    ScheduleFactory.create(next_fire_at=now - timedelta(minutes=10))
    WebhookEndpointFactory.create(enabled=False, disabled_reason="gone")
    JobMinuteFactory.create(minute=now - timedelta(minutes=2), outcome="FAILED", jobs=50)
    limits.pause("resource", "smtp", reason="new certificate")
    alerts = find_alerts(boss)
    messages = " ".join(alert.message for alert in alerts)
    expected = (
        "No worker is running; 1 job is waiting.",
        "1 running job has missed its heartbeat.",
        "1 target is blocked by a failed job.",
        "50 of 50 jobs failed in the last hour, more than usual.",
        "1 schedule is overdue by 10 min",
        "endpoint was disabled",
        "1 resource is paused.",
    )
    assert [words for words in expected if words not in messages] == []
    assert [alert.is_bad for alert in alerts] == sorted((alert.is_bad for alert in alerts), reverse=True)
    for alert in alerts:
        assert boss.get(alert.url).status_code == 200, alert


def test_a_worker_that_drains_is_not_a_missing_worker(boss: Client) -> None:
    job_in(Status.QUEUED)
    assert read_alerts(boss) == "No worker is running; 1 job is waiting."
    worker = serve(request=WorkerState.QUIET, requested_at=timezone.now() - timedelta(minutes=3))
    assert read_alerts(boss) == "All workers are draining and start no jobs; 1 job is waiting."
    (alert,) = find_alerts(boss)
    assert (alert.since, worker.name in alert.detail, alert.badge) == (worker.requested_at, True, "Draining")
    worker.state, worker.request = WorkerState.QUIET, ""
    worker.save()
    assert read_alerts(boss) == "All workers are draining and start no jobs; 1 job is waiting."
    serve()
    assert read_alerts(boss) == ""


def test_jobs_that_no_worker_handles_are_counted_by_type(boss: Client) -> None:
    serve()
    since = timezone.now() - timedelta(minutes=20)
    for number in range(3):
        JobFactory.create(job_type="demo.mail", created_at=since + timedelta(minutes=number))
    JobFactory.create(job_type="demo.print", created_at=since + timedelta(minutes=9))
    (alert,) = find_alerts(boss)
    assert (alert.message, alert.since) == ("4 jobs have no worker that handles them.", since)
    assert ("demo.mail" in alert.detail, "(3)" in alert.detail, "demo.print" in alert.detail) == (True, True, True)
    assert count_listed(boss, alert.url) == 4
    serve("demo.mail", "demo.print")
    assert "no worker" not in read_alerts(boss)


@pytest.mark.parametrize(
    ("serves", "jobs"),
    [({"resources": ["gpu"]}, 2), ({"excluded_resources": ["default"]}, 2), ({"tenant": "acme"}, 2), ({}, 0)],
)
def test_a_worker_of_other_resources_or_tenants_handles_no_job_of_these(
    boss: Client, serves: dict[str, Any], jobs: int
) -> None:
    job_type = JobFactory.create_batch(2)[0].job_type
    everything = {"types": [job_type], "resources": None, "tenant": None}
    worker = WorkerFactory.create(serves={**everything, **serves})
    assert ready_jobs.count_ready([worker], [], timezone.now()).unserved == jobs


def test_the_oldest_ready_job_is_one_that_could_start(boss: Client) -> None:
    now = timezone.now()
    serve()
    JobFactory.create(job_type="demo.mail", created_at=now - timedelta(hours=8))
    assert "Oldest ready job" not in read_alerts(boss)
    JobFactory.create(created_at=now - timedelta(minutes=20))
    assert "Oldest ready job: waiting 20 min" in read_alerts(boss)
    figure = boss.get(reverse(OVERVIEW)).context["figures"][4]
    assert (figure.value[:6], figure.tone) == ("20 min", "warn")


def test_jobs_that_wait_for_a_paused_resource_are_not_late(boss: Client) -> None:
    serve()
    job_in(Status.QUEUED, resource="plotter", created_at=timezone.now() - timedelta(minutes=20))
    assert "Oldest ready job: waiting 20 min" in read_alerts(boss)
    limits.pause("resource", "plotter", reason="out of paper")
    (alert,) = find_alerts(boss)
    assert (alert.message, alert.is_bad) == ("1 resource is paused.", False)
    assert ("plotter" in alert.detail, "out of paper" in alert.detail) == (True, True)


@pytest.mark.parametrize(
    ("targets", "waiting", "message"),
    [
        (1, 0, "1 target is blocked by a failed job."),
        (1, 1, "1 target is blocked by a failed job; 1 job is waiting behind it."),
        (1, 3, "1 target is blocked by a failed job; 3 jobs are waiting behind it."),
        (2, 1, "2 targets are blocked by failed jobs; 2 jobs are waiting behind them."),
    ],
)
def test_blocked_targets_name_the_cause_and_what_waits(boss: Client, targets: int, waiting: int, message: str) -> None:
    serve()
    for number in range(targets):
        job_in(Status.FAILED, target=f"book-{number}", status_reason="ConnectionRefusedError: no")
        for _ in range(waiting):
            JobFactory.create(target=f"book-{number}")
    (alert,) = find_alerts(boss)
    assert (alert.message, "book-0" in alert.detail) == (message, True)
    assert "ConnectionRefusedError" in alert.detail
    assert boss.get(alert.url).context["cl"].result_count == targets


def test_a_target_that_a_paused_job_blocks_is_resumed_from_the_alert(boss: Client) -> None:
    job_in(Status.PAUSED, in_lane=True)
    (alert,) = find_alerts(boss)
    assert (alert.message, [verb.text for verb in alert.verbs]) == ("1 target is blocked by a paused job.", ["Resume…"])


def test_verbs_of_an_alert_show_what_they_would_do_and_take_their_permission(db: Any, boss: Client) -> None:
    failed = job_in(Status.FAILED, in_lane=True)
    (alert,) = find_alerts(log_in(create_reader("reader")))
    assert alert.verbs == []
    (alert,) = find_alerts(log_in(create_reader("retrier", "retry_job")))
    assert [verb.text for verb in alert.verbs] == ["Retry…"]
    (alert,) = find_alerts(boss)
    assert len(alert.verbs) > 1
    for verb in alert.verbs:
        preview = boss.post(verb.url, dict(verb.fields))
        assert [job.pk for job in preview.context["dry_run"].sample] == [failed.pk]
    assert Job.objects.count() == 1


def test_silent_workers_and_stuck_slots_are_counted(boss: Client) -> None:
    serve(stuck=2, slots=4)
    serve(heartbeat_at=timezone.now() - timedelta(minutes=5))
    messages = read_alerts(boss)
    assert "1 worker has stopped sending heartbeats." in messages
    assert "2 slots are stuck in jobs that ignore stop requests." in messages


def test_a_schedule_that_skips_run_after_run_raises_an_alert(boss: Client) -> None:
    schedule = ScheduleFactory.create(name="every minute", skips_in_a_row=2)
    assert read_alerts(boss) == ""
    schedule.skips_in_a_row = 14
    schedule.save()
    (alert,) = find_alerts(boss)
    assert (alert.badge, alert.is_bad, "14 runs in a row" in alert.message) == ("Skipping", False, True)
    assert boss.get(alert.url).context["cl"].result_count == 1


def test_overdue_schedules_are_counted(boss: Client) -> None:
    for minutes in (10, 20):
        ScheduleFactory.create(next_fire_at=timezone.now() - timedelta(minutes=minutes))
    assert read_alerts(boss).startswith("2 schedules are overdue, by 20 min")


def test_a_database_that_lacks_migrations_is_reported(db: Any) -> None:
    client = log_in(create_reader("ann"))
    assert "migrate" not in read_alerts(client)
    MigrationRecorder(connection).record_unapplied("jobscheduler_jobs", "0002_invariants")
    message = "1 migration is not applied (jobscheduler_jobs 0002_invariants): run manage.py migrate."
    assert message in read_alerts(client)


def test_the_alert_of_missed_heartbeats_lists_those_jobs(boss: Client) -> None:
    job_in(Status.RUNNING, lease_expires_at=timezone.now() - timedelta(minutes=5))
    job_in(Status.RUNNING)
    (alert,) = [alert for alert in find_alerts(boss) if alert.badge == "Heartbeat"]
    assert alert.url.startswith(get_list_url(Job))
    assert boss.get(alert.url).context["cl"].result_count == 1


def test_the_number_of_an_alert_is_that_of_the_list_to_which_it_leads(boss: Client) -> None:
    now = timezone.now()
    past, future = now - timedelta(minutes=5), now + timedelta(hours=1)
    serve()
    serve(heartbeat_at=past)
    for number in range(2):
        job_in(Status.FAILED, target=f"book-{number}")
        ScheduleFactory.create(next_fire_at=past)
        ScheduleFactory.create(next_fire_at=future, skips_in_a_row=14)
        WebhookEndpointFactory.create(enabled=False, disabled_reason="gone")
    JobFactory.create_batch(2, job_type="demo.mail")
    JobFactory.create(job_type="demo.print")
    job_in(Status.RUNNING, lease_expires_at=past)
    limits.pause("resource", "smtp")
    # What these alerts do not count.
    JobFactory.create(job_type="demo.mail", gate=Gate.TIME, not_before=future)
    JobFactory.create(job_type="demo.mail", gate=Gate.LANE, target="book-9")
    JobFactory.create(), job_in(Status.FAILED), job_in(Status.RUNNING)
    WebhookEndpointFactory.create(enabled=False)
    limits.set_maximum("resource", "gpu", maximum=1)
    found = {alert.badge: (read_number(alert.message), count_listed(boss, alert.url)) for alert in find_alerts(boss)}
    assert found == {
        "Blocked": (2, 2),
        "No worker": (3, 3),
        "Worker": (1, 1),
        "Heartbeat": (1, 1),
        "Overdue": (2, 2),
        "Skipping": (2, 2),
        "Webhook": (2, 2),
        "Paused": (1, 1),
    }
    (unserved,) = [alert for alert in find_alerts(boss) if alert.badge == "No worker"]
    links = re.findall(r'href="([^"]+)">.*? \((\d+)\)', unserved.detail)
    assert [count_listed(boss, unescape(url)) for url, _number in links] == [int(number) for _url, number in links]
    assert [number for _url, number in links] == ["2", "1"]


def read_number(text: str) -> int:
    (number, *_others) = re.findall(r"\d+", text)
    return int(number)
