"""The page of one job: why it waits, its way, its kin, and the same work once more."""

from __future__ import annotations

import re
from datetime import timedelta
from html import unescape
from typing import Any
from urllib.parse import urlencode

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

import tests.sample_app.job_types  # noqa: F401  what is cloned must be a known type
from jobs import job as declare
from jobs.models import ConcurrencyLimit, Job
from jobs.process_identity import ProcessIdentity
from jobs.registry import registry
from jobs.services import jobs as job_services
from jobs.services import limits
from jobs.states import Status
from tests.factories import JobEventFactory, JobFactory, JobLogFactory, WorkerFactory, job_in
from tests.sample_app.context import request_id
from tests.support import executor
from tests.support.admin_pages import get_list_url, get_page_url, read_messages
from tests.support.admin_rows import create_all_rows
from tests.support.admin_users import create_reader, log_in
from tests.support.snapshots import list_events

MOST_STATEMENTS = 30


def clone_url(job: Job) -> str:
    return get_page_url(job).replace("/change/", "/clone/")


def get_page(client: Client, job: Job) -> str:
    return str(client.get(get_page_url(job)).content.decode())


def test_a_job_that_was_paused_while_it_waited_is_not_said_to_have_been_interrupted(boss: Client) -> None:
    waiting, stopped = job_in(Status.QUEUED), job_in(Status.PAUSED)
    job_services.pause(waiting.pk)
    for page in (boss.get(get_page_url(waiting)), boss.get(get_list_url(Job), {"q": str(waiting.pk)})):
        text = page.content.decode()
        assert ("interrupted" in text, "paused before it started" in text) == (False, True)
    assert "Job was interrupted by user" in boss.get(get_page_url(stopped)).content.decode()


def test_what_never_started_logged_nothing_because_of_that(boss: Client) -> None:
    never, silent = "No log: the job has not started.", "No log output."
    for status, text, other in ((Status.QUEUED, never, silent), (Status.COMPLETED, silent, never)):
        page = get_page(boss, job_in(status))
        assert (text in page, other in page) == (True, False)


def test_one_reason_to_wait_is_said_once(boss: Client) -> None:
    held = job_services.enqueue("tests.note", {"text": "a"}, hold=True)
    page = get_page(boss, held)
    why = page[page.index('id="job-why"') :].partition("</section>")[0]
    assert why.count("on hold") == 1, why


def test_an_error_says_where_in_ones_own_code_it_happened(boss: Client) -> None:
    frames = '  File "/app/mail.py", line 3\n  File "/x/site-packages/smtp.py", line 9\n'
    trace = f"Traceback:\n{frames}OSError: no <route>\n"
    page = get_page(boss, job_in(Status.FAILED, run__error=trace))
    assert ("OSError: no &lt;route&gt;" in page, "mail.py:3" in page, "smtp.py:9" in page) == (True, True, False)


def test_a_running_job_leads_to_its_worker(boss: Client) -> None:
    worker = WorkerFactory.create(name="mailer", host="h1")
    owner = ProcessIdentity("mailer", "h1", "boot", "ns", worker.pid, "1").slot_owner(2)
    page = boss.get(get_page_url(JobFactory.create(running=True, lease_owner=owner))).content.decode()
    found = re.search(r'href="([^"]*/worker/\?q=[^"]*)"', page)
    assert found is not None
    assert [row.pk for row in boss.get(unescape(found[1])).context["cl"].result_list] == [worker.pk]


def test_a_job_that_waits_says_why_and_names_the_job_in_its_way(boss: Client) -> None:
    failed = job_in(Status.FAILED, target="book-1", holds_lane=True)
    waiting = job_services.enqueue("tests.note", {"text": "a"}, target="book-1")
    page = get_page(boss, waiting)
    assert "Target book-1 is blocked" in page
    assert get_page_url(failed) in page


def test_a_job_that_waits_for_a_rate_leads_to_the_limits(boss: Client) -> None:
    limits.set_rates("resource", "attic", rate="1/day")
    job_services.enqueue("tests.nothing")
    assert executor.claim_next()
    page = boss.get(get_page_url(job_services.enqueue("tests.nothing")))
    (advice,) = (item for item in page.context["advice"] if "Rate limit of resource attic: 1/day" in item.message)
    assert (advice.label, advice.url) == ("Show limits", get_list_url(ConcurrencyLimit))


