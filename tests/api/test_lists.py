"""Lists of jobs and runs: filters match exactly, and pages neither repeat nor lose items."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from urllib.parse import quote

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from jobs.api import job_lists
from jobs.models import Job
from jobs.states import Status
from tests.api.routes import create_objects, read_document
from tests.factories import (
    JobEventFactory,
    JobFactory,
    JobGroupFactory,
    JobLogFactory,
    ScheduleFactory,
    job_in,
)
from tests.support.api_client import ApiClient, read_error_locations

pytestmark = pytest.mark.django_db
CURSOR_TRIES = 9  # of the attack by hand that a test repeats
CURSOR_PATHS = [
    path
    for path, methods in read_document()["paths"].items()
    if "cursor" in [parameter["name"] for parameter in methods.get("get", {}).get("parameters", ())]
]


def read_ids(response: Any) -> list[str]:
    assert response.status_code == 200, response.content
    return [item["id"] for item in response.json()["items"]]


def sort_newest_first(*jobs: Job) -> list[str]:
    return [str(job.pk) for job in sorted(jobs, key=lambda job: job.pk, reverse=True)]


@pytest.fixture
def api() -> ApiClient:
    return ApiClient("read", tenant=None)


def test_jobs_come_newest_first_fifty_at_a_time(api: ApiClient) -> None:
    jobs = JobFactory.create_batch(51)
    page = api.get("/jobs").json()
    assert [item["id"] for item in page["items"]] == sort_newest_first(*jobs)[:50]
    assert read_ids(api.get(f"/jobs?cursor={page['next_cursor']}")) == sort_newest_first(*jobs)[50:]


@pytest.mark.parametrize("status", [status for status in Status if status != Status.DISPATCHING])
def test_a_status_finds_the_jobs_in_it(api: ApiClient, status: Status) -> None:
    jobs = {status: job_in(status) for status in Status}
    expected = [jobs[status]] + ([jobs[Status.DISPATCHING]] if status == Status.QUEUED else [])
    assert read_ids(api.get(f"/jobs?status={status}")) == sort_newest_first(*expected)
    assert {item["status"] for item in api.get(f"/jobs?status={status}").json()["items"]} == {status}


@pytest.mark.parametrize(
    "expected_statuses",
    [
        (Status.FAILED, Status.CANCELLED),
        (Status.COMPLETED, Status.FAILED),
        (Status.RUNNING, Status.QUEUED),
        (Status.PENDING, Status.PAUSED, Status.SKIPPED, Status.COMPLETED),
        tuple(status for status in Status if status != Status.DISPATCHING),
    ],
)
def test_several_statuses_find_any_of_them_in_one_order(api: ApiClient, expected_statuses: tuple[Status, ...]) -> None:
    jobs = [job_in(status) for _ in range(3) for status in Status]
    stored = {*expected_statuses, *([Status.DISPATCHING] if Status.QUEUED in expected_statuses else [])}
    query = "&".join(f"status={status}" for status in expected_statuses)
    expected = sort_newest_first(*(job for job in jobs if job.status in stored))
    assert read_ids(api.get(f"/jobs?{query}")) == expected
    assert [item["id"] for item in api.list_all(f"/jobs?{query}", 2)] == expected


def test_each_filter_finds_its_jobs(api: ApiClient) -> None:
    group, schedule = JobGroupFactory.create(), ScheduleFactory.create()
    JobFactory.create_batch(3)
    jobs_by_query = {
        "job_type=odd.type": JobFactory.create(job_type="odd.type"),
        "target=book-1": JobFactory.create(target="book-1"),
        "tenant=acme": JobFactory.create(tenant="acme"),
        "tag=red": JobFactory.create(tags=["red"]),
        f"group={group.pk}": JobFactory.create(group=group, group_index=0),
        f"schedule={schedule.pk}": JobFactory.create(schedule=schedule),
        "addon_id=tool": JobFactory.create(addon_id="tool"),
        "resource=gpu": JobFactory.create(resource="gpu"),
    }
    for query, job in jobs_by_query.items():
        assert read_ids(api.get(f"/jobs?{query}")) == [str(job.pk)], query
        assert read_ids(api.get(f"/jobs?{query}&status=QUEUED")) == [str(job.pk)], query
        assert read_ids(api.get(f"/jobs?{query}&status=FAILED")) == [], query
        assert read_ids(api.get(f"/jobs?{query}&order=queue")) == [str(job.pk)], query


def test_several_tags_must_all_match(api: ApiClient) -> None:
    both, one = JobFactory.create(tags=["red", "big"]), JobFactory.create(tags=["red"])
    JobFactory.create(tags=["Red", "redder"])
    assert read_ids(api.get("/jobs?tag=red")) == sort_newest_first(both, one)
    assert read_ids(api.get("/jobs?tag=red&tag=big")) == [str(both.pk)]


def test_q_is_an_id_or_the_beginning_of_a_name(api: ApiClient) -> None:
    by_type, by_target = JobFactory.create(job_type="mail.send"), JobFactory.create(target="mailbox")
    by_tag = JobFactory.create(tags=["x", "mailing"])
    other = JobFactory.create(job_type="Mail.send", target="my mail", tags=["email"])
    assert read_ids(api.get("/jobs?q=mail")) == sort_newest_first(by_type, by_target, by_tag)
    assert read_ids(api.get(f"/jobs?q={other.pk}")) == [str(other.pk)]
    assert read_ids(api.get(f"/jobs?q={other.pk.hex.upper()}")) == [str(other.pk)]


@pytest.mark.parametrize("q", ["%", "_", "mail%", "m_il", "*", "\\", "'", '"', "m.il"])
def test_q_has_no_wildcards(api: ApiClient, q: str) -> None:
    JobFactory.create(job_type="mail", target="mail", tags=["mail"])
    job = JobFactory.create(job_type=f"{q}x")
    assert read_ids(api.get(f"/jobs?q={quote(q)}")) == [str(job.pk)]


def test_created_after_and_before_leave_out_the_moment_itself(api: ApiClient) -> None:
    now = timezone.now().replace(microsecond=0)
    first, second, third = (JobFactory.create(created_at=now + timedelta(seconds=n)) for n in (-10, 0, 10))
    moment = quote(now.isoformat())
    assert read_ids(api.get(f"/jobs?created_after={moment}")) == [str(third.pk)]
    assert read_ids(api.get(f"/jobs?created_before={moment}")) == [str(first.pk)]
    after, before = (quote((now + timedelta(seconds=n)).isoformat()) for n in (-5, 10))
    assert read_ids(api.get(f"/jobs?created_after={after}&created_before={before}")) == [str(second.pk)]


def test_the_queue_is_in_the_order_of_dispatch(api: ApiClient) -> None:
    low = JobFactory.create(priority=25, position=0)
    late, early = JobFactory.create(position=2), JobFactory.create(position=1)
    urgent = JobFactory.create(priority=100, position=9)
    tied = JobFactory.create(position=2, created_at=late.created_at)
    for status in (Status.PENDING, Status.RUNNING, Status.DISPATCHING, Status.COMPLETED):
        job_in(status)
    order = [str(job.pk) for job in (urgent, early, late, tied, low)]
    assert read_ids(api.get("/jobs?order=queue")) == order
    assert read_ids(api.get("/jobs?order=queue&status=QUEUED")) == order
    for limit in (1, 2, 3):
        assert [item["id"] for item in api.list_all("/jobs?order=queue", limit)] == order


@pytest.mark.parametrize("max_queues", [100, 2])
def test_the_queues_of_all_tenants_are_merged_into_one_order(
    api: ApiClient, monkeypatch: pytest.MonkeyPatch, max_queues: int
) -> None:
    monkeypatch.setattr(
        job_lists, "MAX_MERGED_QUEUES", max_queues
    )  # with more queues they are sorted instead of merged
    jobs = [JobFactory.create(tenant=tenant, position=n) for n, tenant in enumerate(("b", "a", "c", "a"))]
    assert [item["id"] for item in api.list_all("/jobs?order=queue", 1)] == [str(job.pk) for job in jobs]
    assert read_ids(api.get("/jobs?order=queue&tenant=a")) == [str(jobs[1].pk), str(jobs[3].pk)]
    assert read_ids(ApiClient("read", tenant="a").get("/jobs?order=queue")) == [str(jobs[1].pk), str(jobs[3].pk)]
    assert read_ids(ApiClient("read", tenant="a").get("/jobs?order=queue&tenant=b")) == []


@pytest.mark.parametrize("order", ["newest", "queue"])
def test_pages_are_stable_while_jobs_come_and_end(api: ApiClient, order: str) -> None:
    """Jobs that exist during the whole walk are listed once, whatever is inserted and deleted meanwhile."""
    jobs = [JobFactory.create(position=n) for n in range(20)]
    job_ids: list[str] = []
    cursor = ""
    while True:
        page = api.get(f"/jobs?order={order}&limit=3{cursor}").json()
        job_ids += [item["id"] for item in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
        JobFactory.create(position=-1)
        Job.objects.filter(pk=job_ids[0]).delete()  # a cursor does not depend on the row it was made from
    assert len(job_ids) == len(set(job_ids))
    assert set(job_ids) >= {str(job.pk) for job in jobs[1:-1]}


@pytest.mark.parametrize("window", [1, 3, 7])
@pytest.mark.parametrize(
    "query", ["job_type=rare", "status=FAILED&status=RUNNING&job_type=rare", "tag=t", "order=queue&job_type=rare"]
)
def test_short_windows_lose_nothing(api: ApiClient, monkeypatch: pytest.MonkeyPatch, window: int, query: str) -> None:
    monkeypatch.setattr(job_lists, "SCAN_LIMIT", window)
    monkeypatch.setattr(job_lists, "FIRST_SCAN_FACTOR", 1)
    states = (Status.FAILED, Status.RUNNING, Status.QUEUED)
    jobs = [
        job_in(states[n % 3], job_type="rare" if n % 4 == 0 else "common", tags=["t"] if n % 5 == 0 else [], position=n)
        for n in range(30)
    ]
    one_page = api.list_all(f"/jobs?{query}", 500)
    assert [item["id"] for item in api.list_all(f"/jobs?{query}", 2)] == [item["id"] for item in one_page]
    is_expected = {
        "job_type=rare": lambda job: job.job_type == "rare",
        "status=FAILED&status=RUNNING&job_type=rare": lambda job: job.job_type == "rare" and job.status != "QUEUED",
        "tag=t": lambda job: "t" in job.tags,
        "order=queue&job_type=rare": lambda job: job.job_type == "rare" and job.status == "QUEUED",
    }[query]
    assert {item["id"] for item in one_page} == {str(job.pk) for job in jobs if is_expected(job)}


def test_a_cursor_is_for_its_own_list_filters_and_tenant_only(api: ApiClient) -> None:
    JobFactory.create_batch(3)
    job = job_in(Status.COMPLETED)
    JobEventFactory.create_batch(3, job=job)
    cursor = api.get("/jobs?limit=1&status=QUEUED").json()["next_cursor"]
    assert cursor
    assert api.get(f"/jobs?limit=2&status=QUEUED&cursor={cursor}").status_code == 200
    other_paths = [
        "/jobs?",
        "/jobs?status=FAILED&",
        "/jobs?status=QUEUED&tag=x&",
        "/jobs?status=QUEUED&tenant=default&",
        "/jobs?status=QUEUED&order=queue&",
        "/job-runs?",
        f"/jobs/{job.pk}/events?",
    ]
    for path in other_paths:
        assert read_error_locations(api.get(f"{path}cursor={cursor}")) == [["query", "cursor"]], path
    assert read_error_locations(ApiClient("read").get(f"/jobs?status=QUEUED&cursor={cursor}")) == [["query", "cursor"]]
    for tampered in (cursor[:-1], cursor + "x", cursor.swapcase(), cursor.partition(":")[0]):
        assert read_error_locations(api.get(f"/jobs?status=QUEUED&cursor={tampered}")) == [["query", "cursor"]]


@pytest.mark.usefixtures("errors_logged_alone")
def test_a_forged_cursor_is_refused_by_every_list() -> None:
    api, values, tries = ApiClient("admin", tenant=None), create_objects("default"), 0
    JobFactory.create_batch(2)
    foreign = api.get("/jobs?limit=1&q=tests").json()["next_cursor"]
    signature = foreign.partition(":")[2]
    forged = (
        *(
            foreign,
            foreign[:-1],
            foreign.swapcase(),
            f"{foreign}\0",
            foreign * 30,
            "",
            "null",
            "x" * 3000,
            "a" * 30_000,
        ),
        *(f"W10:{signature}", f":{signature}", "' OR 1=1 --", "WyJhIixbIjEiXV0:xxxxxxxxxxxxxxxxxxxxxxxxxxx"),
    )
    for path in CURSOR_PATHS:
        for cursor in forged:
            refused = api.client.get(f"{path.format_map(values)}?cursor={quote(cursor)}", headers=api.headers)
            assert read_error_locations(refused) == [["query", "cursor"]], (path, cursor)
            tries += 1
    assert tries >= CURSOR_TRIES


def test_long_headers_are_answered() -> None:
    api, job = ApiClient("read"), JobFactory.create()
    for name in ("If-None-Match", "Accept-Language", "Accept", "If-Match"):
        for text in ("x" * 30_000, '"a", ' * 6_000, "de;q=0.1, " * 3_000):
            for path in ("/jobs", f"/jobs/{job.pk}"):
                assert api.get(path, **{name: text}).status_code == 200, (name, path)


def test_a_cursor_of_one_jobs_events_is_not_anothers(api: ApiClient) -> None:
    one, two = JobFactory.create(), JobFactory.create()
    for job in (one, two):
        JobEventFactory.create_batch(3, job=job)
    cursor = api.get(f"/jobs/{one.pk}/events?limit=1").json()["next_cursor"]
    assert read_error_locations(api.get(f"/jobs/{two.pk}/events?cursor={cursor}")) == [["query", "cursor"]]


def test_events_and_logs_come_oldest_first_page_by_page(api: ApiClient) -> None:
    job, other = JobFactory.create(), JobFactory.create()
    events = JobEventFactory.create_batch(5, job=job, data={"password": "x"})
    lines = JobLogFactory.create_batch(5, job=job)
    JobLogFactory.create(job=other)
    assert [item["id"] for item in api.list_all(f"/jobs/{job.pk}/events", 2)] == [event.pk for event in events]
    assert [item["message"] for item in api.list_all(f"/jobs/{job.pk}/logs", 2)] == [line.message for line in lines]
    (data,) = {str(item["data"]) for item in api.list_all(f"/jobs/{job.pk}/events", 5)}
    assert "••••" in data


def test_runs_come_newest_first_and_by_filter(api: ApiClient) -> None:
    done, failed = job_in(Status.COMPLETED), job_in(Status.FAILED, tenant="acme", job_type="odd")
    running = job_in(Status.RUNNING)
    JobFactory.create_batch(2)
    assert read_ids(api.get("/job-runs")) == sort_newest_first(done, failed, running)
    assert read_ids(api.get("/job-runs?status=FAILED&status=RUNNING")) == sort_newest_first(failed, running)
    assert read_ids(api.get("/job-runs?tenant=acme")) == [str(failed.pk)]
    assert read_ids(api.get("/job-runs?job_type=odd")) == [str(failed.pk)]
    assert read_ids(ApiClient("read", tenant="acme").get("/job-runs?status=FAILED")) == [str(failed.pk)]
    assert read_ids(ApiClient("read", tenant="acme").get("/job-runs?tenant=default")) == []
    assert [item["id"] for item in api.list_all("/job-runs", 1)] == sort_newest_first(done, failed, running)


@pytest.mark.parametrize("tenant", [None, "default", "acme"])
@pytest.mark.parametrize(
    "path",
    [
        "/jobs",
        "/jobs?job_type=tests.note",
        "/jobs?status=QUEUED",
        "/jobs?status=FAILED&status=COMPLETED",
        "/jobs?q=tests",
        "/jobs?tag=x&order=queue",
        "/jobs?order=queue",
        "/job-runs?status=FAILED",
    ],
)
def test_a_page_takes_few_statements_however_many_jobs_it_has(path: str, tenant: str | None) -> None:
    api = ApiClient("read", tenant=tenant)
    for status in Status:
        for _ in range(3):
            job = job_in(status, tenant=tenant or "default", tags=["x"])
            if status == Status.FAILED:
                JobFactory.create(tenant=job.tenant, retry_of=job, attempt=2)
    api.get("/jobs")
    with CaptureQueriesContext(connection) as queries:
        response = api.get(path)
    assert response.json()["items"]
    assert len(queries) <= 12
    assert not [statement["sql"] for statement in queries if statement["sql"].startswith("SELECT COUNT(")]
