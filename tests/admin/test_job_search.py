"""The search of the job list, its times and its orders, and what a row of it says."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html import unescape
from typing import Any
from urllib.parse import quote

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.utils import timezone

from jobs.admin import job_search
from jobs.ids import min_id_at
from jobs.models import Job, JobTag
from jobs.services import jobs as job_services
from jobs.services import targets
from jobs.states import EventKind, Status
from schedules.firing import fire_due
from tests.factories import JobEventFactory, JobFactory, JobGroupFactory, ScheduleFactory, WorkerFactory, job_in
from tests.sample_app import job_types
from tests.support.admin_pages import get_list_url
from tests.support.admin_users import create_reader, log_in
from tests.support.schedules import NOON, create_due_schedule, list_jobs, list_minutes, make_due

assert job_types.note.name == "tests.note"  # the import registers its job types


def open_list(client: Client, query: str = "") -> Any:
    response = client.get(f"{get_list_url(Job)}?{query}")
    assert response.status_code == 200, query
    return response


def search(client: Client, text: str, query: str = "") -> set[Any]:
    response = open_list(client, f"q={quote(text)}&{query}")
    return {row.pk for row in response.context["cl"].result_list}


def problem(client: Client, query: str) -> str:
    return str(open_list(client, query).context["cl"].problem)


def finish(job: Job, at: datetime) -> Job:
    """Record the end of a job, as the engine does: the event, and the end of its run."""
    JobEventFactory.create(job=job, kind=job.status, at=at)
    return job


# -------------------------------------------------------------------------------------------------- words


def test_a_job_is_found_by_what_the_list_shows_of_it(boss: Client) -> None:
    job = JobFactory.create(job_type="demo.mail", target="customer-acme", tags=["invoice", "acme corp"])
    JobFactory.create(job_type="other.mail", target="customer-zeta", tags=["letter"])
    JobEventFactory.create(job=job, kind=EventKind.SUBMITTED)
    tail = str(job.pk)[-12:]
    words = (tail, f"…{tail}", tail.upper(), str(job.pk), job.pk.hex, str(job.pk)[:27])
    for word in (*words, "demo.mail", "demo", "customer-acme", "customer-a", "invoice", "inv", '"acme corp"'):
        assert search(boss, word) == {job.pk}, word
    assert search(boss, "nonsense") == search(boss, "0" * 12) == set()


def test_a_word_with_several_meanings_finds_them_all(boss: Client) -> None:
    found = {
        JobFactory.create(job_type="acme.sync").pk,
        JobFactory.create(target="acme").pk,
        JobFactory.create(tags=["acme"]).pk,
    }
    JobFactory.create()
    assert search(boss, "acme") == found


def test_every_qualifier_finds_its_jobs(boss: Client) -> None:
    schedule, group = ScheduleFactory.create(name="nightly run"), JobGroupFactory.create(name="batch 7")
    job = JobFactory.create(
        job_type="mail.send",
        resource="smtp",
        tenant="acme",
        target="a b",
        idempotency_key="k-1",
        tags=["x:y", "urgent"],
        schedule=schedule,
        group=group,
        group_index=0,
    )
    failed = JobFactory.create(failed=True, status_reason="ValueError: no paper left")
    running = job_in(Status.RUNNING)
    one = {job.pk}
    terms = ("type:mail.send", "type:mail*", "target:a*", 'target:"a b"', 'target: "a b"', "tag:urgent", "tag:urg*")
    texts = ('tag:"x:y"', "tag:x:y", "resource:smtp", "tenant:acme", "key:k-1", "key:k*", f"group:{group.pk}")
    named = ('group:"batch 7"', f"schedule:{schedule.pk}", 'schedule:"nightly run"', "schedule:night*", "TAG:urgent")
    for term in (*terms, *texts, *named):
        assert search(boss, term) == one, term
    assert search(boss, "status:queued") == {job.pk}
    assert search(boss, "status:running") == search(boss, "status:RUNNING") == {running.pk}
    assert search(boss, 'error:"no paper"') == search(boss, "error:PAPER") == {failed.pk}
    assert search(boss, f"worker:{str(running.lease_owner).partition('#')[0]}") == {running.pk}
    assert search(boss, "tag:urgent type:mail.send target:a*") == one
    assert search(boss, "tag:urgent type:other") == search(boss, "tag:urgen") == set()


def test_an_unknown_qualifier_is_named_with_the_known_ones(boss: Client) -> None:
    JobFactory.create()
    text = problem(boss, "q=colour:red")
    assert "“colour:”" in text
    assert all(f"{name}:" in text for name in ("type", "target", "tag", "worker", "status", "error"))
    assert search(boss, "colour:red") == set()
    assert "Unknown search qualifier" in open_list(boss, "q=colour:red").content.decode()
    assert "choose one of" in problem(boss, "q=status:asleep")
    assert "type:" in problem(boss, "q=type:")
    assert search(boss, '"http://shop/7"') == set()
    url = JobFactory.create(target="http://shop/7")
    assert search(boss, '"http://shop/7"') == search(boss, "target:http://shop/7") == {url.pk}


def test_a_tag_with_a_colon_is_found_as_the_page_shows_it(boss: Client) -> None:
    tagged = JobFactory.create(tags=["customer:acme"])
    targeted = JobFactory.create(target="tenant7:book")
    JobFactory.create(tags=["customer:other"])
    assert search(boss, "customer:acme") == {tagged.pk}
    assert search(boss, "tenant7:bo*") == {targeted.pk}
    assert "customer:" in problem(boss, "q=customer%3Anone")


def test_a_job_with_two_of_the_tags_is_one_job(boss: Client) -> None:
    jobs = [JobFactory.create(tags=["urgent", "urgently"]) for _ in range(2)]
    page = boss.get(get_list_url(Job), {"q": "tag:urg*"}).context["cl"]
    assert [job.pk for job in page.result_list] == sorted((job.pk for job in jobs), reverse=True)
    assert page.result_count == 2


@pytest.mark.parametrize("text", ["\0", "type:\0", "tag:%", "target:*", '"', "key:'", "…", "#", ":", "x:", "status:*"])
def test_no_search_is_an_error(text: str, boss: Client) -> None:
    JobFactory.create()
    search(boss, text)
    open_list(boss, f"job_type={quote(text)}&status={quote(text)}&sort={quote(text)}&ended_from={quote(text)}")


def test_errors_are_searched_only_by_those_who_may_see_them(looker: Client, boss: Client) -> None:
    job = JobFactory.create(failed=True, status_reason="ValueError: hunter2")
    assert search(boss, "error:hunter2") == {job.pk}
    assert search(looker, "error:hunter2") == set()
    assert "permission" in problem(looker, "q=error:hunter2")


def test_what_has_no_index_is_searched_among_the_first_jobs_and_the_list_says_so(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jobs.admin import jobs

    monkeypatch.setattr(jobs, "CHECK_LIMIT", 3)
    old = JobFactory.create(job_type="old.type")
    recent = JobFactory.create_batch(2, job_type="new.type")
    assert search(boss, "type:old.type") == {old.pk}
    JobFactory.create()
    page = open_list(boss, "q=type:old.type")
    assert (page.context["cl"].result_count, page.context["cl"].are_rows_unchecked) == (0, True)
    assert "were searched" in page.content.decode()
    assert search(boss, "type:new.type") == {job.pk for job in recent}


# -------------------------------------------------------------------------------------------------- tags


def tags_of(job: Job) -> list[str]:
    return sorted(JobTag.objects.filter(job=job).values_list("tag", flat=True))


@pytest.mark.usefixtures("db")
def test_the_database_keeps_the_rows_of_tags() -> None:
    job = job_services.enqueue("tests.note", {"text": "a"}, tags=["a", "b"])
    plain = job_services.enqueue("tests.note", {"text": "b"})
    assert (tags_of(job), tags_of(plain)) == (["a", "b"], [])
    job_services.update(job.pk, {"tags": ["b", "c", "c"]})
    assert tags_of(job) == ["b", "c"]
    Job.objects.filter(pk=plain.pk).update(tags=["x"])
    assert tags_of(plain) == ["x"]
    job_services.update(job.pk, {"tags": []})
    assert tags_of(job) == []
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM jobscheduler_job WHERE job_type = %s", ["tests.note"])
    assert not JobTag.objects.exists()


# -------------------------------------------------------------------------------------------------- times and orders


def test_jobs_are_filtered_by_when_they_were_submitted(boss: Client) -> None:
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)
    jobs = [JobFactory.create(id=min_id_at(noon + timedelta(hours=hours))) for hours in range(4)]
    cases = {
        "submitted_from=2026-03-01T13:00": jobs[1:],
        "submitted_to=2026-03-01T13:00": jobs[:1],
        "submitted_from=2026-03-01T13:00&submitted_to=2026-03-01T15:00": jobs[1:3],
        "submitted_from=2026-03-01T14:00:00%2B01:00&submitted_to=2026-03-01T15:00Z": jobs[1:3],
        "submitted_from=2026-03-01T14:00:00+01:00": jobs[1:],
        "submitted_from=&submitted_to=": jobs,
    }
    for query, expected in cases.items():
        assert search(boss, "", query) == {job.pk for job in expected}, query


def test_jobs_are_filtered_by_when_they_finished(boss: Client) -> None:
    noon = timezone.now().replace(microsecond=0) - timedelta(hours=6)
    failed = [finish(JobFactory.create(failed=True), noon + timedelta(hours=hours)) for hours in range(3)]
    done = [finish(JobFactory.create(completed=True), noon + timedelta(hours=hours)) for hours in range(3)]
    job_in(Status.QUEUED)
    start, end = (quote((noon + timedelta(hours=hours)).isoformat()) for hours in (1, 2))
    window = f"ended_from={start}&ended_to={end}"
    assert search(boss, "", window) == {failed[1].pk, done[1].pk}
    assert search(boss, "", f"{window}&status=FAILED") == {failed[1].pk}
    assert search(boss, "", f"{window}&status=COMPLETED") == {done[1].pk}
    assert search(boss, "", f"{window}&status=RUNNING") == set()
    assert search(boss, "", f"ended_from={start}") == {job.pk for job in (*failed[1:], *done[1:])}
    assert search(boss, "", f"ended_to={start}&status=FAILED") == {failed[0].pk}
    chips = [(str(chip["title"]), chip["query"]) for chip in open_list(boss, window).context["cl"].chips]
    assert chips == [("finished", "?")]


def test_a_wrong_time_is_named_and_nothing_is_listed(boss: Client) -> None:
    JobFactory.create()
    for text in ("yesterday", "2026-13-01T00:00", "9999-12-31T23:59", "1"):
        assert "ended_from" in problem(boss, f"ended_from={text}")
        assert search(boss, "", f"ended_from={text}") == set()


def order(client: Client, query: str) -> list[Any]:
    return [row.pk for row in open_list(client, query).context["cl"].result_list]


def test_the_orders_of_the_list(boss: Client) -> None:
    now = timezone.now()
    due = [JobFactory.create(gate=1, not_before=now + timedelta(hours=hours)) for hours in (3, 1, 2)]
    running = [job_in(Status.RUNNING, dispatched_at=now - timedelta(minutes=minutes)) for minutes in (5, 9, 7)]
    ended = [JobFactory.create(failed=True), JobFactory.create(completed=True), JobFactory.create(failed=True)]
    for place in (1, 2, 0):
        finish(ended[place], now - timedelta(minutes=9 - place))
    assert order(boss, "sort=due") == [due[1].pk, due[2].pk, due[0].pk]
    assert order(boss, "sort=running") == [running[1].pk, running[2].pk, running[0].pk]
    assert order(boss, "sort=finished") == [ended[0].pk, ended[2].pk, ended[1].pk]
    assert order(boss, "sort=finished&status=FAILED") == [ended[0].pk, ended[2].pk]
    assert order(boss, "sort=oldest")[0] == due[0].pk


# -------------------------------------------------------------------------------------------------- rows


def page(client: Client, query: str = "") -> str:
    return str(open_list(client, query).content.decode())


def test_a_manual_retry_counts_no_automatic_attempts(boss: Client) -> None:
    JobFactory.create(attempt=2, max_retries=0)
    assert "attempt 2<" in page(boss)
    assert "2/1" not in page(boss)
    assert "2 of 1" not in page(boss)


def test_a_row_says_that_no_slot_is_free(boss: Client) -> None:
    worker = WorkerFactory.create(serves={"types": ["tests.note"]}, slots=1)
    job_in(Status.RUNNING, job_type="tests.note", lease_owner=f"{worker.identity.process_key}#0")
    job_services.enqueue("tests.note", {"text": "a"})
    assert "no free slot: 1 of 1 busy" in page(boss)


def test_what_needs_a_person_is_said_first(boss: Client) -> None:
    targets.pause("stopped")
    job_services.enqueue("tests.note", {"text": "a"}, target="stopped", not_before=timezone.now() + timedelta(hours=2))
    row = open_list(boss).context["cl"].result_list[0]
    assert row.wait.code in ("no_worker", "target_paused")


def test_skipped_runs_of_one_schedule_are_one_row(boss: Client) -> None:
    schedule = create_due_schedule(name="every minute", overlap="skip")
    other = create_due_schedule(name="hourly", overlap="skip", cron="0 * * * *")
    for due in [*list_minutes(NOON, 4), NOON + timedelta(hours=1)]:
        make_due(schedule, due)
        fire_due(due)
    first, *skipped = list_jobs(schedule)
    other_first, alone = list_jobs(other)
    assert {job.status for job in (*skipped, alone)} == {Status.SKIPPED}
    assert "4 skipped runs of every minute" in page(boss)
    rows = {row.pk for row in open_list(boss).context["cl"].result_list}
    assert rows == {first.pk, skipped[-1].pk, other_first.pk, alone.pk}
    assert search(boss, f"schedule:{schedule.pk}", "status=SKIPPED") == {job.pk for job in skipped}


def test_a_row_of_skipped_runs_leads_to_as_many_as_it_says(boss: Client) -> None:
    schedule = create_due_schedule(name="every minute", overlap="skip")
    for due in list_minutes(NOON, 4):
        make_due(schedule, due)
        fire_due(due)
    _first, *skipped = list_jobs(schedule)
    JobFactory.create(skipped=True, schedule=schedule)  # by its handler: it stands in the list by itself
    (url,) = re.findall(r'href="\?([^"]+)"><bdi>3 skipped runs of every minute', page(boss))
    assert {row.pk for row in open_list(boss, unescape(url)).context["cl"].result_list} == {job.pk for job in skipped}


def test_the_type_filter_offers_the_types_of_the_rows(boss: Client) -> None:
    JobFactory.create(job_type="remote.only")
    WorkerFactory.create(serves={"types": ["served.only"]})
    types = open_list(boss).context["cl"].job_types
    assert {"remote.only", "served.only"} <= set(types)
    assert "<option>remote.only</option>" in page(boss)


def test_a_running_time_starts_when_the_job_last_started(boss: Client) -> None:
    now = timezone.now()
    job = job_in(Status.RUNNING, dispatched_at=now - timedelta(hours=5))
    for hours in (5, 1):
        JobEventFactory.create(job=job, kind="RUNNING", at=now - timedelta(hours=hours, seconds=1))
    assert ">1 h<" in page(boss)


def test_names_with_a_beginning_are_found_along_the_index(db: Any) -> None:
    for name in ("b1", "b2", "a1", "c1", "b2"):
        JobFactory.create(target=name)
    assert job_search.find_names(Job, "target", "b") == ["b1", "b2"]
    assert job_search.find_names(Job, "target", "z") == []
    assert len(job_search.find_names(Job, "target", "", "target IS NOT NULL", 2)) == 3


def test_a_reader_searches_as_well(db: Any) -> None:
    User.objects.create_user("unused")
    client = log_in(create_reader("ann"))
    job = JobFactory.create(tags=["a"])
    assert search(client, "tag:a") == {job.pk}