def test_a_job_that_waits_for_its_time_shows_the_steps_ahead(boss: Client) -> None:
    now = timezone.now()
    times: Any = {"not_before": now + timedelta(hours=3), "deadline_at": now + timedelta(hours=9)}
    page = boss.get(get_page_url(job_services.enqueue("tests.note", {"text": "a"}, **times)))
    assert [str(step.label) for step in page.context["steps"]] == ["Submitted", "Due", "Deadline"]
    assert [step.is_future for step in page.context["steps"]] == [False, True, True]


def test_each_step_tells_who_why_and_how_long(boss: Client) -> None:
    job, start = job_in(Status.COMPLETED), timezone.now() - timedelta(hours=1)
    for kind, after in (("SUBMITTED", 0), ("RUNNING", 20), ("COMPLETED", 80)):
        at = start + timedelta(seconds=after)
        JobEventFactory.create(job=job, kind=kind, at=at, actor_kind="user", actor_name="ada", reason=f"{kind} so")
    steps = boss.get(get_page_url(job)).context["steps"]
    assert [step.lasted for step in steps] == [timedelta(seconds=20), timedelta(seconds=60), None]
    page = get_page(boss, job)
    assert (">ada</bdi>" in page, "RUNNING so" in page, "for 20 s" in page) == (True, True, True)


def test_the_whole_retry_chain_is_on_the_page_of_each_of_its_jobs(boss: Client) -> None:
    jobs = [job_in(Status.FAILED)]
    for attempt in range(2, 6):
        jobs.append(JobFactory.create(failed=True, retry_of=jobs[-1], attempt=attempt))
    for job in (jobs[0], jobs[2], jobs[4]):
        page = boss.get(get_page_url(job))
        assert [item["job"].pk for item in page.context["chain"]] == [job.pk for job in jobs]
        assert [item["job"].pk for item in page.context["chain"] if item["is_this"]] == [job.pk]


def test_a_traceback_is_folded_and_its_last_line_is_not(boss: Client) -> None:
    error = 'Traceback (most recent call last):\n  File "x.py", line 1\nValueError: no such book\n'
    job = job_in(Status.FAILED, run__error=error)
    page = boss.get(get_page_url(job))
    assert page.context["error_line"] == "ValueError: no such book"
    assert '<details id="job-traceback">' in page.content.decode()


def test_a_running_job_shows_its_progress_and_what_cancel_does(boss: Client) -> None:
    page = get_page(boss, job_in(Status.RUNNING, progress=0.25, progress_message="a quarter"))
    assert '<progress max="100" value="25">' in page
    assert ("a quarter" in page, "this worker cannot force-stop jobs" in page) == (True, True)


def test_who_may_not_see_the_payload_sees_neither_params_nor_artifacts_nor_logs(looker: Client) -> None:
    hidden = {"params": {"text": "hidden-params"}, "run__artifacts": {"text": "hidden-artifact"}}
    job = job_in(Status.COMPLETED, checkpoint={"at": "hidden-checkpoint"}, **hidden)
    JobLogFactory.create(job=job, message="hidden-log")
    page = get_page(looker, job)
    assert ("hidden-" in page, "Can see params, artifacts and logs" in page) == (False, True)
    everything = get_page(log_in(create_reader("insider", "view_payload")), job)
    assert [word for word in ("params", "checkpoint", "artifact", "log") if f"hidden-{word}" not in everything] == []


def test_the_unique_key_the_snoozes_and_the_context_of_a_job_are_on_its_page(boss: Client, looker: Client) -> None:
    job = JobFactory.create(unique_key="user-7", unique_until="end", snooze_count=4711, context={"site": "hidden-site"})
    page = boss.get(get_page_url(job))
    assert dict(page.context["facts"])["Unique key"] == "<bdi>user-7</bdi>"
    assert [word for word in ("its end", "4711", "hidden-site") if word not in page.content.decode()] == []
    assert "hidden-site" not in get_page(looker, job)


