"""The queue page: in dispatch order, moved by plain forms, each move one service call under a person's name."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils.html import strip_tags

import tests.sample_app.job_types  # noqa: F401
from jobs.admin import queue as queue_page
from jobs.models import Job
from jobs.services import jobs as job_services
from jobs.states import Status
from tests.factories import JobFactory, job_in
from tests.support.admin_pages import read_messages
from tests.support.admin_users import create_reader, log_in
from tests.support.snapshots import dump_tables, list_events

QUEUE = "admin:jobscheduler_jobs_queue"


def enqueue_jobs(count: int, **fields: Any) -> list[Job]:
    return [job_services.enqueue("tests.note", {"text": str(number)}, **fields) for number in range(count)]


def order(client: Client, **asked: Any) -> list[Any]:
    return [row["job"].pk for row in client.get(reverse(QUEUE), asked).context["rows"]]


def move_url(job: Job) -> str:
    return reverse("admin:jobscheduler_jobs_move", args=[job.pk])


def test_it_shows_one_priority_or_one_target_in_dispatch_order(boss: Client) -> None:
    normal, high = enqueue_jobs(3), enqueue_jobs(2, priority=90)
    lane = enqueue_jobs(2, target="book", priority=10)
    job_in(Status.COMPLETED), job_in(Status.RUNNING)
    assert order(boss) == [job.pk for job in high]
    assert order(boss, priority=50) == [job.pk for job in normal]
    assert order(boss, target="book") == [job.pk for job in lane]
    assert order(boss, tenant="nobody") == []


def read_page(client: Client, **asked: Any) -> str:
    return " ".join(strip_tags(client.get(reverse(QUEUE), asked).content.decode()).split())


def test_it_says_what_is_shown_and_what_is_not(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_page, "PAGE_SIZE", 2)
    monkeypatch.setattr(queue_page, "MAX_OFFSET", 2)
    enqueue_jobs(5), enqueue_jobs(3, target="book", priority=10)
    text = "Places 1 to 2 of 5 that wait with priority 50 in tenant default, in the order in which they start."
    assert (text in read_page(boss), "places deep" in read_page(boss)) == (True, False)
    deeper = read_page(boss, **{"from": 2})
    assert ("Places 3 to 4 of 5" in deeper, "This page goes 4 places deep" in deeper) == (True, True)
    assert "Places 1 to 2 of 3 that wait for target book of tenant default" in read_page(boss, target="book")
    assert "These are the first" not in read_page(boss)
    for priority in range(queue_page.QUEUES_SHOWN):
        enqueue_jobs(1, priority=priority)
    crowded = boss.get(reverse(QUEUE), {"priority": 0})
    assert (len(crowded.context["queues"]), crowded.context["total"]) == (queue_page.QUEUES_SHOWN, 1)
    assert "These are the first 20 that have waiting jobs" in read_page(boss)


@pytest.mark.parametrize(
    ("moved", "where", "expected"),
    [
        (2, {"to": "top"}, [2, 0, 1, 3]),
        (1, {"to": "bottom"}, [0, 2, 3, 1]),
        (2, {"before": 1}, [0, 2, 1, 3]),
        (0, {"after": 1}, [1, 0, 2, 3]),
        (3, {"before": 0}, [3, 0, 1, 2]),
    ],
)
def test_a_move_is_one_post_and_is_recorded(moved: int, where: dict[str, Any], expected: list[int], db: Any) -> None:
    client = log_in(create_reader("operator", "reorder_job"))
    jobs = enqueue_jobs(4)
    post = {name: str(jobs[value].pk) if isinstance(value, int) else value for name, value in where.items()}
    response = client.post(move_url(jobs[moved]), {**post, "tenant": "default", "priority": "50", "reason": "first"})
    assert response["Location"] == f"{reverse(QUEUE)}?tenant=default&priority=50#job-{jobs[moved].pk}"
    assert order(client) == [jobs[number].pk for number in expected]
    event = list_events(jobs[moved])[-1]
    assert (event.kind, event.actor_name, event.reason) == ("MOVED", "operator", "first")
    assert LogEntry.objects.get().object_id == str(jobs[moved].pk)


def test_the_buttons_name_the_neighbours_also_across_pages(boss: Client) -> None:
    jobs = enqueue_jobs(102)
    first = boss.get(reverse(QUEUE)).context
    assert (len(first["rows"]), first["rows"][0]["before"], first["rows"][-1]["after"].pk) == (100, None, jobs[100].pk)
    second = boss.get(first["next_url"]).context["rows"]
    assert [row["position"] for row in second] == [101, 102]
    assert (second[0]["before"].pk, second[-1]["after"]) == (jobs[99].pk, None)


def test_moving_takes_its_permission_and_a_post(looker: Client, boss: Client) -> None:
    job = enqueue_jobs(2)[1]
    before = dump_tables()
    page = looker.get(reverse(QUEUE)).content.decode()
    assert "<button" not in page.split('class="jc-table')[1].split("</table>")[0]
    assert looker.post(move_url(job), {"to": "top"}).status_code == 403
    assert boss.get(move_url(job)).status_code == 405
    assert dump_tables() == before


def test_a_move_that_makes_no_sense_is_a_sentence(boss: Client) -> None:
    job, other, done = enqueue_jobs(1)[0], enqueue_jobs(1, priority=90)[0], job_in(Status.COMPLETED)
    before = dump_tables()
    posts: list[tuple[Job, dict[str, Any]]] = [
        (job, {}),
        (job, {"to": "sideways"}),
        (job, {"to": "top", "before": str(job.pk)}),
        (job, {"before": str(job.pk)}),
        (job, {"before": "nonsense"}),
        (job, {"after": str(other.pk)}),
        (job, {"after": str(done.pk)}),
        (job, {"to": "top", "reason": "x" * 5000}),
        (done, {"to": "top"}),
        (JobFactory.build(), {"to": "top"}),
    ]
    for which, post in posts:
        response = boss.post(move_url(which), post)
        assert (response.status_code, bool(read_messages(response))) == (302, True), post
    assert dump_tables() == before


@pytest.mark.parametrize(
    "asked", ["?priority=x", "?priority=999999999999", "?from=-1", "?from=1e9", "?target=%00&tenant=%00"]
)
def test_nonsense_in_the_address_is_as_if_not_said(asked: str, boss: Client) -> None:
    enqueue_jobs(2)
    assert boss.get(f"{reverse(QUEUE)}{asked}").status_code == 200


def test_the_page_takes_few_statements_however_long_the_queue(boss: Client) -> None:
    def statements() -> int:
        boss.get(reverse(QUEUE))
        with CaptureQueriesContext(connection) as captured:
            boss.get(reverse(QUEUE))
        return len(captured)

    enqueue_jobs(2, target="a")
    baseline = statements()
    for number in range(20):
        enqueue_jobs(2, target=f"t-{number}")
    assert statements() == baseline <= 30
