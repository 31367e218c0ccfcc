"""The verbs in the admin: by permission, through the services, with an honest report."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import resolve

from jobs.models import Job
from jobs.states import Status
from tests.factories import JobFactory, JobGroupFactory, job_in
from tests.support.admin_pages import get_list_url, get_page_url, read_messages, run_action
from tests.support.admin_users import create_reader, log_in
from tests.support.snapshots import dump_tables, list_event_kinds, list_events

# verb → the state it is tried from, and the event that it leaves on that job
VERBS = {
    "release": (Status.PENDING, "RELEASED"),
    "pause": (Status.QUEUED, "PAUSED"),
    "resume": (Status.PAUSED, "RESUMED"),
    "retry": (Status.COMPLETED, "RETRY_CREATED"),
    "resolve": (Status.FAILED, "RESOLVED"),
    "cancel": (Status.QUEUED, "CANCELLED"),
}


def verb_url(job: Job, verb: str) -> str:
    return get_page_url(job).replace("/change/", f"/verb/{verb}/")


def offered_actions(client: Client) -> set[str]:
    form = client.get(get_list_url(Job)).context["action_form"]
    return set() if form is None else {value for value, _label in form.fields["action"].choices if value}


def buttons(client: Client, job: Job) -> set[str]:
    return {verb.name for verb in client.get(get_page_url(job)).context["verbs"]} - {"clone"}


@pytest.mark.parametrize("verb", VERBS)
def test_an_action_needs_the_permission_of_its_verb_and_no_other(verb: str, db: Any) -> None:
    status, event = VERBS[verb]
    job = job_in(status)
    client = log_in(create_reader("operator", f"{verb}_job"))
    assert offered_actions(client) == {verb}
    response = run_action(client, verb, [job], reason="as agreed")
    assert (response.status_code, read_messages(response).startswith("1 job ")) == (302, True)
    last = list_events(job)[-1]
    assert (last.kind, last.actor_kind, last.actor_name, last.reason) == (event, "user", "operator", "as agreed")


@pytest.mark.parametrize("verb", VERBS)
def test_an_action_without_its_permission_is_neither_offered_nor_taken(verb: str, db: Any) -> None:
    job = job_in(VERBS[verb][0])
    others = [f"{other}_job" for other in VERBS if other != verb]
    client = log_in(create_reader("operator", *others))
    before = dump_tables()
    assert verb not in offered_actions(client)
    assert "No action selected" in read_messages(run_action(client, verb, [job]))
    assert client.post(verb_url(job, verb)).status_code == 403
    assert dump_tables() == before


def test_a_reader_is_offered_no_action_and_no_button(looker: Client) -> None:
    jobs = {verb: job_in(status) for verb, (status, _event) in VERBS.items()}
    assert offered_actions(looker) == set()
    assert set().union(*(buttons(looker, job) for job in jobs.values())) == set()
    before = dump_tables()
    for verb, job in jobs.items():
        run_action(looker, verb, [job])
        assert looker.post(verb_url(job, verb)).status_code == 403
    assert dump_tables() == before


@pytest.mark.parametrize("verb", VERBS)
def test_a_button_does_what_the_action_does(verb: str, boss: Client) -> None:
    status, event = VERBS[verb]
    job = job_in(status)
    assert verb in buttons(boss, job)
    response = boss.post(verb_url(job, verb), {"reason": "as agreed"})
    assert (response.status_code, response["Location"]) == (302, get_page_url(job))
    assert (list_events(job)[-1].kind, list_events(job)[-1].reason) == (event, "as agreed")


def test_a_verb_is_only_taken_by_post_with_a_csrf_token(boss: Client) -> None:
    job = job_in(Status.QUEUED)
    assert boss.get(verb_url(job, "cancel")).status_code == 405
    strict = Client(enforce_csrf_checks=True)
    strict.cookies = boss.cookies
    assert strict.post(verb_url(job, "cancel")).status_code == 403
    assert strict.post(get_list_url(Job), {"action": "cancel", "_selected_action": [job.pk]}).status_code == 403
    assert boss.post(verb_url(job, "explode")).status_code == 404
    assert boss.post(verb_url(JobFactory.build(), "cancel"))["Location"] == get_list_url(Job)  # with a message
    assert boss.post(verb_url(job, "cancel").replace(str(job.pk), "nonsense"))["Location"] == get_list_url(Job)
    job.refresh_from_db()
    assert job.status == Status.QUEUED


def test_buttons_are_the_verbs_that_make_sense_now(boss: Client) -> None:
    assert buttons(boss, job_in(Status.QUEUED)) == {"pause", "cancel"}
    assert buttons(boss, job_in(Status.PENDING)) == {"release", "cancel"}
    group = JobGroupFactory.create(sequential=True)
    JobFactory.create(group=group, group_index=0)
    assert buttons(boss, job_in(Status.PENDING, group=group, group_index=1)) == {"cancel"}
    assert buttons(boss, job_in(Status.RUNNING)) == {"pause", "cancel"}
    assert buttons(boss, job_in(Status.RUNNING, cancel_requested=True, cancel_mode="PAUSE")) == {"cancel"}
    assert buttons(boss, job_in(Status.RUNNING, cancel_requested=True, cancel_mode="CANCEL")) == set()
    assert buttons(boss, job_in(Status.PAUSED)) == {"resume", "cancel"}
    assert buttons(boss, job_in(Status.COMPLETED)) == {"retry"}
    failed = job_in(Status.FAILED)
    assert buttons(boss, failed) == {"retry", "resolve"}
    boss.post(verb_url(failed, "retry"))
    assert buttons(boss, failed) == set()
    blocking = job_in(Status.FAILED, target="book-1", holds_lane=True, checkpoint={"page": 3})
    assert buttons(boss, blocking) == {"retry", "retry_fresh", "resume", "resolve"}
    JobFactory.create(failed=True, retry_of=blocking, attempt=2)
    assert buttons(boss, blocking) == set()  # its retry has the verbs


def test_a_mixed_selection_is_reported_job_by_job(boss: Client) -> None:
    ended = [job_in(Status.FAILED), job_in(Status.COMPLETED), job_in(Status.CANCELLED)]
    running = job_in(Status.RUNNING)
    response = run_action(boss, "retry", [*ended, running])
    assert read_messages(response) == f"3 jobs retried, 1 skipped: already running ({running.pk})."
    assert Job.objects.filter(retry_of__in=ended).count() == 3


def test_a_running_job_is_asked_to_pause_in_that_word(boss: Client) -> None:
    assert read_messages(run_action(boss, "pause", [job_in(Status.RUNNING)])) == "Pause requested."


def test_a_running_job_is_asked_and_the_message_says_so(boss: Client) -> None:
    running, queued, done = job_in(Status.RUNNING), job_in(Status.QUEUED), job_in(Status.COMPLETED)
    response = run_action(boss, "cancel", [running, queued, done])
    expected = f"1 job cancelled, Cancel requested, 1 skipped: already completed ({done.pk})."
    assert read_messages(response) == expected
    running.refresh_from_db()
    assert (running.status, running.cancel_requested) == (Status.RUNNING, True)


def test_every_refusal_is_a_sentence_and_never_an_error(boss: Client) -> None:
    retried = job_in(Status.FAILED)
    JobFactory.create(retry_of=retried, attempt=2)
    resolved = job_in(Status.FAILED, resolved_at=retried.created_at)
    asked = job_in(Status.RUNNING, cancel_requested=True, cancel_mode="CANCEL")
    assert "0 jobs retried, 1 skipped: already retried (latest attempt: queued)" in read_messages(
        run_action(boss, "retry", [retried])
    )
    assert "1 skipped: already retried (latest attempt: queued)" in read_messages(run_action(boss, "resume", [retried]))
    assert "1 skipped: already resolved" in read_messages(run_action(boss, "resolve", [resolved]))
    assert "1 skipped: cancel already requested" in read_messages(run_action(boss, "pause", [asked]))
    assert "1 skipped: still queued" in read_messages(run_action(boss, "resume", [job_in(Status.QUEUED)]))
    for verb in VERBS:
        for status in Status:
            assert run_action(boss, verb, [job_in(status)]).status_code == 302


def test_many_skipped_jobs_are_counted_and_few_are_named(boss: Client) -> None:
    done = [job_in(Status.COMPLETED) for _ in range(6)]
    message = read_messages(run_action(boss, "cancel", done))
    assert message == "0 jobs cancelled, 6 skipped: already completed."


def test_keys_that_are_none_and_jobs_that_are_gone_change_nothing(boss: Client) -> None:
    job = job_in(Status.QUEUED)
    before = dump_tables()
    post: dict[str, Any] = {"action": "cancel", "_selected_action": ["nonsense", "\0", "'", str(uuid4())]}
    response = boss.post(get_list_url(Job), post)
    assert (response.status_code, read_messages(response)) == (302, "0 jobs cancelled.")
    assert boss.post(get_list_url(Job), {**post, "_selected_action": ["nonsense"]}).status_code == 302
    assert boss.post(get_list_url(Job), {**post, "_selected_action": [job.pk], "reason": "x" * 2001}).status_code == 302
    assert boss.post(verb_url(job, "cancel"), {"reason": "\0"}).status_code == 302
    assert dump_tables() == before


def test_a_bulk_action_stops_at_its_limit_and_says_how_many_are_left(boss: Client, settings: Any) -> None:
    settings.JOBSCHEDULER = {"CONSOLE_BULK_LIMIT": 3}
    oldest = [job_in(Status.QUEUED) for _ in range(5)][:3]
    response = run_action(boss, "cancel", oldest, select_across="1")
    assert read_messages(response) == "3 jobs cancelled, 2 not processed: add a filter to reach them."
    assert set(Job.objects.filter(status=Status.CANCELLED)) == set(oldest)


def test_all_that_match_a_filter_can_be_chosen_at_once(boss: Client) -> None:
    failed, done = [job_in(Status.FAILED) for _ in range(3)], job_in(Status.COMPLETED)
    post = {"confirmed": "1", "action": "retry", "select_across": "1", "_selected_action": [failed[0].pk]}
    response = boss.post(f"{get_list_url(Job)}?status=FAILED", post)
    assert read_messages(response) == "3 jobs retried."
    assert not Job.objects.filter(retry_of=done).exists()


def test_retrying_everything_does_not_retry_its_own_retries(boss: Client) -> None:
    ended = [job_in(Status.COMPLETED) for _ in range(3)]
    run_action(boss, "retry", ended, select_across="1")
    assert Job.objects.count() == 6


def test_one_retry_links_to_the_new_job(boss: Client) -> None:
    job = job_in(Status.FAILED)
    message = read_messages(run_action(boss, "retry", [job]))
    assert get_page_url(Job.objects.get(retry_of=job)) in message


def test_each_verb_is_in_djangos_own_history_too(boss: Client) -> None:
    cancelled, skipped = job_in(Status.QUEUED), job_in(Status.COMPLETED)
    run_action(boss, "cancel", [cancelled, skipped], reason="no longer wanted")
    entry = LogEntry.objects.get()
    assert (entry.object_id, entry.user.username) == (str(cancelled.pk), "boss")
    assert entry.get_change_message() == "cancel: no longer wanted"
    assert "no longer wanted" in boss.get(get_page_url(cancelled).replace("/change/", "/history/")).content.decode()
    assert list_event_kinds(skipped) == []


def test_a_verb_on_many_jobs_is_not_one_transaction_in_a_site_that_wraps_its_requests(boss: Client) -> None:
    for url in (get_list_url(Job), verb_url(JobFactory.build(), "cancel")):
        assert "default" in resolve(url).func._non_atomic_requests
