"""Workers, groups and performance in the console."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.template.defaultfilters import filesizeformat
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from jobs.engine.worker import WorkerOptions
from jobs.engine.worker.registration import Registration
from jobs.errors import Conflict, NotFound
from jobs.models import JobGroup, JobMinute, Worker, WorkerState
from jobs.process_identity import ProcessIdentity
from jobs.services import groups, workers
from jobs.services import jobs as job_services
from tests.factories import JobFactory, JobMinuteFactory, WorkerFactory
from tests.support.admin_pages import count_queries, get_list_url, get_page_url, list_buttons, read_messages
from tests.support.admin_users import create_reader, log_in

ITEM = {"job_type": "sample.noop"}


def verb_of(row: Any, verb: str) -> str:
    return get_page_url(row).replace("/change/", f"/verb/{verb}/")


def screen(name: str) -> str:
    return reverse(f"admin:jobscheduler_jobs_{name}")


# ------------------------------------------------------------------------------------------------ workers


def at_work(**fields: Any) -> Worker:
    worker = WorkerFactory.create(name="mailer", host="h1", version="1.0", slots=2, busy=1, **fields)
    mine = ProcessIdentity("mailer", "h1", "", "", worker.pid, "").slot_owner(1)
    JobFactory.create(running=True, lease_owner=mine, job_type="tests.note")
    return worker


def test_a_worker_shows_its_beat_its_slots_what_it_serves_and_what_it_has_in_hand(boss: Client) -> None:
    worker = at_work(serves={"types": ["a", "b"], "resources": ["smtp"], "tenant": "acme"})
    for page in (boss.get(get_list_url(Worker)), boss.get(get_page_url(worker))):
        text = page.content.decode()
        for item in ("mailer", "h1", "1/2", "tests.note", "jc-good"):
            assert item in text, item
    listed = boss.get(get_list_url(Worker)).content.decode()
    assert "2 job types; smtp; tenant acme" in listed
    assert "mixed" not in listed
    WorkerFactory.create(version="2.0")
    assert "mixed" in boss.get(get_list_url(Worker)).content.decode()


@pytest.mark.parametrize(("age_sec", "kind"), [(1, "jc-good"), (20, "jc-warn"), (300, "jc-bad")])
def test_a_beat_is_green_amber_or_red_by_the_lease(boss: Client, age_sec: int, kind: str) -> None:
    WorkerFactory.create(heartbeat_at=timezone.now() - timedelta(seconds=age_sec))
    assert f"jc-badge {kind}" in boss.get(get_list_url(Worker)).content.decode()


def test_quiet_and_stop_are_requests_that_the_worker_reads_and_can_be_seen_waiting(db: Any) -> None:
    client = log_in(create_reader("operator", "stop_worker"))
    worker = at_work()
    assert list_buttons(client, worker) == ["quiet", "stop"]
    assert client.post(verb_of(worker, "quiet"), {"reason": "deploy"}).status_code == 302
    worker.refresh_from_db()
    assert (worker.request, worker.requested_at is not None) == (WorkerState.QUIET, True)
    assert "asked to become: Quiet" in client.get(get_list_url(Worker)).content.decode()
    assert list_buttons(client, worker) == ["wake", "stop"]
    client.post(verb_of(worker, "wake"))
    assert "Nothing has been done yet." in client.post(verb_of(worker, "stop")).content.decode()
    worker.refresh_from_db()
    assert worker.request == ""
    client.post(verb_of(worker, "stop"), {"confirmed": "1"})
    worker.refresh_from_db()
    assert worker.request == WorkerState.STOPPING
    assert list_buttons(client, worker) == []
    assert "it is stopping already" in read_messages(client.post(verb_of(worker, "wake")))
    assert LogEntry.objects.count() == 3


def test_a_worker_reads_its_request_with_a_beat_and_says_what_it_has_become(db: Any) -> None:
    registration = Registration(ProcessIdentity.current("mailer"), WorkerOptions())
    registration.register()
    row = Worker.objects.get()
    for wish, state in ((workers.quiet, WorkerState.QUIET), (workers.wake, WorkerState.RUNNING)):
        wish(row.pk)
        registration._written_at = 0.0
        registration.write_heartbeat(busy=0, stuck=0)
        registration.write_heartbeat(busy=1, stuck=0)
        row.refresh_from_db()
        assert (row.state, registration.request) == (state, "QUIET" if state == WorkerState.QUIET else "")
        registration.write_heartbeat(busy=0, stuck=0)


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_a_worker_shows_what_it_takes_of_its_host(boss: Client, executor: str) -> None:
    registration = Registration(ProcessIdentity.current("mailer"), WorkerOptions(executor=executor))
    registration.register()
    for busy in (0, 1):
        registration.write_heartbeat(busy=busy, stuck=0)
    row = Worker.objects.get()
    assert row.rss_bytes is not None and row.rss_bytes > 10_000_000  # noqa: PT018
    assert row.cpu_percent is not None and row.cpu_percent >= 0  # noqa: PT018
    used = f"{filesizeformat(row.rss_bytes)}, {row.cpu_percent:.0f} %"
    assert used in boss.get(get_list_url(Worker)).content.decode()


def test_a_host_that_cannot_be_measured_costs_no_beat(db: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As where a handler has used up all file descriptors: leases are renewed by the same thread."""

    def raise_too_many_files() -> Any:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("jobs.engine.worker.registration._import_psutil", raise_too_many_files)
    registration = Registration(ProcessIdentity.current("mailer"), WorkerOptions())
    registration.register()
    registration.write_heartbeat(busy=3, stuck=0)
    row = Worker.objects.get()
    assert (row.busy, row.rss_bytes, row.cpu_percent) == (3, None, None)


