"""The queue page: in dispatch order, moved by plain forms, each move one service call under a person's name."""

from __future__ import annotations

import re
from html import unescape
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone
from django.utils.html import strip_tags

import tests.sample_app.job_types  # noqa: F401
from jobs.admin import queue as queue_page
from jobs.models import Job
from jobs.services import jobs as job_services
from jobs.services import limits
from jobs.states import Status
from tests.factories import JobFactory, LeaseFactory, WorkerFactory, job_in
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
    assert order(boss, priority=90) == [job.pk for job in high]
    assert order(boss, priority=50) == [job.pk for job in normal]
    assert order(boss, target="book") == [job.pk for job in lane]
    assert order(boss, tenant="nobody") == []


def read_page(client: Client, **asked: Any) -> str:
    return " ".join(strip_tags(client.get(reverse(QUEUE), asked).content.decode()).split())


def test_it_says_what_is_shown_and_what_is_not(boss: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue_page, "PAGE_SIZE", 2)
    monkeypatch.setattr(queue_page, "MAX_OFFSET", 2)
    enqueue_jobs(5), enqueue_jobs(3, target="book", priority=10)
    text, note = "1 to 2 of 5 waiting jobs, priority 50, tenant default", "Only the first 4 positions are shown"
    assert (text in read_page(boss, priority=50), note in read_page(boss, priority=50)) == (True, False)
    deeper = read_page(boss, priority=50, **{"from": 2})
    assert ("3 to 4 of 5" in deeper, note in deeper) == (True, True)
    assert "1 to 2 of 3 waiting jobs, target book, tenant default" in read_page(boss, target="book")
    assert "The first 20 queues" not in read_page(boss)
    for priority in range(queue_page.QUEUES_SHOWN):
        enqueue_jobs(1, priority=priority)
    crowded = boss.get(reverse(QUEUE), {"priority": 0})
    assert (len(crowded.context["queues"]), crowded.context["total"]) == (queue_page.QUEUES_SHOWN, 1)
    assert "The first 20 queues" in read_page(boss)


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
    assert " moved " in read_messages(response)
    assert order(client, priority=50) == [jobs[number].pk for number in expected]
    event = list_events(jobs[moved])[-1]
    assert (event.kind, event.actor_name, event.reason) == ("MOVED", "operator", "first")
    assert LogEntry.objects.get().object_id == str(jobs[moved].pk)


def test_the_buttons_name_the_neighbours_also_across_pages(boss: Client) -> None:
    jobs = enqueue_jobs(102)
    first = boss.get(reverse(QUEUE), {"priority": 50}).context
    assert (len(first["rows"]), first["rows"][0]["before"], first["rows"][-1]["after"].pk) == (100, None, jobs[100].pk)
    second = boss.get(first["next_url"]).context["rows"]
    assert [row["position"] for row in second] == [101, 102]
    assert (second[0]["before"].pk, second[-1]["after"]) == (jobs[99].pk, None)


def test_moving_takes_its_permission_and_a_post(looker: Client, boss: Client) -> None:
    job = enqueue_jobs(2)[1]
    before = dump_tables()
    page = looker.get(reverse(QUEUE), {"priority": 50}).content.decode()
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


def read_move_buttons(client: Client, **asked: Any) -> list[list[str]]:
    rows = client.get(reverse(QUEUE), asked).content.decode().split("<tr id=")[1:]
    return [re.findall(r'data-move="(\w+)"(?! disabled)', row) for row in rows]


def test_the_first_row_has_no_button_to_the_top_and_the_last_none_to_the_bottom(boss: Client) -> None:
    enqueue_jobs(3)
    moves = ["top", "up", "down", "bottom"]
    assert read_move_buttons(boss, priority=50) == [moves[2:], moves, moves[:2]]


def find_next(client: Client) -> list[tuple[Any, float | None, str]]:
    context = client.get(reverse(QUEUE)).context
    return [
        (row["job"].pk, row["start"] and round((row["start"] - timezone.now()).total_seconds(), -1), row["why"])
        for row in context["next_rows"]
    ]


def test_it_shows_what_starts_next_across_tenants_and_priorities(boss: Client) -> None:
    WorkerFactory.create(slots=2, serves={"types": ["tests.note"]})
    timed = {"expected_duration_sec": 100}
    last, first = enqueue_jobs(1, priority=10, **timed)[0], enqueue_jobs(1, priority=90, **timed)[0]
    second = enqueue_jobs(1, tenant="acme", priority=60, **timed)[0]
    limits.pause("resource", "smtp", reason="relay is down")
    paused = enqueue_jobs(1, priority=100, resource="smtp")[0]
    unserved = job_services.enqueue("sample.noop", priority=95)
    rows = find_next(boss)
    assert [row[:2] for row in rows] == [
        *((first.pk, 0), (second.pk, 0), (last.pk, 100)),
        *((paused.pk, None), (unserved.pk, None)),
    ]
    assert ("relay is down" in rows[3][2], "sample.noop" in rows[4][2]) == (True, True)
    page = unescape(read_page(boss))
    assert all(text in page for text in ('{"text": "0"}', "acme", "now", "in 1 min"))
    assert ("Submitted" in page, "Waiting since" in page) == (True, False)  # beside it stands "5 s ago"


