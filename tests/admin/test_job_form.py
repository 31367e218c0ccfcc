"""What is left to change about a job before it starts, and nothing else."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse

import tests.sample_app.job_types  # noqa: F401  params are checked by the handler's signature
from jobs.models import Job
from jobs.redaction import MASK
from jobs.services import jobs as job_services
from jobs.states import EventKind
from tests.factories import JobFactory
from tests.support.admin_pages import get_page_url
from tests.support.admin_users import create_reader, log_in
from tests.support.snapshots import dump_tables

pytestmark = pytest.mark.django_db
NOTE = {"priority": "50", "not_before": "", "deadline_at": "", "params": '{"text": "hi"}'}


def read_form(client: Client, job: Job) -> dict[str, str]:
    """Return the fields that the untouched page would post, with its hidden initial values."""
    page: Any = client.get(url(job))
    found = {}
    for field in page.context["form"]:
        found[field.html_name] = field.field.widget.format_value(field.value()) or ""
        if field.field.show_hidden_initial:
            found[field.html_initial_name] = field.field.hidden_widget().format_value(field.value()) or ""
            assert f'name="{field.html_initial_name}"' in page.content.decode()
    return found


def url(job: Job) -> str:
    return reverse("admin:jobscheduler_jobs_edit", args=[job.pk])


@pytest.fixture
def operator() -> Client:
    return log_in(create_reader("ann", "change_job", "view_payload"))


@pytest.fixture
def job() -> Job:
    return job_services.enqueue("tests.note", {"text": "hi"})


def test_what_is_changed_is_changed_under_ones_name_and_the_rest_is_left(operator: Client, job: Job) -> None:
    assert url(job) in operator.get(get_page_url(job)).content.decode()
    answer = operator.post(url(job), {**NOTE, "priority": "70", "params": '{"text": "ho"}', "reason": "it is late"})
    assert (answer.status_code, answer["Location"]) == (302, get_page_url(job))
    changed = Job.objects.get(pk=job.pk)
    assert (changed.priority, changed.base_priority, changed.params) == (70, 70, {"text": "ho"})
    (event,) = changed.events.filter(kind=EventKind.UPDATED)
    assert (event.actor_name, event.reason) == ("ann", "it is late")
    values = {"old": {"params": {"text": "hi"}, "priority": 50}, "new": {"params": {"text": "ho"}, "priority": 70}}
    assert event.data == {"fields": ["params", "priority"], **values}
    assert LogEntry.objects.count() == 1


def test_times_are_read_as_the_console_shows_them(operator: Client, job: Job) -> None:
    operator.post(url(job), {**NOTE, "not_before": "2030-01-02T03:04:05", "deadline_at": "2030-01-02T04:00"})
    job.refresh_from_db()
    assert job.not_before == datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
    assert job.deadline_at == job.not_before + timedelta(minutes=55, seconds=55)
    assert "2030-01-02T03:04:05" in operator.get(url(job)).content.decode()


@pytest.mark.parametrize(
    "moment",
    [
        datetime(2030, 1, 2, 3, 4, 5, 678901, tzinfo=UTC),
        datetime(2030, 10, 27, 0, 30, tzinfo=UTC),  # half past two, for the first time
        datetime(2030, 10, 27, 1, 30, tzinfo=UTC),  # and for the second
    ],
)
def test_what_stands_as_it_stood_changes_nothing(operator: Client, moment: datetime, settings: Any) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    job = job_services.enqueue("tests.note", {"text": "hi"}, not_before=moment)
    before = dump_tables()
    assert operator.post(url(job), read_form(operator, job)).status_code == 302
    assert dump_tables() == before
    operator.post(url(job), {**read_form(operator, job), "priority": "70"})
    job.refresh_from_db()
    assert (job.priority, job.not_before) == (70, moment)


def test_what_has_become_different_since_the_page_was_opened_stays_so(operator: Client, job: Job) -> None:
    opened = read_form(operator, job)
    job_services.update(job.pk, {"priority": 90, "params": {"text": "new"}})
    operator.post(url(job), {**opened, "deadline_at": "2030-01-02T03:04:05"})
    job.refresh_from_db()
    assert (job.priority, job.params) == (90, {"text": "new"})
    assert job.deadline_at == datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"priority": "101"}, "priority"),
        ({"priority": ""}, "priority"),
        ({"priority": "high"}, "priority"),
        ({"not_before": "soon"}, "not_before"),
        ({"not_before": "2030-03-31T02:30"}, "not_before"),  # clocks go from two to three
        ({"not_before": "2030-01-02T03:04", "deadline_at": "2030-01-01T00:00"}, "deadline_at"),
        ({"params": "{"}, "params"),
        ({"params": "[1]"}, "params"),
        ({"params": '{"text": 3}'}, "params"),
        ({"params": '{"nothing": "of the kind"}'}, "params"),
    ],
)
def test_what_is_wrong_is_said_beside_its_field_and_changes_nothing(
    operator: Client, job: Job, fields: dict[str, str], field: str, settings: Any
) -> None:
    settings.TIME_ZONE = "Europe/Berlin"
    before = dump_tables()
    answer: Any = operator.post(url(job), {**NOTE, **fields})
    assert answer.status_code == 200
    assert list(answer.context["form"].errors) == [field]
    assert dump_tables() == before


def test_a_masked_secret_stays_what_it_is(operator: Client) -> None:
    job = job_services.enqueue("tests.anything", {"password": "hunter2", "city": "Rome"})
    assert "hunter2" not in operator.get(url(job)).content.decode()
    page = operator.post(url(job), {**NOTE, "params": f'{{"password": "{MASK}", "city": "Oslo"}}'})
    assert "write its value in again" in page.content.decode()
    operator.post(url(job), {**NOTE, "priority": "60", "params": f'{{"city": "Rome", "password": "{MASK}"}}'})
    kept = Job.objects.get(pk=job.pk)
    assert (kept.params, kept.priority) == ({"password": "hunter2", "city": "Rome"}, 60)
    operator.post(url(job), {**NOTE, "params": '{"password": "hunter2", "city": "Oslo"}'})
    assert Job.objects.get(pk=job.pk).params == {"password": "hunter2", "city": "Oslo"}


def test_who_may_not_see_params_is_not_asked_for_them(job: Job) -> None:
    client = log_in(create_reader("ben", "change_job"))
    page: Any = client.get(url(job))
    assert list(page.context["form"].fields) == ["priority", "not_before", "deadline_at", "reason"]
    client.post(url(job), {**NOTE, "priority": "60", "params": '{"text": "mine"}'})
    changed = Job.objects.get(pk=job.pk)
    assert (changed.priority, changed.params) == (60, {"text": "hi"})


def test_once_it_has_started_or_ended_nothing_is_offered_and_nothing_changes(operator: Client) -> None:
    for trait in ("running", "completed", "cancelled"):
        job = JobFactory.create(**{trait: True})
        assert url(job) not in operator.get(get_page_url(job)).content.decode()
        before = dump_tables()
        answer = operator.post(url(job), {**NOTE, "priority": "70"})
        assert answer.status_code == 200
        assert "cannot be edited" in answer.content.decode()
        assert dump_tables() == before


@pytest.mark.parametrize("trait", ["paused", "queued"])
def test_what_waits_again_after_a_dispatch_can_be_edited_but_for_its_params(trait: str, operator: Client) -> None:
    job = JobFactory.create(started=True, **{trait: True})
    assert url(job) in operator.get(get_page_url(job)).content.decode()
    page: Any = operator.get(url(job))
    assert list(page.context["form"].fields) == ["priority", "not_before", "deadline_at", "reason"]
    assert operator.post(url(job), {**NOTE, "priority": "70", "params": '{"text": "mine"}'}).status_code == 302
    changed = Job.objects.get(pk=job.pk)
    assert (changed.priority, changed.params) == (70, {"text": "hello"})


def test_it_takes_the_permission(job: Job) -> None:
    client = log_in(create_reader("cleo"))
    assert url(job) not in client.get(get_page_url(job)).content.decode()
    assert client.get(url(job)).status_code == client.post(url(job), NOTE).status_code == 403
    missing = url(job).replace(str(job.pk), "018f0000-0000-7000-8000-000000000000")
    assert log_in(create_reader("dan", "change_job")).get(missing).status_code == 404