def test_a_clone_does_the_same_work_as_a_job_of_its_own(db: Any) -> None:
    client = log_in(create_reader("operator", "add_job"))
    fields: Any = {"target": "book-1", "priority": 70, "tags": ["a"], "idempotency_key": "once", "max_retries": 1}
    fields |= {"retry_policy": {"base_sec": 60}, "unique_key": "note-1"}
    job = job_services.enqueue("tests.note", {"text": "hello"}, **fields)
    response = client.post(clone_url(job))
    made = Job.objects.exclude(pk=job.pk).get()
    assert response["Location"] == get_page_url(made)
    same = ("job_type", "params", "target", "priority", "tags", "max_retries", "retry_policy", "tenant")
    assert {name: getattr(made, name) for name in same} == {name: getattr(job, name) for name in same}
    assert (made.idempotency_key, made.unique_key, made.retry_of_id, made.attempt) == (None, None, None, 1)
    assert (list_events(made)[0].actor_name, list_events(made)[0].reason) == ("operator", f"duplicate of {job.pk}")
    assert LogEntry.objects.get().object_id == str(made.pk)


def test_a_clone_runs_in_the_context_of_the_job_and_not_of_the_operator(boss: Client, settings: Any) -> None:
    settings.JOBSCHEDULER = {**settings.JOBSCHEDULER, "JOB_CONTEXT": "tests.sample_app.context.get_request_id"}
    token = request_id.set("request 1")
    job = job_services.enqueue("tests.note", {"text": "hello"})
    request_id.reset(token)
    boss.post(clone_url(job))
    assert Job.objects.exclude(pk=job.pk).get().context == {"request_id": "request 1"}


def test_a_clone_whose_handler_gives_it_a_unique_key_that_is_taken_says_so(boss: Client) -> None:
    before = registry._handlers
    handler = declare("tests.synced", unique_key="sync")(lambda: None)
    try:
        job = handler.enqueue()
        response = boss.post(clone_url(job))
    finally:
        registry._handlers = before
    assert "No new job; this one has the key:" in read_messages(response)
    assert (Job.objects.get(), LogEntry.objects.count()) == (job, 0)


def test_a_clone_takes_a_permission_and_a_post(looker: Client, boss: Client) -> None:
    job = job_in(Status.COMPLETED)
    assert clone_url(job) not in get_page(looker, job)
    assert looker.post(clone_url(job)).status_code == 403
    assert boss.get(clone_url(job)).status_code == 405
    assert boss.post(clone_url(JobFactory.build())).status_code == 404
    assert Job.objects.count() == 1


def test_what_cannot_be_submitted_any_more_is_said_in_a_message(boss: Client) -> None:
    job = job_in(Status.COMPLETED, job_type="long.gone")
    response = boss.post(clone_url(job))
    assert response["Location"] == get_page_url(job)
    assert "was not submitted" in read_messages(response)


def test_a_page_takes_few_statements_however_much_there_is_to_show(boss: Client) -> None:
    jobs = [row for row in create_all_rows() if isinstance(row, Job)]
    for job in jobs:
        boss.get(get_page_url(job))
        with CaptureQueriesContext(connection) as baseline:
            boss.get(get_page_url(job))
        assert len(baseline) <= MOST_STATEMENTS, (job.status, [item["sql"][:100] for item in baseline])
    JobEventFactory.create_batch(40, job=jobs[0])
    JobLogFactory.create_batch(40, job=jobs[0])
    with CaptureQueriesContext(connection) as before:
        boss.get(get_page_url(jobs[1]))
    JobEventFactory.create_batch(40, job=jobs[1])
    with CaptureQueriesContext(connection) as after:
        boss.get(get_page_url(jobs[1]))
    assert len(before) == len(after)


@pytest.mark.parametrize("status", Status)
def test_a_page_that_asks_for_itself_is_told_that_nothing_happened(status: Status, boss: Client) -> None:
    job = job_in(status)
    asked = {"X-Jobs-Live": "1"}
    first = boss.get(get_page_url(job), headers=asked)
    again = boss.get(get_page_url(job), headers={**asked, "If-None-Match": first["ETag"]})
    # Between two minutes both answers are whole: ages are shown.
    assert (again.status_code, again.content) == (304, b"") or again["ETag"] != first["ETag"]
    Job.objects.filter(pk=job.pk).update(progress=0.5, progress_message="on")
    assert boss.get(get_page_url(job), headers={**asked, "If-None-Match": first["ETag"]}).status_code == 200


