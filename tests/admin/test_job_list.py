"""The job list: what its rows say, its tabs, its filters, and verbs on many jobs with a dry run first."""

from __future__ import annotations

import secrets
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.admin.templatetags.admin_list import items_for_result
from django.test import Client
from django.utils import timezone

import tests.sample_app.job_types  # noqa: F401
from jobs.admin.filters import TABS
from jobs.admin.job_rows import render_cells
from jobs.models import Job
from jobs.services import jobs as job_services
from jobs.services import limits, targets
from jobs.states import Status
from tests.factories import JobFactory, ScheduleFactory, WorkerFactory, job_in
from tests.support.admin_pages import get_list_url, get_page_url, read_messages
from tests.support.admin_users import create_reader, log_in
from tests.support.snapshots import dump_tables, list_events

SERVES = {"types": ["tests.note"]}


def rows(client: Client, query: str = "") -> dict[Any, Any]:
    return {job.pk: job for job in client.get(f"{get_list_url(Job)}{query}").context["cl"].result_list}


def act(client: Client, action: str, jobs: list[Job], query: str = "", **data: Any) -> Any:
    post = {"action": action, "_selected_action": [str(job.pk) for job in jobs], "index": 0, **data}
    return client.post(f"{get_list_url(Job)}{query}", post)


def describe(page: Any) -> list[str]:
    """Return what a confirmation asks, and whom it will skip."""
    dry_run = page.context["dry_run"]
    return [str(dry_run), *dry_run.describe_skipped()]


def test_a_row_says_why_its_job_waits(boss: Client) -> None:
    note: Any = ("tests.note", {"text": "a"})
    no_worker = job_services.enqueue(*note)
    assert rows(boss)[no_worker.pk].wait.code == "no_worker"
    WorkerFactory.create(serves=SERVES)
    timed = job_services.enqueue(*note, not_before=timezone.now() + timedelta(hours=2))
    held = job_services.enqueue(*note, hold=True)
    job_in(Status.FAILED, target="shut")
    behind_failure = job_services.enqueue(*note, target="shut")
    targets.pause("stopped")
    at_paused_target = job_services.enqueue(*note, target="stopped")
    found = rows(boss)
    assert found[no_worker.pk].wait is None
    assert found[timed.pk].wait.message.startswith("scheduled for")
    assert found[held.pk].wait.message == "on hold"
    assert found[behind_failure.pk].wait.message == "target blocked by a failed job"
    assert found[at_paused_target.pk].wait.message == "target paused"
    limits.pause("global", reason="stocktaking")
    page = boss.get(get_list_url(Job))
    assert {job.pk: job for job in page.context["cl"].result_list}[no_worker.pk].wait.code == "scope_paused"
    assert "stocktaking" in page.content.decode()


def test_a_row_is_marked_by_what_is_special_about_its_job(boss: Client) -> None:
    past = timezone.now() - timedelta(minutes=5)
    job_in(Status.RUNNING, lease_expires_at=past)
    job_in(Status.FAILED, in_lane=True)
    JobFactory.create(schedule=ScheduleFactory.create(), in_group=True, attempt=2, max_retries=3)
    page = boss.get(get_list_url(Job)).content.decode()
    marks = ("missed heartbeat", "blocks its target", "scheduled", "group", "attempt 2 of 4")
    missing = [mark for mark in marks if mark not in page]
    assert missing == []


def test_params_are_in_one_line_masked_and_only_for_those_who_may_see_them(boss: Client, looker: Client) -> None:
    JobFactory.create(params={"text": "hello", "password": "hunter2"})
    long = secrets.token_hex(4000)  # which no database makes small
    JobFactory.create(params={"text": long})
    page = boss.get(get_list_url(Job)).content.decode()
    assert [word in page for word in ("hello", "hunter2", "params too long to show", long[:20])] == [
        True,
        False,
        True,
        False,
    ]
    assert "hello" not in looker.get(get_list_url(Job)).content.decode()


