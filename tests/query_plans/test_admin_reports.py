"""With tens of thousands of jobs, the operators' pages take few statements, and none of them walks the history."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from pytest_django import DjangoDbBlocker

from jobs.models import ApiToken, ConcurrencyLimit, JobGroup, JobTemplate, Target, Worker
from jobs.services import groups
from jobs.stats import live_counts
from schedules.models import Schedule
from tests.factories import ConcurrencyLimitFactory, ScheduleFactory, WorkerFactory
from tests.query_plans.explain import find_full_scans
from tests.query_plans.large_tables import LargeTables, delete_all_rows
from tests.support.admin_pages import get_list_url, get_page_url
from webhooks.models import WebhookDelivery, WebhookEndpoint

JOBS = 60_000
MOST_STATEMENTS = 30
LISTS = {
    Target: ("", "?blocked=1", "?paused=1", "?q=target", "?p=20"),
    ConcurrencyLimit: ("", "?scope=resource"),
    Worker: ("", "?present=1"),
    JobGroup: ("", "?status=RUNNING"),
    Schedule: ("",),
    JobTemplate: ("",),
    ApiToken: ("",),
    WebhookEndpoint: ("",),
    WebhookDelivery: ("",),
}
SCREENS = {
    "activity": (
        *("", "?actor_kind=user&actor=ann", "?verb=job.pause", "?verb=limit.set&tenant=other", "?tenant=other"),
        *("?object_kind=target&object_id=book", "?since=2026-01-01T00:00&until=2030-01-01T00:00", "?actor=crowd"),
    ),
    "performance": ("", "?window=1h", "?window=7d"),
    "enqueue": ("", "?job_type=system.sleep"),
}


@pytest.fixture(scope="module")
def crowded(django_db_setup: None, django_db_blocker: DjangoDbBlocker) -> Iterator[list[str]]:
    with django_db_blocker.unblock():
        LargeTables(connection, JOBS).fill()
        group = groups.create([{"job_type": "system.noop"}] * 50)
        busy = Target.objects.filter(jobs__isnull=False).first()
        assert busy is not None
        pages = [get_page_url(row) for row in (group, busy, WorkerFactory.create(), ConcurrencyLimitFactory.create())]
        ScheduleFactory.create_batch(20)
        lists = [f"{get_list_url(model)}{query}" for model, queries in LISTS.items() for query in queries]
        screens = [
            f"{reverse(f'admin:jobscheduler_jobs_{name}')}{query}"
            for name, queries in SCREENS.items()
            for query in queries
        ]
        yield [*pages, *lists, *screens]
        live_counts.clear_cache()
        delete_all_rows()


@pytest.mark.django_db
def test_every_page_takes_few_statements_and_no_walk(crowded: list[str]) -> None:
    client: Any = Client()
    client.force_login(User.objects.create_superuser("boss"))
    client.get(reverse("admin:index"))
    for url in crowded:
        with CaptureQueriesContext(connection) as captured:
            assert client.get(url).status_code == 200, url
        asked = [statement["sql"] for statement in captured]
        assert len(asked) <= MOST_STATEMENTS, (url, asked)
        for sql in asked:
            assert not find_full_scans(sql), (url, sql, find_full_scans(sql))