def test_nobody_is_asked_who_cannot_hear(db: Any) -> None:
    gone = WorkerFactory.create(state=WorkerState.STOPPED)
    silent = WorkerFactory.create(heartbeat_at=timezone.now() - timedelta(hours=1))
    for worker in (gone, silent):
        with pytest.raises(Conflict):
            workers.stop(worker.pk)
    with pytest.raises(NotFound):
        workers.stop(WorkerFactory.build().pk)


def test_the_worker_list_takes_as_many_statements_for_many_as_for_few(boss: Client) -> None:
    at_work()
    baseline = count_queries(boss, get_list_url(Worker))
    WorkerFactory.create_batch(20)
    JobFactory.create_batch(20, running=True)
    assert count_queries(boss, get_list_url(Worker)) == baseline <= 10


# ------------------------------------------------------------------------------------------------ groups


def test_a_group_shows_how_far_it_is_and_its_rest_is_cancelled_after_a_second_look(boss: Client) -> None:
    made = groups.create([ITEM, ITEM, ITEM], name="chapters")
    first = made.jobs.order_by("group_index").first()
    job_services.cancel(first.pk)
    for url in (get_list_url(JobGroup), get_page_url(made)):
        page = boss.get(url).content.decode()
        assert ("1 of 3 ended" in page, "jc-run-other" in page) == (True, True)
    assert list_buttons(boss, made) == ["cancel"]
    assert "Nothing has been done yet." in boss.post(verb_of(made, "cancel")).content.decode()
    boss.post(verb_of(made, "cancel"), {"confirmed": "1", "reason": "enough"})
    made.refresh_from_db()
    assert made.status == "CANCELLED"
    assert list_buttons(boss, made) == ["retry"]
    boss.post(verb_of(made, "retry"))
    made.refresh_from_db()
    assert made.status == "RUNNING"


def test_the_group_list_takes_as_many_statements_for_many_as_for_few(boss: Client) -> None:
    groups.create([ITEM])
    baseline = count_queries(boss, get_list_url(JobGroup))
    for _ in range(10):
        groups.create([ITEM] * 5)
    assert count_queries(boss, get_list_url(JobGroup)) == baseline <= 10


# ------------------------------------------------------------------------------------------------ performance


def test_performance_tells_of_each_job_type_how_it_does(boss: Client) -> None:
    now = timezone.now().replace(second=0, microsecond=0)
    for outcome, jobs, run in (("COMPLETED", 18, 2), ("FAILED", 2, 6), ("CANCELLED", 1, -1)):
        JobMinuteFactory.create(
            minute=now,
            job_type="mail.send",
            outcome=outcome,
            jobs=jobs,
            run_bucket=run,
            wait_bucket=1,
            run_sec=jobs * 0.5 if run >= 0 else 0,
        )
    JobMinuteFactory.create(minute=now - timedelta(days=3), job_type="old.one")
    (row,) = boss.get(screen("performance")).context["job_types"]
    fields = {name: row[name] for name in ("name", "ended", "failed", "run_50", "run_95", "mean", "wait_95")}
    assert fields == {
        "name": "mail.send",
        "ended": 21,
        "failed": "10.0 %",
        "run_50": "≤ 500 ms",
        "run_95": "≤ 1 min",
        "mean": "0.5 s",
        "wait_95": "≤ 100 ms",
    }
    assert len(boss.get(f"{screen('performance')}?window=7d").context["job_types"]) == 2


@pytest.mark.parametrize("window", ["x", "-1", "9" * 40, "%00", "x" * 900])
def test_performance_ignores_a_window_that_makes_no_sense(boss: Client, window: str) -> None:
    assert boss.get(f"{screen('performance')}?window={window}").status_code == 200


def test_performance_asks_the_rollup_only_and_as_often_for_many_as_for_few(boss: Client) -> None:
    JobMinuteFactory.create()
    baseline = count_queries(boss, screen("performance"))
    for number in range(20):
        JobMinuteFactory.create(job_type=f"kind-{number}")
    assert count_queries(boss, screen("performance")) == baseline <= 6


def test_empty_screens_teach(boss: Client) -> None:
    JobMinute.objects.all().delete()
    assert "No job ended in this time." in boss.get(screen("performance")).content.decode()
    assert "manage.py worker" in boss.get(get_list_url(Worker)).content.decode()
    assert "There are no groups." in boss.get(get_list_url(JobGroup)).content.decode()
