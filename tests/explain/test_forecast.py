"""When a job may start, from how long jobs like those before it took of late."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from jobs.engine.selection.limits import sync_limits
from jobs.explain import explain
from jobs.models import JobMinute, Worker
from jobs.registry import registry
from jobs.services import jobs as job_services
from jobs.services import limits
from tests.factories import JobFactory, WorkerFactory
from tests.support.api_client import ApiClient

pytestmark = pytest.mark.django_db
TYPE = "sample.noop"


@pytest.fixture(autouse=True)
def at_work(settings: Any) -> Worker:
    settings.JOBSCHEDULER = {**settings.JOBSCHEDULER, "LIMITS": {"global": None}}
    sync_limits()
    return WorkerFactory.create(slots=2, serves={"types": registry.local_names(), "resources": None, "tenant": None})


def took(seconds: float, jobs: int = 4, job_type: str = TYPE) -> None:
    JobMinute.objects.create(
        minute=timezone.now().replace(second=0, microsecond=0),
        worker="w",
        job_type=job_type,
        outcome="COMPLETED",
        wait_bucket=0,
        run_bucket=0,
        jobs=jobs,
        run_sec=seconds * jobs,
    )


def wait_sec(job: Any) -> float:
    found = explain(job.pk)
    assert found.predicted_start_at is not None, found
    return round((found.predicted_start_at - timezone.now()).total_seconds())


def test_next_in_line_with_a_free_slot_starts_now() -> None:
    assert wait_sec(job_services.enqueue(TYPE)) == 0


def test_those_ahead_take_their_measured_time_shared_among_the_slots() -> None:
    took(10)
    last = [job_services.enqueue(TYPE) for _ in range(5)][-1]
    assert wait_sec(last) == 20  # four times 10 s on two slots


def test_a_limit_is_as_few_hands_as_it_allows() -> None:
    took(10)
    limits.set_maximum("job_type", TYPE, maximum=1)
    last = [job_services.enqueue(TYPE) for _ in range(3)][-1]
    assert wait_sec(last) == 20


def test_a_lane_has_one_hand() -> None:
    took(10)
    last = [job_services.enqueue(TYPE, target="book-1") for _ in range(4)][-1]
    assert wait_sec(last) == 30


def test_a_future_start_is_never_undercut() -> None:
    assert wait_sec(job_services.enqueue(TYPE, not_before=timezone.now() + timedelta(minutes=5))) == 300


def test_nobody_knows_when_a_person_has_to_act_or_nothing_was_ever_measured() -> None:
    limits.pause("global", "")
    assert explain(job_services.enqueue(TYPE).pk).predicted_start_at is None
    limits.unpause("global", "")
    last = [job_services.enqueue(TYPE) for _ in range(4)][-1]
    assert explain(last.pk).predicted_start_at is None


def test_explaining_costs_fewer_than_ten_statements(django_assert_max_num_queries: Any) -> None:
    took(1)
    limits.set_maximum("global", "", maximum=1)
    JobFactory.create(running=True)
    waiting = [job_services.enqueue(TYPE, target="book-1") for _ in range(3)][-1]
    with django_assert_max_num_queries(9):
        explain(waiting.pk)
    job_services.pause(job_services.enqueue(TYPE, target="book-2").pk)
    blocked = job_services.enqueue(TYPE, target="book-2")
    with django_assert_max_num_queries(9):
        explain(blocked.pk)


def test_over_http_the_document_is_the_same_and_other_tenants_have_none() -> None:
    waiting = job_services.enqueue(TYPE, not_before=timezone.now() + timedelta(hours=1))
    answer = ApiClient("read").get(f"/jobs/{waiting.pk}/explain")
    assert (answer.status_code, answer.json()["reasons"][0]["code"]) == (200, "not_before")
    assert ApiClient("read", tenant="acme").get(f"/jobs/{waiting.pk}/explain").status_code == 404
