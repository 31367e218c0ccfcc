"""Workers, groups and performance in the console."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.template.defaultfilters import filesizeformat
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from jobs.admin import groups as groups_admin
from jobs.engine.worker import WorkerOptions
from jobs.engine.worker.registration import Registration
from jobs.errors import Conflict, NotFound
from jobs.models import Job, JobGroup, JobMinute, Worker, WorkerState
from jobs.process_identity import ProcessIdentity
from jobs.services import groups, workers
from jobs.services import jobs as job_services
from tests.factories import JobFactory, JobMinuteFactory, TargetFactory, WorkerFactory
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
    assert "a, b; smtp; tenant acme" in listed
    assert "Mixed" not in listed
    WorkerFactory.create(version="2.0")
    assert "Mixed" in boss.get(get_list_url(Worker)).content.decode()


@pytest.mark.parametrize(
    ("serves", "resources"),
    [
        ({"excluded_resources": ["gpu"]}, "all but gpu"),
        ({"resources": ["smtp", "gpu"], "excluded_resources": ["gpu"]}, "smtp"),
        ({"excluded_resources": []}, "all"),
    ],
)
def test_a_worker_shows_which_resources_it_excludes(boss: Client, serves: dict[str, Any], resources: str) -> None:
    worker = WorkerFactory.create(serves={"types": ["a"], **serves})
    assert f"<bdi>{resources}</bdi>" in boss.get(get_page_url(worker)).content.decode()
    shown = "<bdi>a</bdi>" if resources == "all" else f"<bdi>a; {resources}</bdi>"
    assert shown in boss.get(get_list_url(Worker)).content.decode()


@pytest.mark.parametrize(("age_sec", "kind"), [(1, "jc-good"), (20, "jc-warn"), (300, "jc-bad")])
def test_a_beat_is_green_amber_or_red_by_the_lease(boss: Client, age_sec: int, kind: str) -> None:
    WorkerFactory.create(heartbeat_at=timezone.now() - timedelta(seconds=age_sec))
    assert f"jc-badge {kind}" in boss.get(get_list_url(Worker)).content.decode()


@pytest.mark.parametrize(
    ("fields", "shown"),
    [
        ({}, "Online"),
        ({"request": WorkerState.QUIET}, "Draining"),
        ({"state": WorkerState.QUIET}, "Draining"),
        ({"state": WorkerState.STOPPING, "request": WorkerState.QUIET}, "Stopping"),
        ({"heartbeat_at": timezone.now() - timedelta(minutes=10)}, "No heartbeat"),
        ({"state": WorkerState.QUIET, "heartbeat_at": timezone.now() - timedelta(minutes=10)}, "No heartbeat"),
    ],
)
def test_the_state_of_a_worker_has_one_word_everywhere(boss: Client, fields: dict[str, Any], shown: str) -> None:
    worker = WorkerFactory.create(**fields)
    (row,) = boss.get(screen("overview")).context["workers"]
    badge = str(row["state"])
    assert re.sub("<[^>]+>", "", badge).split(" ", 1)[1] == shown
    for url in (get_list_url(Worker), get_page_url(worker)):
        assert badge in boss.get(url).content.decode()


def test_the_filter_online_leaves_out_workers_without_heartbeats(boss: Client) -> None:
    online = WorkerFactory.create()
    WorkerFactory.create(heartbeat_at=timezone.now() - timedelta(minutes=10))
    page = boss.get(get_list_url(Worker), {"state": "RUNNING"})
    assert [row.pk for row in page.context["cl"].result_list] == [online.pk]
    assert '<option value="RUNNING" selected>Online</option>' in page.content.decode()


def test_quiet_and_stop_are_requests_that_the_worker_reads_and_can_be_seen_waiting(db: Any) -> None:
    client = log_in(create_reader("operator", "stop_worker"))
    worker = at_work()
    assert list_buttons(client, worker) == ["quiet", "stop"]
    assert client.post(verb_of(worker, "quiet"), {"reason": "deploy"}).status_code == 302
    worker.refresh_from_db()
    assert (worker.request, worker.requested_at is not None) == (WorkerState.QUIET, True)
    for url in (get_list_url(Worker), get_page_url(worker)):
        page = client.get(url).content.decode()
        for text in ("Draining", "requested ", "at its next heartbeat", "operator: deploy"):
            assert text in page, text
    assert list_buttons(client, worker) == ["wake", "stop"]
    client.post(verb_of(worker, "wake"))
    assert "Nothing has changed yet." in client.post(verb_of(worker, "stop")).content.decode()
    worker.refresh_from_db()
    assert worker.request == ""
    client.post(verb_of(worker, "stop"), {"confirmed": "1"})
    worker.refresh_from_db()
    assert worker.request == WorkerState.STOPPING
    assert list_buttons(client, worker) == []
    assert "it is stopping already" in read_messages(client.post(verb_of(worker, "wake")))
    assert LogEntry.objects.count() == 3


def test_a_worker_reads_its_request_with_a_beat_and_says_what_it_has_become(db: Any) -> None:
    registration = Registration(WorkerOptions("mailer"))
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
    registration = Registration(WorkerOptions("mailer", executor=executor))
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
    registration = Registration(WorkerOptions("mailer"))
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
        assert ("1 of 3 finished" in page, "jc-run-other" in page) == (True, True)
    assert list_buttons(boss, made) == ["cancel"]
    assert "Nothing has changed yet." in boss.post(verb_of(made, "cancel")).content.decode()
    boss.post(verb_of(made, "cancel"), {"confirmed": "1", "reason": "enough"})
    made.refresh_from_db()
    assert made.status == "CANCELLED"
    assert list_buttons(boss, made) == ["retry"]
    boss.post(verb_of(made, "retry"))
    made.refresh_from_db()
    assert made.status == "RUNNING"


def test_the_page_of_a_group_lists_its_jobs_in_their_order(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(groups_admin, "MEMBERS_SHOWN", 3)
    made = groups.create([ITEM, {**ITEM, "target": "book-1"}, ITEM], name="chapters")
    jobs = list(made.jobs.order_by("group_index"))
    job_services.cancel(jobs[2].pk)
    Job.objects.filter(pk=jobs[0].pk).update(attempt=2)
    page = boss.get(get_page_url(made))
    (table,) = page.context["tables"]
    assert [(row[0], row[4]) for row in table["rows"]] == [(1, 2), (2, 1), (3, 1)]
    for row, job, texts in zip(table["rows"], jobs, (["Queued"], ["Queued", "book-1"], ["Cancelled"]), strict=True):
        shown = " ".join(map(str, row))
        assert get_page_url(job) in shown
        assert all(text in shown for text in texts), shown
    assert ("Group chapters" in page.content.decode(), table["note"]) == (True, "")
    large = groups.create([ITEM] * 5)
    (table,) = boss.get(get_page_url(large)).context["tables"]
    assert (len(table["rows"]), table["note"]) == (3, "The first 3 jobs.")


def test_the_page_of_a_group_takes_as_many_statements_for_many_jobs_as_for_few(boss: Client) -> None:
    small, large = groups.create([ITEM]), groups.create([ITEM] * 50)
    assert count_queries(boss, get_page_url(large)) == count_queries(boss, get_page_url(small)) <= 10


@pytest.mark.parametrize("make", [WorkerFactory.create, TargetFactory.create, lambda: groups.create([ITEM])])
def test_a_page_refreshes_itself_and_is_not_sent_again_unchanged(boss: Client, make: Any) -> None:
    url, live = get_page_url(make()), {"X-Jobs-Live": "1"}
    first = boss.get(url, headers=live)
    again = boss.get(url, headers={**live, "If-None-Match": first["ETag"]})
    assert again.status_code == 304 or again["ETag"] != first["ETag"]  # the next minute has begun
    assert "data-live-url" in boss.get(url).content.decode()


def test_pages_of_rows_that_only_the_scheduler_writes_have_no_form_layout(boss: Client) -> None:
    for row in (at_work(), TargetFactory.create(key="book-9"), groups.create([ITEM], name="chapters")):
        page = boss.get(get_page_url(row)).content.decode()
        assert ('class="form-row' in page, '<dl class="jc-facts">' in page) == (False, True)
        assert "View worker" not in page


def test_stopped_workers_are_listed_last(boss: Client) -> None:
    running = WorkerFactory.create()
    stopped = WorkerFactory.create(state=WorkerState.STOPPED, stopped_at=timezone.now())
    assert stopped.pk > running.pk
    assert list(boss.get(get_list_url(Worker)).context["cl"].result_list) == [running, stopped]


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
    fields = {name: row[name] for name in ("name", "finished", "failed", "run_50", "run_95", "mean", "wait_95")}
    assert fields == {
        "name": "mail.send",
        "finished": 21,
        "failed": "10.0 %",
        "run_50": "≤ 500 ms",
        "run_95": "≤ 1 min",
        "mean": "500 ms",
        "wait_95": "≤ 100 ms",
    }
    assert len(boss.get(f"{screen('performance')}?window=7d").context["job_types"]) == 2


def test_performance_is_sorted_by_any_column(boss: Client) -> None:
    for name, jobs, outcome in (("a.few", 1, "FAILED"), ("b.many", 9, "COMPLETED"), ("c.none", 5, "CANCELLED")):
        JobMinuteFactory.create(minute=timezone.now(), job_type=name, jobs=jobs, outcome=outcome)

    def names(sort: str) -> list[str]:
        return [row["name"][0] for row in boss.get(screen("performance"), {"sort": sort}).context["job_types"]]

    assert names("") == names("nonsense") == names("-finished") == ["b", "c", "a"]
    assert (names("type"), names("-type")) == (["a", "b", "c"], ["c", "b", "a"])
    assert (names("-failed"), names("failed")) == (["a", "b", "c"], ["b", "a", "c"])  # without a share: last
    page = boss.get(screen("performance"), {"window": "7d", "sort": "-run95"}).content.decode()
    assert ('aria-sort="descending"' in page, "window=7d&amp;sort=run95" in page) == (True, True)


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
    assert "No jobs finished in this time." in boss.get(screen("performance")).content.decode()
    assert "manage.py worker" in boss.get(get_list_url(Worker)).content.decode()
    assert "No groups yet." in boss.get(get_list_url(JobGroup)).content.decode()