def test_a_failed_job_that_blocks_its_target_says_so_and_how_many_wait(boss: Client) -> None:
    failed = job_in(Status.FAILED, target="book-1", holds_lane=True)
    for _ in range(3):
        job_services.enqueue("tests.note", {"text": "a"}, target="book-1")
    page = get_page(boss, failed)
    assert ("This job blocks target" in page, "3 jobs are waiting behind it" in page) == (True, True)
    assert "This job blocks target" not in get_page(boss, job_in(Status.FAILED, target="book-2", holds_lane=False))


def test_the_time_that_a_job_ran_is_without_its_pauses(boss: Client) -> None:
    job, start = job_in(Status.COMPLETED), timezone.now() - timedelta(hours=1)
    moments = (("SUBMITTED", 0), ("RUNNING", 5), ("PAUSED", 15), ("RESUMED", 45), ("RUNNING", 48), ("COMPLETED", 60))
    for kind, after in moments:
        JobEventFactory.create(job=job, kind=kind, at=start + timedelta(seconds=after))
    Job.objects.filter(pk=job.pk).update(created_at=start)
    facts = {str(label): value for label, value in boss.get(get_page_url(job)).context["facts"]}
    assert (facts["Waited"], facts["Ran"], facts["Paused"]) == ("8 s", "22 s", "30 s")


def test_an_attempt_that_a_person_made_is_not_counted_against_the_automatic_ones(boss: Client) -> None:
    job = JobFactory.create(failed=True, attempt=2, max_retries=0)
    assert boss.get(get_page_url(job)).context["attempt"] == "2"
    assert boss.get(get_page_url(job_in(Status.FAILED, max_retries=3))).context["attempt"] == "1 of 4"


def test_a_stop_request_is_only_mentioned_until_it_is_followed(boss: Client) -> None:
    asked: Any = {"cancel_requested": True, "cancel_mode": "CANCEL"}
    assert "Cancel requested." in get_page(boss, job_in(Status.RUNNING, **asked))
    assert "Cancel requested." not in get_page(boss, job_in(Status.CANCELLED, **asked))


def test_an_attempt_that_was_retried_leads_to_its_retry_and_offers_none(boss: Client) -> None:
    failed = job_in(Status.FAILED)
    retry = JobFactory.create(failed=True, retry_of=failed, attempt=2)
    page = boss.get(get_page_url(failed))
    assert [verb.name for verb in page.context["verbs"]] == ["clone"]
    assert "Retried as" in page.content.decode()
    assert get_page_url(retry) in page.content.decode()


def test_a_retry_from_scratch_drops_the_checkpoint_and_a_plain_one_keeps_it(boss: Client) -> None:
    for verb, kept in (("retry", {"page": 3}), ("retry_fresh", None)):
        failed = job_in(Status.FAILED, checkpoint={"page": 3})
        boss.post(get_page_url(failed).replace("/change/", f"/verb/{verb}/"), {"reason": "again"})
        assert Job.objects.get(retry_of=failed).checkpoint == kept


def test_every_verb_is_confirmed_with_its_consequence_and_a_reason(boss: Client) -> None:
    page = boss.get(get_page_url(job_in(Status.FAILED, target="book-1", holds_lane=True, checkpoint={"page": 3})))
    verbs = page.context["verbs"]
    assert (verbs[0].name, verbs[0].is_primary) == ("retry", True)
    text = page.content.decode()
    for verb in verbs:
        start = text.index(f'id="verb-{verb.name}"')
        form = text[start : text.index("</details>", start)]
        assert (verb.consequence in unescape(form), 'name="reason"' in form) == (True, True), verb.name


def test_resource_and_tags_lead_to_the_jobs_that_share_them(boss: Client) -> None:
    job = JobFactory.create(resource='the "big" plotter', tags=["customer:acme"])
    JobFactory.create()
    context = boss.get(get_page_url(job)).context
    for url in (context["resource_url"], context["tags"][0][1]):
        assert url in unescape(get_page(boss, job))
        assert [row.pk for row in boss.get(url).context["cl"].result_list] == [job.pk]


def test_cancel_is_the_last_button_and_stands_apart(boss: Client) -> None:
    page = get_page(boss, job_services.enqueue("tests.note", {"text": "a"}))
    buttons = page[page.index('id="job-verbs"') : page.index('id="job-why"')]
    places = [buttons.index(text) for text in ('id="verb-pause"', "/edit/", 'id="verb-cancel"')]
    assert places == sorted(places)
    assert 'class="jc-verb jc-apart" id="verb-cancel"' in buttons


