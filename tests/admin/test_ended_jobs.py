"""What ended since a moment: found along the numbers of events, however old the job is and however much happened."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs.admin import filters
from jobs.admin.jobs import JobAdmin
from jobs.models import Job, JobEvent
from jobs.states import Status
from jobs.stats import cache
from tests.factories import JobEventFactory, job_in
from tests.sample_app.job_types import note
from tests.support.admin_pages import get_list_url

NOW = timezone.now()


@pytest.fixture(autouse=True)
def _walked_nowhere() -> None:
    filters._scan_cache.clear()


def create_ended_job(status: Status, ago: timedelta, **extra: Any) -> Job:
    job: Job = job_in(status, **extra)
    JobEventFactory.create(job=job, kind=str(status), to_status=str(status), at=NOW - ago)
    return job


def list_job_ids(client: Client, **asked: str) -> set[Any]:
    return {job.pk for job in client.get(get_list_url(Job), asked).context["cl"].result_list}


def test_the_first_event_since_a_moment_is_found_by_halving(db: Any) -> None:
    assert filters.find_first_event_id(NOW) == 0
    for pk, hours in enumerate((9, 7, 7, 4, 2), start=-3):
        JobEventFactory.create(pk=pk, at=NOW - timedelta(hours=hours))
    for half_hours in range(1, 20):
        moment = NOW - timedelta(minutes=30 * half_hours)
        later = JobEvent.objects.filter(at__gte=moment).order_by("pk").first()
        last = JobEvent.objects.order_by("-pk").first()
        assert last is not None
        assert filters.find_first_event_id(moment) == (later or last).pk, half_hours
    with CaptureQueriesContext(connection) as captured:
        filters.find_first_event_id(NOW)
    assert len(captured) == 1


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.FAILED, Status.SKIPPED, Status.CANCELLED])
def test_the_list_of_what_ended_lately_goes_by_the_end_and_not_by_the_beginning(boss: Client, status: Status) -> None:
    create_ended_job(status, timedelta(hours=30))
    late = create_ended_job(status, timedelta(hours=3), created_at=NOW - timedelta(days=90))
    fresh = create_ended_job(status, timedelta(minutes=5))
    other = create_ended_job(Status.FAILED if status == Status.COMPLETED else Status.COMPLETED, timedelta(minutes=5))
    job_in(Status.RUNNING)
    assert list_job_ids(boss, status=status, ended="24h") == {late.pk, fresh.pk}
    assert list_job_ids(boss, status=status, ended="1h") == {fresh.pk}
    assert list_job_ids(boss, ended="1h") == {fresh.pk, other.pk}
    assert list_job_ids(boss, status="RUNNING", ended="24h") == set()
    assert len(list_job_ids(boss, ended="nonsense")) == len(list_job_ids(boss)) == 5


def test_of_more_than_a_list_counts_those_of_one_type_are_still_found(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(filters, "COUNT_LIMIT", 2)
    monkeypatch.setattr(filters, "INLINE_IDS_LIMIT", 1)
    wanted = create_ended_job(Status.COMPLETED, timedelta(minutes=9), job_type=note.name)
    newer = [create_ended_job(Status.COMPLETED, timedelta(minutes=8 - n), job_type="elsewhere") for n in range(5)]
    assert list_job_ids(boss, ended="1h") == {job.pk for job in newer[-3:]}
    assert list_job_ids(boss, ended="1h", job_type=note.name) == {wanted.pk}


@pytest.mark.parametrize("count", [0, 500], ids=["many", "few"])
def test_few_ends_and_many_are_found_alike(boss: Client, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(filters, "INLINE_IDS_LIMIT", count)
    jobs = {create_ended_job(Status.COMPLETED, timedelta(minutes=n)).pk for n in range(1, 4)}
    assert list_job_ids(boss, ended="1h") == list_job_ids(boss, ended="1h", status="COMPLETED") == jobs
    assert list_job_ids(boss, ended="1h", job_type=note.name) == jobs


@pytest.mark.parametrize("sort", ["", "oldest"])
def test_the_pages_of_many_ends_have_each_job_once_in_the_order_of_the_list(
    boss: Client, monkeypatch: pytest.MonkeyPatch, sort: str
) -> None:
    monkeypatch.setattr(filters, "INLINE_IDS_LIMIT", 0)
    monkeypatch.setattr(JobAdmin, "list_per_page", 2)
    ids = [create_ended_job(Status.COMPLETED, timedelta(minutes=n)).pk for n in (3, 1, 5, 4, 2)]
    job_in(Status.RUNNING)
    for status in ("", "COMPLETED", "dropped"):
        pages = [
            boss.get(get_list_url(Job), {"ended": "1h", "status": status, "sort": sort, "p": p}) for p in (1, 2, 3)
        ]
        shown = [job.pk for page in pages for job in page.context["cl"].result_list]
        expected = [] if status == "dropped" else sorted(ids, reverse=not sort)
        assert shown[: len(expected)] == expected, status
        assert [page.context["cl"].result_count for page in pages] == [len(expected)] * 3


def test_a_long_walk_along_events_is_not_made_for_every_answer(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few ends among much that happened: looked for once in a while, not by each statement of each page."""
    monkeypatch.setattr(cache, "SMALL_COUNT", 3)
    monkeypatch.setattr(cache, "MAX_TIME_SHARE", 1e-6)
    jobs = {create_ended_job(Status.COMPLETED, timedelta(minutes=n)).pk for n in range(1, 6)}
    with CaptureQueriesContext(connection) as captured:
        for _ in range(3):
            assert list_job_ids(boss, ended="1h") == jobs
    walks = [
        statement["sql"]
        for statement in captured
        if 'FROM "jobscheduler_jobevent"' in statement["sql"] and '"kind" IN' in statement["sql"]
    ]
    assert len(walks) == 1