def test_what_starts_next_counts_limits_and_running_jobs(boss: Client) -> None:
    worker = WorkerFactory.create(slots=3, busy=1, serves={"types": ["tests.note", "sample.noop"]})
    owner = worker.identity.slot_owner(0)
    JobFactory.create(running=True, lease_owner=owner, job_type="tests.note", expected_duration_sec=100)
    limits.set_maximum("job_type", "tests.note", maximum=1)
    jobs = enqueue_jobs(2, expected_duration_sec=100)
    other = job_services.enqueue("sample.noop", priority=1)
    # The running job is taken to be half done. What follows the job of unknown duration is unknown, too.
    assert [row[:2] for row in find_next(boss)] == [(other.pk, 0), (jobs[0].pk, None), (jobs[1].pk, None)]
    Job.objects.filter(pk=other.pk).update(expected_duration_sec=10)
    assert [row[:2] for row in find_next(boss)] == [(other.pk, 0), (jobs[0].pk, 50), (jobs[1].pk, 150)]


def test_what_starts_next_counts_the_starts_that_a_rate_allows_now(boss: Client) -> None:
    WorkerFactory.create(slots=5, serves={"types": ["tests.note"]})
    limits.set_rates("resource", "default", rate="1/h")
    jobs = enqueue_jobs(2, expected_duration_sec=100)
    assert [row[:2] for row in find_next(boss)] == [(jobs[0].pk, 0), (jobs[1].pk, None)]


def test_nothing_is_predicted_while_a_direct_call_has_the_next_slot(boss: Client) -> None:
    WorkerFactory.create(serves={"types": ["tests.note"]})
    enqueue_jobs(1, expected_duration_sec=10)
    assert [start for _job, start, _why in find_next(boss)] == [0]
    LeaseFactory.create(kind="DIRECT", granted_at=None)
    assert [start for _job, start, _why in find_next(boss)] == [None]


def test_params_are_shown_to_users_who_may_see_payload_only(looker: Client) -> None:
    enqueue_jobs(1)
    for asked in ({}, {"priority": "50"}):
        page = looker.get(reverse(QUEUE), asked).content.decode()
        assert ("tests.note" in page, "&quot;text&quot;" in page) == (True, False)


@pytest.mark.parametrize(
    "asked", ["?priority=x", "?priority=999999999999", "?from=-1", "?from=1e9", "?target=%00&tenant=%00"]
)
def test_nonsense_in_the_address_is_as_if_not_said(asked: str, boss: Client) -> None:
    enqueue_jobs(2)
    assert boss.get(f"{reverse(QUEUE)}{asked}").status_code == 200


@pytest.mark.parametrize("asked", [{}, {"priority": 50}], ids=["next", "one queue"])
def test_the_page_takes_few_statements_however_long_the_queue(boss: Client, asked: dict[str, Any]) -> None:
    WorkerFactory.create(serves={"types": ["tests.note"]})

    def statements() -> int:
        boss.get(reverse(QUEUE), asked)
        with CaptureQueriesContext(connection) as captured:
            boss.get(reverse(QUEUE), asked)
        return len(captured)

    enqueue_jobs(2, target="a")
    baseline = statements()
    for number in range(20):
        enqueue_jobs(2, target=f"t-{number}")
    assert statements() == baseline <= 30


def test_the_queue_leads_to_a_new_job_for_those_who_may_submit_one(boss: Client) -> None:
    url = reverse("admin:jobscheduler_jobs_enqueue")
    queue_url = reverse("admin:jobscheduler_jobs_queue")
    assert f'href="{url}"' in boss.get(queue_url).content.decode()
    assert url not in log_in(create_reader("looker")).get(queue_url).content.decode()


def test_a_queue_names_the_state_of_a_job_as_the_job_list_does(boss: Client) -> None:
    held = job_services.enqueue("sample.add", {"a": 1, "b": 2}, hold=True)
    unserved = job_services.enqueue("sample.add", {"a": 1, "b": 2})
    states = {
        row["job"].pk: strip_tags(row["state"]) for row in boss.get(reverse(QUEUE), {"priority": 50}).context["rows"]
    }
    assert states == {held.pk: "‖ Held", unserved.pk: "! No worker"}