def test_the_page_names_the_state_of_a_job_as_its_row_does(boss: Client) -> None:
    WorkerFactory.create(serves={"types": ["tests.note"]})
    note: Any = ("tests.note", {"text": "a"})
    job_in(Status.FAILED, target="shut")
    limits.pause("resource", "plotter")
    states = {
        "Waiting": job_services.enqueue(*note),
        "Blocked": job_services.enqueue(*note, target="shut"),
        "Scheduled": job_services.enqueue(*note, not_before=timezone.now() + timedelta(hours=2)),
        "Held": job_services.enqueue(*note, hold=True),
        "No worker": job_services.enqueue("tests.anything", {}),
        "Limit paused": job_services.enqueue(*note, resource="plotter"),
        "Paused": job_services.pause(job_services.enqueue(*note).pk),
    }
    changelist = boss.get(get_list_url(Job)).context["cl"]
    rows = {job.pk: job for job in changelist.result_list}
    for state, job in states.items():
        badge = boss.get(get_page_url(job)).context["badge"]
        assert (state in badge, badge) == (True, changelist.model_admin.shown_status(rows[job.pk])), state
    blocked = boss.get(get_list_url(Job), {"status": "blocked"}).context["cl"].result_list
    assert [job.pk for job in blocked] == [states["Blocked"].pk]


def test_the_error_stands_with_its_own_frame_and_the_same_failures_are_counted(boss: Client) -> None:
    trace = (
        'Traceback (most recent call last):\n  File "/app/mail.py", line 3, in send\n    connect()\n'
        '  File "/x/site-packages/smtp.py", line 9, in connect\n    fail()\nOSError: no route\n'
    )
    jobs = [job_in(Status.FAILED, run__error=trace, run__finished_at=timezone.now()) for _ in range(3)]
    job_in(Status.FAILED, run__error="ValueError: other\n")
    context = boss.get(get_page_url(jobs[0])).context
    assert context["error_frame"] == '  File "/app/mail.py", line 3, in send\n    connect()\nOSError: no route'
    assert context["similar"].jobs == 2
    listed = boss.get(context["similar"].url).context["cl"].result_list
    assert {job.pk for job in listed} == {job.pk for job in jobs[1:]}


def test_the_filters_of_the_list_are_kept_by_the_pages_of_a_job(boss: Client) -> None:
    filters = "status=PENDING&q=type%3Atests.note"
    kept, list_link = f"?{urlencode({'_changelist_filters': filters})}", f"{get_list_url(Job)}?{filters}"
    held = job_services.enqueue("tests.note", {"text": "a"}, hold=True)
    page = boss.get(get_page_url(held) + kept)
    assert page.context["back"][0] == list_link
    form = boss.get(page.context["edit_url"])
    assert (form.context["back"][0], form.context["url"]) == (list_link, get_page_url(held) + kept)
    verbs = {verb.name: verb.url for verb in page.context["verbs"]}
    assert boss.post(verbs["release"], {"reason": ""}).headers["Location"] == get_page_url(held) + kept
    new_job_url = boss.get(list_link).context["new_job_url"]
    assert boss.get(new_job_url).context["back"][0] == list_link


def test_verbs_that_start_a_job_warn_where_no_running_worker_handles_its_type(boss: Client) -> None:
    failed = job_in(Status.FAILED)
    warning = f"No running worker handles {failed.job_type}"

    def find_warned() -> set[str]:
        verbs = boss.get(get_page_url(failed)).context["verbs"]
        return {verb.name for verb in verbs if warning in verb.consequence}

    assert find_warned() == {"retry", "clone"}
    WorkerFactory(serves={"types": [failed.job_type]})
    assert find_warned() == set()


def test_internal_fields_of_a_job_take_the_permission_to_view_diagnostics(db: None) -> None:
    job = job_in(Status.QUEUED)
    auditor, viewer = create_reader("auditor"), create_reader("viewer")
    viewer.user_permissions.remove(Permission.objects.get(codename="view_diagnostics"))
    for user, is_shown in ((auditor, True), (viewer, False)):
        fields = get_page(log_in(user), job).partition('id="job-all-fields"')[2]
        assert ("Base priority" in fields, "Gate" in fields, "Fence" in fields) == (True, is_shown, is_shown)
