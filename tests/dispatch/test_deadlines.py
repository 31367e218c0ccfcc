"""A time-sensitive job that was not started in time is never started: it ends SKIPPED, and says so."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from jobs.engine.claim import Claimer, ServedJobs
from jobs.engine.maintenance import runner
from jobs.engine.maintenance.deadlines import DeadlineCheck
from jobs.models import Job, JobRun
from jobs.policies.concurrency import Limits
from jobs.services import jobs as job_services
from jobs.states import DEADLINE_PASSED_REASON, Status
from tests.factories import ConcurrencyLimitFactory
from tests.sample_app import job_types
from tests.support import executor
from tests.support.snapshots import list_events

pytestmark = pytest.mark.django_db
TYPE = job_types.anything.name
LATE = timedelta(seconds=-1)


def enqueue(due: timedelta, **fields: Any) -> Job:
    """With a deadline that far from now, whenever it was submitted."""
    job = job_services.enqueue(
        TYPE, deadline_at=timezone.now() + timedelta(days=1), **{"time_sensitive": True, **fields}
    )
    Job.objects.filter(pk=job.pk).update(deadline_at=timezone.now() + due)
    return Job.objects.get(pk=job.pk)


def status(job: Job) -> str:
    return Job.objects.get(pk=job.pk).status


def test_what_is_late_ends_skipped_with_the_reason_and_without_a_run() -> None:
    late, in_time = enqueue(LATE), enqueue(timedelta(minutes=1))
    careless = enqueue(LATE, time_sensitive=False)
    assert DeadlineCheck().skip_late_jobs() == 1
    found = Job.objects.get(pk=late.pk)
    assert (found.status, found.status_reason) == (Status.SKIPPED, DEADLINE_PASSED_REASON)
    assert not JobRun.objects.exists()
    last = list_events(late)[-1]
    assert (last.kind, last.reason, last.actor_kind) == ("SKIPPED", DEADLINE_PASSED_REASON, "scheduler")
    assert (status(in_time), status(careless)) == (Status.QUEUED, Status.QUEUED)


def test_it_is_a_maintenance_task() -> None:
    late = enqueue(LATE)
    runner.run_tasks()
    assert status(late) == Status.SKIPPED


@pytest.mark.parametrize("limited", [None, "roomy", "tight", "policy"])
def test_a_claim_never_starts_what_is_late_even_before_the_maintenance(limited: str | None, settings: Any) -> None:
    """On every way that a claim can go."""
    if limited == "roomy":
        ConcurrencyLimitFactory.create(scope="global", key="", max=50)
    if limited == "tight":
        ConcurrencyLimitFactory.create(scope="job_type", key=TYPE, max=2)
    if limited == "policy":
        settings.JOBSCHEDULER = {"CONCURRENCY_POLICY": f"{__name__}.Mine"}
    late, fine = enqueue(LATE, priority="URGENT"), enqueue(timedelta(minutes=1))
    for _ in range(2):
        claimer = Claimer("w", ServedJobs((TYPE,)), process_key="w@1")
        assert [claim.id for claim in claimer.claim([0, 1, 2], lease_sec=30)] in ([fine.pk], [])
    assert (status(late), status(fine)) == (Status.QUEUED, Status.RUNNING)


class Mine(Limits):
    pass


def test_a_job_that_was_started_in_time_goes_on() -> None:
    """Handed back by a worker that shut down, or paused by a person: it has begun."""
    from jobs.engine import finish

    job = executor.claim(enqueue(timedelta(minutes=1)))
    assert job.lease_token is not None
    finish.hand_back(job.pk, job.lease_token, actor=executor.WORKER, reason="shut down")
    Job.objects.filter(pk=job.pk).update(deadline_at=timezone.now() + LATE)
    assert DeadlineCheck().skip_late_jobs() == 0
    executor.claim(job)


@pytest.mark.parametrize("held", [{"hold": True}, {"target": "book-1"}, {"not_before": timezone.now() + timedelta(1)}])
def test_whatever_it_waits_for_it_is_too_late(held: dict[str, Any]) -> None:
    late = job_services.enqueue(TYPE, time_sensitive=True, **held)
    Job.objects.filter(pk=late.pk).update(deadline_at=timezone.now() + LATE)
    assert DeadlineCheck().skip_late_jobs() == 1
    assert status(late) == Status.SKIPPED


def test_the_check_runs_again_when_the_next_deadline_passes() -> None:
    check = DeadlineCheck()
    check.skip_late_jobs()
    assert check.pause_sec() == 15.0
    enqueue(timedelta(seconds=2))
    check.skip_late_jobs()
    assert 0.5 <= check.pause_sec() <= 2.0
    enqueue(LATE)
    check.skip_late_jobs()
    assert check.pause_sec() == 0.5
