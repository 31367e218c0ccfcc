"""When a job may start, from how long jobs like those before it took of late."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from jobs.engine import promoter
from jobs.engine.selection.limits import sync_limits
from jobs.explain import explain
from jobs.models import Job, JobMinute, Worker
from jobs.registry import registry
from jobs.services import jobs as job_services
from jobs.services import limits
from tests.factories import JobFactory, WorkerFactory
from tests.support import executor
from tests.support.api_client import ApiClient

pytestmark = pytest.mark.django_db
TYPE = "sample.noop"


@pytest.fixture(autouse=True)
def at_work(settings: Any) -> Worker:
    settings.JOBSCHEDULER = {**settings.JOBSCHEDULER, "LIMITS": {"global": None}}
    sync_limits()
    return WorkerFactory.create(slots=2, serves={"types": registry.local_names(), "resources": None, "tenant": None})


def took(seconds: float, jobs: int = 4, job_type: str = TYPE, outcome: str = "COMPLETED") -> None:
    JobMinute.objects.create(
        minute=timezone.now().replace(second=0, microsecond=0),
        worker="w",
        job_type=job_type,
        outcome=outcome,
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


def starting_now(jobs: list[Job]) -> list[int]:
    """Return which of these jobs are said to start now."""
    promoter.promote()
    starts = [(number, explain(job.pk).predicted_start_at) for number, job in enumerate(jobs)]
    return [number for number, at in starts if at is not None and at < timezone.now() + timedelta(seconds=5)]


@pytest.mark.parametrize("in_targets", [False, True], ids=["one queue", "each in its own target"])
def test_no_more_jobs_start_now_than_slots_are_free(at_work: Worker, in_targets: bool) -> None:
    jobs = [job_services.enqueue(TYPE, target=f"book-{n}" if in_targets else None) for n in range(8)]
    assert starting_now(jobs) == [0, 1]
    executor.claim_in_slots(at_work, 1)
    assert starting_now(jobs) == [1]
    executor.claim_in_slots(at_work, 1)
    assert starting_now(jobs) == []
    assert explain(jobs[2].pk).predicted_start_at is None  # the running ones have no measured duration
    took(10)
    assert [wait_sec(job) for job in jobs[2:]] == [5, 5, 15, 15, 25, 25]


def test_jobs_that_are_not_made_ready_yet_are_not_all_said_to_start_now() -> None:
    first, second = (job_services.enqueue(TYPE, target=target) for target in ("book-1", "book-2"))
    found = explain(first.pk)
    assert (found.summary, found.reasons) == ("First of its target; a worker makes it ready next.", [])
    assert (found.predicted_start_at, explain(second.pk).predicted_start_at) == (None, None)
    assert starting_now([first, second]) == [0, 1]


def test_no_more_jobs_start_now_than_their_limits_allow() -> None:
    limits.set_maximum("job_type", TYPE, maximum=1)
    jobs = [job_services.enqueue(TYPE) for _ in range(3)]
    assert starting_now(jobs) == [0]
    assert [reason.code for reason in explain(jobs[1].pk).reasons] == ["queue"]
    other = job_services.enqueue("sample.add", {"a": 1, "b": 2})
    assert starting_now([other]) == [0]  # the limit leaves the second slot to it


def test_jobs_ahead_that_cannot_start_delay_nobody() -> None:
    for job_type in ("sample.add", "sample.add", "sample.add"):
        job_services.enqueue(job_type, {"a": 1, "b": 2}, priority="HIGH")
    job = job_services.enqueue(TYPE)
    assert [reason.code for reason in explain(job.pk).reasons] == ["queue"]
    limits.pause("job_type", "sample.add")
    assert (wait_sec(job), explain(job.pk).ahead) == (0, 3)
    limits.unpause("job_type", "sample.add")
    Worker.objects.update(serves={"types": [TYPE], "resources": None, "tenant": None})
    assert wait_sec(job) == 0


def test_without_a_measured_duration_the_expected_one_counts(at_work: Worker) -> None:
    limits.set_maximum("global", "", maximum=1)
    for _ in range(3):
        job_services.enqueue(TYPE, expected_duration_sec=100)
    last = job_services.enqueue("sample.add", {"a": 1, "b": 2})
    assert wait_sec(last) == 300
    executor.claim_in_slots(at_work, 1)
    assert wait_sec(last) == 250  # the running one is taken to be half done
    took(10)
    assert wait_sec(last) == 25


def test_expected_durations_count_in_a_target_too() -> None:
    jobs = [job_services.enqueue(TYPE, target="book-1", expected_duration_sec=100) for _ in range(3)]
    executor.claim(jobs[0])
    assert wait_sec(jobs[2]) == 150


@pytest.mark.parametrize("target", ["book-1", None], ids=["in its target", "in its slot"])
@pytest.mark.parametrize(
    ("running_sec", "fields", "rest_sec"),
    [
        (4, {}, 5),  # taken to be half done
        (60, {}, 60),
        (60, {"progress": 0.25}, 180),
        (60, {"progress": 5e-324}, None),  # the rest would be beyond the calendar
        (60, {"progress": 0.25, "fence": 2}, None),  # claimed twice: since its first start it has also waited
    ],
)
def test_the_rest_of_a_running_job_is_that_of_its_progress(
    at_work: Worker, target: str | None, running_sec: int, fields: dict[str, Any], rest_sec: int | None
) -> None:
    took(10)
    Worker.objects.update(slots=1)
    started_at = timezone.now() - timedelta(seconds=running_sec)
    owner = f"{at_work.identity.process_key}#0"
    running = {
        "running": True,
        "job_type": TYPE,
        "target": target,
        "lease_owner": owner,
        "dispatched_at": started_at,
        "fence": 1,
    }
    JobFactory.create(**running | fields)
    waiting = job_services.enqueue(TYPE, target=target)
    start_at = explain(waiting.pk).predicted_start_at
    if rest_sec is None:
        assert start_at is None
    else:
        assert wait_sec(waiting) == pytest.approx(rest_sec, rel=0.3)


@pytest.mark.parametrize("target", ["book-1", None], ids=["in its target", "in the queue"])
def test_a_start_beyond_the_calendar_is_not_predicted(boss: Client, target: str | None) -> None:
    year_sec = 31_536_000
    items = [{"job_type": TYPE, "target": target, "expected_duration_sec": year_sec}] * 8_100
    job_services.enqueue_many(items)
    last = job_services.enqueue("sample.add", {"a": 1, "b": 2}, target=target)
    Worker.objects.update(slots=1)
    explanation = ApiClient("read").get(f"/jobs/{last.pk}/explain").json()
    assert (explanation["ahead"], explanation["predicted_start_at"]) == (8_100, None)
    for name in ("job_changelist", "queue"):
        assert boss.get(reverse(f"admin:jobscheduler_jobs_{name}")).status_code == 200


def test_what_other_types_took_says_nothing() -> None:
    took(10, job_type="sample.add")
    last = [job_services.enqueue(TYPE) for _ in range(3)][-1]
    assert explain(last.pk).predicted_start_at is None


def test_jobs_that_were_cancelled_say_nothing_about_run_times() -> None:
    took(1, jobs=20, outcome="CANCELLED")
    last = [job_services.enqueue(TYPE) for _ in range(3)][-1]
    assert explain(last.pk).predicted_start_at is None
    took(10)
    assert wait_sec(last) == 10


def test_jobs_of_the_same_time_are_not_all_said_to_start_then() -> None:
    at = timezone.now() + timedelta(hours=1)
    jobs = [job_services.enqueue(TYPE, not_before=at) for _ in range(4)]
    assert [explain(job.pk).predicted_start_at for job in jobs] == [at, at, None, None]
    later = at + timedelta(hours=1)
    assert explain(job_services.enqueue(TYPE, not_before=later).pk).predicted_start_at == later


@pytest.mark.parametrize(
    "policy",
    [
        {"FAIRNESS_POLICY": "jobs.policies.fairness.FairShare"},
        {"ADMISSION_POLICY": "jobs.policies.admission.Capacity"},
        {"CONCURRENCY_POLICY": "jobs.policies.concurrency.GlobalLimit"},
    ],
)
def test_where_more_than_the_order_decides_nothing_is_predicted(settings: Any, policy: dict[str, str]) -> None:
    settings.JOBSCHEDULER = {**settings.JOBSCHEDULER, **policy}
    assert explain(job_services.enqueue(TYPE).pk).predicted_start_at is None


def test_jobs_ahead_that_other_workers_may_take_make_a_start_uncertain() -> None:
    took(10)
    took(10, job_type="sample.add")
    for _ in range(2):
        job_services.enqueue("sample.add", {"a": 1, "b": 2})
    job = job_services.enqueue(TYPE)
    assert wait_sec(job) == 10
    WorkerFactory.create(serves={"types": ["sample.add"], "resources": None, "tenant": None})
    assert explain(job.pk).predicted_start_at is None


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
