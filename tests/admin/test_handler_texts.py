"""What handlers write is payload: a user without `view_payload` finds it on no page and in no response."""

from __future__ import annotations

import re
from typing import Any

import pytest
from django.contrib.auth.models import Group, User
from django.test import Client
from django.urls import reverse

from jobs import roles
from jobs.direct import bounded
from jobs.errors import HandlerFailed
from jobs.models import Job, JobEvent, JobGroup, JobLog, JobRun, Lease, Target
from jobs.payload_visibility import get_public_error, summarize_traceback
from jobs.redaction import MASK
from jobs.services import groups
from jobs.services import jobs as job_services
from jobs.services.execution import format_traceback
from jobs.states import Status
from jobs.testing import drain
from tests import factories
from tests.api.routes import list_routes
from tests.support.admin_pages import crawl, get_list_url, get_page_url
from tests.support.admin_users import create_reader, log_in

pytestmark = [pytest.mark.django_db, pytest.mark.once]
MARK, PASSWORD = "QUOTEDTEXT", "hunter2hunter2"
PARAMS = {"text": MARK, "password": PASSWORD}


def log_in_viewer() -> Client:
    roles.create_roles()
    user = User.objects.create_user("viewer", is_staff=True)
    user.groups.add(Group.objects.get(name="Job viewer"))
    return log_in(user)


def run_jobs_that_quote_their_params() -> list[Job]:
    """Run jobs that fail, skip and complete, one that blocks a target and one in a group; edit one that waits."""
    job_services.enqueue("sample.quote", {**PARAMS, "ending": "skip"})
    job_services.enqueue("sample.quote", {**PARAMS, "ending": "return"})
    job_services.enqueue("sample.quote", PARAMS, max_retries=0, target="book-1")
    groups.create([{"job_type": "sample.quote", "params": PARAMS, "max_retries": 0}])
    failed = job_services.enqueue("sample.quote", PARAMS, max_retries=1)
    drain()
    assert hasattr(Job.objects.get(pk=failed.pk), "retried_by")
    job_services.enqueue("sample.quote", PARAMS, target="book-1")
    edited = job_services.enqueue("sample.quote", PARAMS, hold=True)
    job_services.update(edited.pk, {"params": {**PARAMS, "text": f"{MARK} again"}})
    remote = factories.JobFactory.create(failed=True, started=False, remote=True, status_reason=f"{MARK}: {MARK}")
    owner = "r:01890000-0000-7000-8000-000000000000:indexer#0"
    factories.JobRunFactory.create(job=remote, status="FAILED", error=f"{MARK}: {MARK}", worker=owner)
    for ending in ("skip", "raise"):
        try:
            bounded.execute("sample.quote", {**PARAMS, "ending": ending})
        except HandlerFailed:
            continue
    return list(Job.objects.order_by("pk"))


def read_api(client: Client, jobs: list[Job]) -> dict[str, str]:
    """Return the response of every GET of the API, for every job."""
    group = JobGroup.objects.get()
    values: dict[str, Any] = {"group_id": group.pk, "key": "book-1", "job_type": "sample.quote"}
    responses: dict[str, str] = {}
    for route in list_routes():
        for job in jobs if route.is_safe else ():
            path = route.fill_path({**dict.fromkeys(OTHER_IDS, job.pk), **values, "job_id": job.pk, "run_id": job.pk})
            if path not in responses:
                responses[path] = client.get(path).content.decode()
    return responses


OTHER_IDS = ("template_id", "lease_id", "schedule_id", "endpoint_id", "delivery_id")


def test_a_viewer_finds_the_texts_of_handlers_nowhere() -> None:
    jobs, viewer = run_jobs_that_quote_their_params(), log_in_viewer()
    crawled = crawl(viewer)
    assert len(crawled) > 35
    pages = crawled | read_api(viewer, jobs)
    pages |= {url: viewer.get(url).content.decode() for job in jobs for url in (get_page_url(job), "/jobs")}
    assert len(pages) > 100
    assert [url for url, text in pages.items() if MARK in text or PASSWORD in text] == []


def test_a_user_with_the_permission_finds_them_without_the_secret() -> None:
    jobs = run_jobs_that_quote_their_params()
    client = log_in(create_reader("auditor", "view_payload"))
    rows = [jobs[0], jobs[0].events.latest("pk"), Lease.objects.earliest("pk"), Target.objects.get()]
    urls = [*map(get_page_url, rows), *map(get_list_url, (Job, JobRun, JobEvent, JobLog, Target))]
    urls += ["/api/jobs", "/api/job-runs", "/jobs", f"/api/jobs/{jobs[0].pk}/events"]
    pages = {url: client.get(url).content.decode() for url in urls}
    assert [url for url, text in pages.items() if MARK not in text or PASSWORD in text] == []


def test_a_viewer_sees_the_class_and_the_place_of_an_exception() -> None:
    job_services.enqueue("sample.quote", PARAMS, max_retries=0)
    (job,) = drain()
    viewer = log_in_viewer()
    document = viewer.get(f"/api/jobs/{job.pk}").json()
    assert (document["status_reason"], document["progress_message"]) == ("ValueError", "")
    assert re.fullmatch(r"ValueError \(jobs\.py:\d+\)", document["run"]["error"])
    for url in (get_page_url(job), reverse("admin:jobscheduler_jobs_overview")):
        page = viewer.get(url).content.decode()
        assert ("ValueError" in page, "jobs.py:" in page) == (True, True), url


def test_our_own_reasons_and_those_of_people_stay_visible() -> None:
    viewer = log_in_viewer()
    reasons = {
        Status.CANCELLED: "a reason: of ann",
        Status.PAUSED: "not now: later",
        Status.FAILED: "lease expired",
    }
    for status, reason in reasons.items():
        job = factories.job_in(status, status_reason=reason)
        assert reason in viewer.get(get_page_url(job)).content.decode()
        assert viewer.get(f"/api/jobs/{job.pk}").json()["status_reason"] == reason
    late = factories.JobFactory.create(skipped=True, started=False, status_reason="overlap: job 1 is RUNNING")
    assert viewer.get(f"/api/jobs/{late.pk}").json()["status_reason"] == "overlap: job 1 is RUNNING"


def test_no_stored_text_contains_a_secret_of_the_params() -> None:
    jobs = run_jobs_that_quote_their_params()
    ran = [job for job in jobs if not job.remote]
    texts = [job.status_reason + job.progress_message for job in ran]
    texts += [run.error for run in JobRun.objects.all()]
    texts += [event.reason for job in ran for event in job.events.all()]
    texts += JobLog.objects.values_list("message", flat=True)
    texts += Lease.objects.values_list("outcome", flat=True)
    assert [text for text in texts if PASSWORD in text] == []
    assert len([text for text in texts if MASK in text]) > 15


def test_a_message_that_looks_like_a_traceback_is_not_taken_for_one() -> None:
    fake = f'Traceback (most recent call last):\n  File "{MARK}.py", line 1, in f\n{MARK}'
    try:
        raise RuntimeError(fake) from KeyError(MARK)
    except RuntimeError as error:
        run = JobRun(status="FAILED", error=format_traceback(error))
    assert get_public_error(run) == "KeyError"
    for text in (f"ValueError: {MARK}", f"{MARK}\n".join(["ValueError: ", fake])):
        assert summarize_traceback(text)[0] == "ValueError"
