"""`manage.py demo` fills a tenant of its own with data for every screen, and deletes all of it."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.apps import apps
from django.db.models import Sum
from django.test import Client
from django.utils import timezone

from jobs import demo
from jobs.demo.history import WORKER
from jobs.explain import explain
from jobs.models import ConcurrencyLimit, GroupStatus, Job, JobEvent, JobGroup, JobMinute, JobTemplate
from jobs.registry import registry
from jobs.services import jobs as job_services
from jobs.states import Status
from schedules import history
from schedules.models import Schedule
from tests.support.admin_pages import get_list_url
from tests.support.commands import call
from tests.support.snapshots import dump_tables
from webhooks.models import DeliveryStatus, WebhookDelivery, WebhookEndpoint

pytestmark = pytest.mark.django_db(transaction=True)
# Written by the engine itself; and activities, which cannot be deleted.
IGNORED_TABLES = ("Worker", "SystemSnapshot", "LaneMark", "ConcurrencyLimit", "Activity")


@pytest.fixture(autouse=True)
def restore_registry() -> Iterator[None]:
    """Unregister the job types of the demo after each test."""
    before = dict(registry._handlers)
    yield
    registry._handlers = before


def dump_compared_tables() -> dict[str, list[dict[str, Any]]]:
    return {name: table_rows for name, table_rows in dump_tables().items() if name not in IGNORED_TABLES}


def test_it_fills_every_screen_and_is_deleted_without_a_trace() -> None:
    own = job_services.enqueue("system.noop")
    before = dump_compared_tables()
    result = call("demo", "--force")
    assert (result.code, "--clear" in result.out) == (0, True), result.err
    require_all_demo_data()
    assert "already exists" in call("demo", "--force").err
    assert call("demo", "--clear").code == 0
    assert dump_compared_tables() == before
    assert not ConcurrencyLimit.objects.filter(scope="resource").exists()
    own.refresh_from_db()
    assert own.status == Status.QUEUED
    assert call("demo", "--clear").code == 1


def require_all_demo_data() -> None:
    jobs = Job.objects.filter(tenant=demo.TENANT)
    expected = {"COMPLETED", "FAILED", "SKIPPED", "CANCELLED", "QUEUED", "PENDING", "PAUSED"}
    assert set(jobs.values_list("status", flat=True)) >= expected
    codes = {
        reason.code for job in jobs.exclude(status__in=["COMPLETED", "FAILED"]) for reason in explain(job.pk).reasons
    }
    expected = {"not_before", "backoff", "held", "predecessor", "paused", "target_blocked", "target_paused"}
    assert codes >= expected | {"scope_paused", "no_worker"}
    groups = set(JobGroup.objects.filter(tenant=demo.TENANT).values_list("status", flat=True))
    assert groups >= {GroupStatus.COMPLETED, GroupStatus.PARTIAL}
    schedule = Schedule.objects.get(tenant=demo.TENANT, name="demo: every minute")
    outcomes = [fire.outcome for fire in history.load_outcomes(history.fires_of(schedule))]
    assert (len(outcomes), outcomes.count("FAILED"), outcomes.count("COMPLETED")) == (30, 3, 27)
    assert WebhookEndpoint.objects.filter(tenant=demo.TENANT).count() == 2
    deliveries = WebhookDelivery.objects.filter(endpoint__tenant=demo.TENANT)
    assert set(deliveries.values_list("status", flat=True)) == set(DeliveryStatus.values)
    assert JobTemplate.objects.filter(tenant=demo.TENANT).exists()
    past = jobs.filter(run__worker=WORKER)
    assert past.count() > 1000
    assert not deliveries.filter(job_id__in=past.values("pk")).exists()


def test_the_past_week_is_found_in_lists_beside_what_ended_before_the_demo(admin_client: Client) -> None:
    own = job_services.cancel(job_services.enqueue("system.noop").pk)
    call("demo")
    for hours in (1, 24, 24 * 7):
        began = timezone.now().replace(minute=0, second=0, microsecond=0) - timedelta(hours=hours)
        counted = JobMinute.objects.filter(minute__gte=began).aggregate(jobs=Sum("jobs"))["jobs"]
        listed = admin_client.get(get_list_url(Job), {"ended_from": began.isoformat()}).context["cl"].result_count
        assert listed == counted > 10 * hours
    assert JobEvent.objects.earliest("at").pk < JobEvent.objects.filter(job=own).earliest("pk").pk
    call("demo", "--clear")


@pytest.mark.once
def test_schedules_of_the_demo_use_job_types_that_every_worker_has() -> None:
    call("demo", "--force")
    assert set(Schedule.objects.values_list("job_type", flat=True)) == {"system.sleep"}
    call("demo", "--clear")


def test_a_site_with_many_jobs_of_its_own_requires_force(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "MAX_OTHER_JOBS", 2)
    for _ in range(3):
        job_services.enqueue("system.noop")
    before = dump_tables()
    result = call("demo")
    assert (result.code, "--force" in result.err, "more than 2 jobs" in result.err) == (1, True, True)
    assert dump_tables() == before


@pytest.mark.once
def test_a_site_that_is_being_tried_needs_no_force_and_the_command_logs_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    job_services.enqueue("system.noop")
    caplog.clear()
    result = call("demo")
    assert (result.code, caplog.text) == (0, ""), result.err
    assert len(result.out.splitlines()) == 1
    call("demo", "--clear")


def test_a_tenant_that_it_did_not_create_is_left_alone() -> None:
    job_services.enqueue("system.noop", tenant=demo.TENANT)
    before = dump_compared_tables()
    assert call("demo", "--force").code == call("demo", "--clear").code == 1
    assert dump_compared_tables() == before


def test_each_app_of_ours_adds_its_part() -> None:
    assert {module.__name__ for module in demo._load_app_modules()} == {"schedules.demo", "webhooks.demo"}
    assert {apps.get_app_config(label).label for label in demo.APP_LABELS} == set(demo.APP_LABELS)
