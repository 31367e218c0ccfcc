"""Every list and every page opens, for those who may look, and changes nothing."""

from __future__ import annotations

import pytest
from django.apps import apps
from django.contrib import admin
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from jobs.models import (
    ApiToken,
    ConcurrencyLimit,
    FailedAttempt,
    GroupAction,
    Job,
    JobEvent,
    JobLog,
    JobTag,
    JobTemplate,
    LaneMark,
    ShareAccount,
    TokenSpend,
    Waiter,
)
from schedules.models import Schedule
from tests.factories import JobEventFactory, JobFactory, JobLogFactory, JobTemplateFactory
from tests.support.admin_pages import get_list_url, get_page_url
from tests.support.admin_rows import create_all_rows
from tests.support.admin_users import APP_LABELS
from tests.support.snapshots import dump_tables
from webhooks.models import WebhookEndpoint

INTERNAL = (FailedAttempt, GroupAction, JobTag, LaneMark, ShareAccount, TokenSpend, Waiter)
SHOWN = [model for label in APP_LABELS for model in apps.get_app_config(label).get_models() if model not in INTERNAL]
MOST_STATEMENTS = 30
EDITED = (
    JobTemplate,
    ConcurrencyLimit,
    ApiToken,
    Schedule,
    WebhookEndpoint,
)  # a token is only made here: see test_tokens


def test_every_entity_is_in_the_admin() -> None:
    assert [model for model in SHOWN if not admin.site.is_registered(model)] == []


@pytest.mark.parametrize("who", ["boss", pytest.param("looker", marks=pytest.mark.once)])
def test_every_list_and_page_opens(who: str, request: pytest.FixtureRequest) -> None:
    client: Client = request.getfixturevalue(who)
    rows = create_all_rows()
    assert {type(row) for row in rows} == set(SHOWN)
    for url, text in (
        *((get_list_url(model), "") for model in SHOWN),
        *((get_page_url(row), str(row.pk)) for row in rows),
    ):
        with CaptureQueriesContext(connection) as captured:
            response = client.get(url)
        assert (response.status_code, text in response.content.decode()) == (200, True), url
        assert len(captured) <= MOST_STATEMENTS, url


def test_every_list_opens_empty(boss: Client) -> None:
    assert {boss.get(get_list_url(model)).status_code for model in SHOWN} == {200}


def test_the_page_of_a_row_that_is_not_there_leads_home(boss: Client) -> None:
    job = JobFactory.build()
    for key in (job.pk, "nonsense", "0" * 40, "%00", "9" * 30):
        for model in SHOWN:
            url = f"{get_list_url(model)}{key}/change/"
            assert boss.get(url).status_code == 302, url


def test_nobody_adds_changes_or_deletes_state_not_even_a_superuser(boss: Client) -> None:
    rows = [row for row in create_all_rows() if not isinstance(row, EDITED)]
    before = dump_tables()
    for row in rows:
        assert boss.get(f"{get_list_url(type(row))}add/").status_code == 403
        assert boss.post(f"{get_list_url(type(row))}add/", {}).status_code == 403
        assert boss.post(get_page_url(row), {"status": "COMPLETED", "_save": "1"}).status_code == 403
        assert boss.post(get_page_url(row).replace("/change/", "/delete/"), {"post": "yes"}).status_code == 403
        boss.post(get_list_url(type(row)), {"action": "delete_selected", "_selected_action": [row.pk], "post": "yes"})
    assert dump_tables() == before


def test_a_reader_changes_nothing_anywhere(looker: Client) -> None:
    rows = create_all_rows()
    before = dump_tables()
    for row in rows:
        assert looker.get(f"{get_list_url(type(row))}add/").status_code == 403
        assert looker.post(get_page_url(row), {"name": "mine", "max": "9", "_save": "1"}).status_code == 403
        assert looker.post(get_page_url(row).replace("/change/", "/delete/"), {"post": "yes"}).status_code == 403
        looker.post(get_list_url(type(row)), {"action": "delete_selected", "_selected_action": [row.pk], "post": "yes"})
    assert dump_tables() == before


def test_only_templates_can_be_deleted(boss: Client) -> None:
    template = JobTemplateFactory.create()
    job = JobFactory.create(template=template, completed=True)
    assert boss.post(get_page_url(template).replace("/change/", "/delete/"), {"post": "yes"}).status_code == 302
    job.refresh_from_db()
    assert (JobTemplate.objects.exists(), job.template_id) == (False, None)


def test_pages_need_a_login_and_a_permission(client: Client, django_user_model: type) -> None:
    job = JobFactory.create()
    assert client.get(get_list_url(Job)).status_code == 302
    client.force_login(django_user_model.objects.create_user("staff", is_staff=True))
    assert client.get(get_list_url(Job)).status_code == 403
    assert client.get(get_page_url(job)).status_code == 403
    assert client.get(reverse("admin:index")).status_code == 200


def test_the_job_page_shows_its_run_its_last_events_and_its_last_log_lines(boss: Client) -> None:
    job = JobFactory.create(failed=True)
    for number in range(60):
        JobEventFactory.create(job=job, reason=f"event-{number}.")
        JobLogFactory.create(job=job, message=f"line-{number}.")
    page = boss.get(get_page_url(job)).content.decode()
    assert "boom" in page
    assert [number for number in range(60) if f"event-{number}." in page] == list(range(10, 60))
    assert [number for number in range(60) if f"line-{number}." in page] == list(range(10, 60))


def test_the_whole_trail_of_a_job_is_one_link_away(boss: Client) -> None:
    job, other = JobFactory.create(), JobFactory.create()
    for factory, model in ((JobEventFactory, JobEvent), (JobLogFactory, JobLog)):
        factory.create_batch(50, job=job)
        factory.create(job=other)
        url = f"{get_list_url(model)}?q={job.pk}"
        assert url in boss.get(get_page_url(job)).content.decode()
        assert boss.get(url).context["cl"].result_count == 50


def test_what_is_empty_is_shown_as_empty(boss: Client) -> None:
    for row in create_all_rows():
        assert ">None<" not in boss.get(get_page_url(row)).content.decode(), row
