"""Why a job waits for a rate, and when it starts."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from jobs.engine.selection.limits import sync_limits
from jobs.explain import explain, explain_briefly
from jobs.models import ConcurrencyLimit, Job, JobMinute
from jobs.registry import registry
from jobs.services import jobs as job_services
from jobs.services import limits
from tests.factories import WorkerFactory
from tests.support import executor
from tests.support.admin_pages import get_list_url, get_page_url
from tests.support.api_client import ApiClient

pytestmark = pytest.mark.django_db
TYPE = "sample.noop"


@pytest.fixture(autouse=True)
def at_work(settings: Any) -> None:
    """A worker that serves everything, with free slots; the only limit is the rate of a resource."""
    settings.JOBSCHEDULER = {**settings.JOBSCHEDULER, "LIMITS": {"global": None}}
    sync_limits()
    WorkerFactory.create(slots=50, serves={"types": registry.local_names(), "resources": None, "tenant": None})
    now = timezone.now()
    JobMinute.objects.create(
        minute=now,
        worker="w",
        tenant="default",
        resource="openai",
        job_type=TYPE,
        outcome="COMPLETED",
        wait_bucket=0,
        run_bucket=0,
        jobs=1,
        wait_sec=0.0,
        run_sec=1.0,
    )


def submit(**fields: Any) -> Job:
    return job_services.enqueue(TYPE, resource="openai", **fields)


def use_up(**columns: Any) -> None:
    ConcurrencyLimit.objects.filter(key="openai").update(bucket_at=timezone.now(), **columns)


def test_the_rate_is_named_with_the_time_of_the_next_start() -> None:
    limits.set_rates("resource", "openai", rate="60/h")
    use_up(rate_level=0.0)
    job = submit()
    explanation = explain(job.pk)
    (reason,) = explanation.reasons
    assert reason.code == "rate_limit"
    assert reason.until is not None
    wait = reason.until - timezone.now()
    assert timedelta(seconds=30) < wait <= timedelta(seconds=60)
    local = timezone.localtime(reason.until)
    assert reason.message.startswith("rate limit of resource openai: 60/h; next start ")
    assert f"{local:%H:%M:%S}" in reason.message
    assert explain_briefly([job])[job.pk].startswith("rate limit of resource openai: 60/h; next start ")


@pytest.mark.pg_only  # elsewhere the clock is that of the host
def test_the_next_start_is_by_the_clock_of_the_database_wherever_it_is_shown(
    boss: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits.set_rates("resource", "openai", rate="60/h")
    use_up(rate_level=0.0)
    job, host_now = submit(), timezone.now() + timedelta(hours=1)
    monkeypatch.setattr(timezone, "now", lambda: host_now)
    assert explain_briefly([job])[job.pk].startswith("rate limit of resource openai: 60/h; next start ")
    assert "next start" in boss.get(get_page_url(ConcurrencyLimit.objects.get(key="openai"))).content.decode()
    assert "rate limit of resource openai" in boss.get(reverse("admin:jobscheduler_jobs_queue")).content.decode()


def test_the_token_rate_is_named_if_it_takes_longer() -> None:
    limits.set_rates("resource", "openai", rate="60/min", token_rate="60/min")
    use_up(rate_level=0.5, token_level=-100.0)
    (reason,) = explain(submit().pk).reasons
    assert reason.message.startswith("token rate of resource openai: 60/min; next start ")


def test_a_rate_with_room_is_no_reason() -> None:
    limits.set_rates("resource", "openai", rate="60/min", token_rate="60/min")
    assert explain(submit().pk).reasons == []


def test_the_forecast_counts_the_jobs_ahead_under_the_rate() -> None:
    limits.set_rates("resource", "openai", rate="60/h")
    use_up(rate_level=0.0)
    job_services.enqueue(TYPE)
    submit()
    submit()
    start = explain(submit().pk).predicted_start_at
    assert start is not None
    assert timedelta(seconds=140) < start - timezone.now() < timedelta(seconds=181)


def test_the_forecast_says_nothing_where_it_depends_on_the_tokens_of_others() -> None:
    limits.set_rates("resource", "openai", token_rate="60/min")
    use_up(token_level=-100.0)
    first = explain(submit().pk).predicted_start_at
    assert first is not None
    assert timedelta(seconds=70) < first - timezone.now() < timedelta(seconds=101)
    assert explain(submit().pk).predicted_start_at is None


def test_a_job_that_reserves_any_number_of_tokens_leaves_limits_and_explanations_readable(boss: Client) -> None:
    limits.set_rates("resource", "openai", token_rate="60/min")
    greedy = submit(token_limit=2**63 - 1)
    waiting = submit()
    executor.claim(greedy)
    assert [reason.code for reason in explain(waiting.pk).reasons] == ["rate_limit"]
    assert ApiClient("read").get(f"/jobs/{waiting.pk}/explain").status_code == 200
    items = ApiClient("read", tenant=None).get("/limits").json()["items"]
    limit = next(item for item in items if item["key"] == "openai")
    assert limit["next_start_at"].startswith("20")
    for model in (Job, ConcurrencyLimit):
        assert boss.get(get_list_url(model)).status_code == 200
    executor.complete(Job.objects.get(pk=greedy.pk))
    executor.claim(waiting)