def test_rows_are_those_of_the_tag_of_django(boss: Client, looker: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    JobFactory.create(params={"text": "<b>&\"'"}, tags=["a"], target="<i>")
    JobFactory.create(running=True, progress=0.5, progress_message="<u>")
    for status in Status:
        job_in(status)
    now = timezone.now()
    for client in (boss, looker):
        cl = client.get(get_list_url(Job), {"status": "", "sort": "newest"}).context["cl"]
        monkeypatch.setattr("jobs.admin.jobs.timezone.now", lambda: now)  # ages are of one moment
        assert len(cl.result_list) > len(Status)
        for row in cl.result_list:
            assert render_cells(cl, row) == "".join(items_for_result(cl, row, None))
        monkeypatch.undo()


def test_a_row_in_a_popup_is_chosen_by_its_link(boss: Client) -> None:
    job = JobFactory.create()
    assert f'data-popup-opener="{job.pk}"' in boss.get(get_list_url(Job), {"_popup": "1"}).content.decode()


def test_the_tabs_count_what_their_lists_show_in_one_call(boss: Client, looker: Client) -> None:
    for status in Status:
        job_in(status)
    job_in(Status.QUEUED, gate=1, not_before=timezone.now() + timedelta(hours=1))
    job_in(Status.QUEUED, job_type="tests.other")
    job_in(Status.FAILED, target="shut", in_lane=True)
    job_in(Status.QUEUED, target="shut", gate=2)
    for query in ("", "q=type:tests.other", "job_type=tests.other", "created=1h", "attention=blocking", "ended=1h"):
        page = boss.get(f"{get_list_url(Job)}?{query}")
        counts = looker.get(page.context["counts_url"] + page.context["cl"].count_query).json()
        lists = {tab["name"]: boss.get(f"{get_list_url(Job)}{tab['query']}") for tab in page.context["cl"].tabs}
        shown = {name: str(answer.context["cl"].result_count) for name, answer in lists.items()}
        assert counts == shown, query


def test_every_job_is_in_one_tab(boss: Client) -> None:
    job_in(Status.FAILED, target="shut", in_lane=True)
    targets.pause("stopped")
    for status in Status:
        job_in(status)
    job_in(Status.PENDING, hold=True), job_in(Status.PENDING, hold=False)
    job_in(Status.QUEUED, gate=1, not_before=timezone.now() + timedelta(hours=1))
    job_in(Status.QUEUED, target="shut", gate=2), job_in(Status.QUEUED, target="stopped", gate=2)
    in_tabs = [pk for name in TABS for pk in rows(boss, f"?status={name}")]
    assert sorted(in_tabs) == sorted(Job.objects.values_list("pk", flat=True))
    assert len(rows(boss, "?status=blocked")) == 2


def test_a_tab_keeps_the_search_and_the_filters(boss: Client) -> None:
    page = boss.get(f"{get_list_url(Job)}?status=RUNNING&q=type:a&created=24h&p=2&sort=oldest")
    tabs = {tab["name"]: tab for tab in page.context["cl"].tabs}
    assert [name for name, tab in tabs.items() if tab["is_current"]] == ["running"]
    assert tabs["FAILED"]["query"] == "?created=24h&q=type%3Aa&sort=oldest&status=FAILED"
    assert tabs["all"]["query"] == "?created=24h&q=type%3Aa&sort=oldest"


@pytest.mark.parametrize("status", Status)
def test_each_tab_lists_its_status_only(status: Status, boss: Client) -> None:
    jobs = {status: job_in(status) for status in Status}
    assert set(rows(boss, f"?status={status}")) == {jobs[status].pk}


def test_what_needs_attention_is_one_filter_away(boss: Client) -> None:
    now = timezone.now()
    wanted = {
        "blocking": job_in(Status.FAILED, in_lane=True),
        "stuck": job_in(Status.RUNNING, lease_expires_at=now - timedelta(minutes=5)),
        "timed": JobFactory.create(not_before=now + timedelta(hours=1)),
        "late": JobFactory.create(created_at=now - timedelta(minutes=5)),
    }
    job_in(Status.RUNNING), job_in(Status.FAILED), JobFactory.create()
    for value, job in wanted.items():
        assert set(rows(boss, f"?attention={value}")) == {job.pk}, value
    assert len(rows(boss, "?attention=nonsense")) == 7


def test_an_empty_list_says_why_it_is_empty(boss: Client) -> None:
    assert "No jobs yet" in boss.get(get_list_url(Job)).content.decode()
    job_in(Status.QUEUED)
    assert "Nothing matches these filters" in boss.get(f"{get_list_url(Job)}?status=FAILED").content.decode()


# -------------------------------------------------------------------------------------------------- many jobs at once


def test_a_grave_verb_on_many_first_says_what_it_would_do(boss: Client) -> None:
    ended, running = [job_in(Status.FAILED) for _ in range(3)], [job_in(Status.RUNNING) for _ in range(2)]
    before = dump_tables()
    page = act(boss, "retry", [*ended, *running])
    assert page.status_code == 200
    assert describe(page) == ["Retry 3 jobs?", "2 will be skipped: already running"]
    assert page.context["dry_run"].describe_unhandled() == [
        "No running worker handles tests.note: 3 jobs will wait until one does."
    ]
    assert dump_tables() == before
    agreed = act(boss, "retry", [*ended, *running], confirmed="1", reason="as agreed")
    assert read_messages(agreed).startswith("3 jobs retried, 2 skipped: already running")
    assert {list_events(job)[-1].reason for job in ended} == {"as agreed"}


def test_the_page_that_asks_repeats_the_choice(boss: Client) -> None:
    jobs = [job_in(Status.QUEUED) for _ in range(3)]
    hidden = act(boss, "cancel", jobs, reason="why not").context["hidden"]
    post: dict[str, Any] = {name: [str(value) for key, value in hidden if key == name] for name, _ in hidden}
    response = boss.post(get_list_url(Job), {**post, "confirmed": "1"})
    assert read_messages(response) == "3 jobs cancelled."


@pytest.mark.parametrize(
    ("verb", "status", "count", "across", "asks"),
    [
        ("cancel", Status.QUEUED, 1, "0", False),
        ("cancel", Status.QUEUED, 2, "0", True),
        ("retry", Status.FAILED, 1, "0", False),
        ("retry", Status.FAILED, 2, "0", True),
        ("pause", Status.QUEUED, 2, "0", False),
        ("pause", Status.QUEUED, 2, "1", True),
        ("resume", Status.PAUSED, 2, "0", False),
        ("release", Status.PENDING, 2, "0", False),
        ("resolve", Status.FAILED, 2, "0", True),
    ],
)
def test_only_what_is_dangerous_is_asked_twice(
    verb: str, status: Status, count: int, across: str, asks: bool, boss: Client
) -> None:
    jobs = [job_in(status) for _ in range(count)]
    response = act(boss, verb, jobs, select_across=across)
    assert (response.status_code == 200) is asks


def test_any_verb_can_be_tried_dry(boss: Client) -> None:
    jobs = [job_in(Status.QUEUED), job_in(Status.COMPLETED)]
    before = dump_tables()
    page = act(boss, "pause", jobs, dry_run="on")
    assert describe(page) == ["Pause 1 job?", "1 will be skipped: already completed"]
    assert dump_tables() == before


def test_what_is_foreseen_is_what_happens(boss: Client) -> None:
    for verb in ("release", "pause", "resume", "retry", "resolve", "cancel"):
        jobs = [job_in(status) for status in Status]
        jobs.append(job_in(Status.PENDING, hold=False))
        jobs.append(job_in(Status.RUNNING, cancel_requested=True, cancel_mode="CANCEL"))
        jobs.append(job_in(Status.FAILED, resolved_at=timezone.now()))
        followed = job_in(Status.FAILED)
        JobFactory.create(retry_of=followed, attempt=2)
        jobs.append(followed)
        result = act(boss, verb, jobs, dry_run="on").context["dry_run"]
        before = {job.pk: len(list_events(job)) for job in jobs}
        act(boss, verb, jobs, confirmed="1")
        changed = [job for job in jobs if len(list_events(job)) > before[job.pk]]
        asked_before = [job for job in jobs if verb == "cancel" and job.cancel_requested]
        assert len(changed) + len(asked_before) == result.applicable, verb


def test_all_that_match_are_taken_up_to_the_limit_and_the_rest_is_told(boss: Client, settings: Any) -> None:
    settings.JOBSCHEDULER = {"CONSOLE_BULK_LIMIT": 3}
    jobs = [job_in(Status.FAILED) for _ in range(5)]
    page = act(boss, "retry", jobs[:1], "?status=FAILED", select_across="1")
    assert describe(page) == ["Retry 3 jobs?"]
    assert "2 remain." in page.content.decode()
    assert "2 not processed" in read_messages(
        act(boss, "retry", jobs[:1], "?status=FAILED", select_across="1", confirmed="1")
    )


def test_priority_is_changed_for_many_by_those_who_may_reorder(db: Any) -> None:
    client = log_in(create_reader("operator", "reorder_job"))
    jobs = [job_in(Status.QUEUED), job_in(Status.QUEUED), job_in(Status.COMPLETED)]
    page = act(client, "change_priority", jobs)
    assert describe(page) == ["Change the priority of 2 jobs?", "1 will be skipped: already completed"]
    for wrong in ("", "101", "-1", "x", "9" * 50, "1.5"):
        refused = act(client, "change_priority", jobs, confirmed="1", priority=wrong)
        assert (refused.status_code, bool(refused.context["error"])) == (200, True), wrong
    assert read_messages(act(client, "change_priority", jobs, confirmed="1", priority="90")).startswith(
        "2 jobs changed, 1 skip"
    )
    assert [Job.objects.get(pk=job.pk).priority for job in jobs] == [90, 90, 50]
    assert (list_events(jobs[0])[-1].kind, list_events(jobs[0])[-1].actor_name) == ("UPDATED", "operator")


def test_a_list_that_asks_for_itself_is_told_that_nothing_happened(boss: Client) -> None:
    job = job_services.enqueue("tests.note", {"text": "a"})
    asked = {"X-Jobs-Live": "1"}
    first = boss.get(get_list_url(Job), headers=asked)
    again = boss.get(get_list_url(Job), headers={**asked, "If-None-Match": first["ETag"]})
    assert (again.status_code, again.content) == (304, b"") or again["ETag"] != first["ETag"]
    job_services.pause(job.pk)
    assert boss.get(get_list_url(Job), headers={**asked, "If-None-Match": first["ETag"]}).status_code == 200
    assert boss.get(get_list_url(Job), headers={"If-None-Match": first["ETag"]}).status_code == 200  # a person reloads


def test_a_paused_limit_refreshes_the_list_and_the_page_of_a_job_that_waits(boss: Client) -> None:
    job = job_services.enqueue("tests.note", {"text": "a"})
    for change in (limits.pause, limits.unpause):
        for url in (get_list_url(Job), get_page_url(job)):
            before = boss.get(url, headers={"X-Jobs-Live": "1"})["ETag"]
            change("resource", url)
            asked = {"X-Jobs-Live": "1", "If-None-Match": before}
            assert boss.get(url, headers=asked).status_code == 200, (change, url)


def test_a_job_that_follows_one_whose_worker_died_is_marked_as_rescued(db: Any) -> None:
    client = log_in(create_reader("ann"))
    for reason in ("lease expired", "boom"):
        died = JobFactory.create(failed=True, status_reason=reason)
        JobFactory.create(retry_of=died, attempt=2)
    page = client.get(get_list_url(Job)).content.decode()
    assert page.count('<span class="jc-mark">recovered</span>') == 1


def test_a_page_that_asks_for_itself_leaves_the_messages_to_people(boss: Client) -> None:
    job = JobFactory.create()
    boss.post(get_page_url(job).replace("/change/", "/verb/pause/"))
    for page in (get_list_url(Job), get_page_url(job)):
        assert "1 job paused" not in boss.get(page, headers={"X-Jobs-Live": "1"}).content.decode()
    assert "1 job paused" in boss.get(get_page_url(job)).content.decode()


def test_what_was_ticked_and_has_left_the_list_is_reported(boss: Client) -> None:
    gone, here = JobFactory.create(completed=True), JobFactory.create(failed=True)
    url = f"{get_list_url(Job)}?status=FAILED"
    messages = read_messages(boss.post(url, {"action": "pause", "_selected_action": [gone.pk, here.pk]}))
    assert "already completed" in messages
    assert "already failed" in messages


@pytest.mark.parametrize("yes", ["1", "true", "on"])
def test_all_that_match_need_a_second_look_in_any_spelling(yes: str, boss: Client) -> None:
    JobFactory.create_batch(2)
    boss.post(
        get_list_url(Job), {"action": "pause", "select_across": yes, "_selected_action": [Job.objects.first().pk]}
    )
    assert not Job.objects.filter(status=Status.PAUSED).exists()
