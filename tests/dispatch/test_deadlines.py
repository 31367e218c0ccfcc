"""A job that was not started by its deadline is never started: it ends SKIPPED, and says so."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ValidationError
from django.utils import timezone

from jobs.engine import finish, lifecycle
from jobs.engine.claim import Claimer, ServedJobs
from jobs.engine.maintenance import deadlines, recovery, runner
from jobs.engine.maintenance.deadlines import PAUSE_SEC, DeadlineCheck, skip_late_jobs
from jobs.models import Job, JobRun
from jobs.policies.concurrency import Limits
from jobs.process_identity import read_boot_id
from jobs.services import groups
from jobs.services import jobs as job_services
from jobs.states import DEADLINE_PASSED_REASON, Status
from tests.factories import ConcurrencyLimitFactory
from tests.packaging.doc_examples import DOCS
from tests.sample_app import job_types
from tests.support import executor
from tests.support.snapshots import list_events

pytestmark = pytest.mark.django_db
TYPE = job_types.anything.name
LATE = timedelta(seconds=-1)


def set_deadline(job: Job, due: timedelta) -> Job:
    Job.objects.filter(pk=job.pk).update(deadline_at=timezone.now() + due)
    return Job.objects.get(pk=job.pk)


def enqueue(due: timedelta, **fields: Any) -> Job:
    """With a deadline that far from now, whenever it was submitted."""
    return set_deadline(job_services.enqueue(TYPE, deadline_at=timezone.now() + timedelta(days=400), **fields), due)


def status(job: Job) -> str:
    return Job.objects.get(pk=job.pk).status


def test_the_page_about_deadlines_quotes_the_reason() -> None:
    (section,) = re.findall(r"^## Deadlines\n(.*?)^## ", (DOCS / "dispatch.md").read_text(), re.MULTILINE | re.DOTALL)
    assert re.findall('SKIPPED, "(.*?)"', section, re.DOTALL) == [DEADLINE_PASSED_REASON]


@pytest.mark.parametrize("fields", [{}, {"time_sensitive": True}], ids=["deadline alone", "time-sensitive"])
def test_what_is_late_ends_skipped_with_the_reason_and_without_a_run(fields: dict[str, Any]) -> None:
    late, in_time = enqueue(LATE, **fields), enqueue(timedelta(minutes=1), **fields)
    assert skip_late_jobs() == 1
    found = Job.objects.get(pk=late.pk)
    assert (found.status, found.status_reason) == (Status.SKIPPED, "deadline passed")
    assert not JobRun.objects.exists()
    last = list_events(late)[-1]
    assert (last.kind, last.reason, last.actor_kind) == ("SKIPPED", "deadline passed", "scheduler")
    assert status(in_time) == Status.QUEUED


def test_every_round_of_maintenance_looks_for_deadlines_also_for_new_ones() -> None:
    """A round that knew only a later deadline must not delay one that was submitted since."""
    task = next(task for task in runner.list_tasks() if task.name == "deadlines")
    enqueue(timedelta(days=1))
    task.run()
    late = enqueue(LATE)
    runner.run_tasks()
    assert status(late) == Status.SKIPPED


def test_the_next_round_is_due_at_the_next_deadline(settings: Any) -> None:
    settings.JOBSCHEDULER = {"POLL_SEC": 3600}
    check = DeadlineCheck()

    def pause() -> float:
        check.run_round()
        return check.pause_sec()

    assert pause() >= 3600
    waiting = enqueue(timedelta(minutes=30))
    assert 1700 < pause() <= 1801
    begun = executor.claim(waiting)
    assert begun.lease_token is not None
    finish.hand_back(begun.pk, begun.lease_token, actor=executor.WORKER, reason="shut down")
    assert pause() >= 3600, "a job that was started in time needs no round"
    late = enqueue(LATE)
    assert (pause(), status(late)) == (PAUSE_SEC, Status.SKIPPED)


def test_a_round_that_fails_is_repeated_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notification may have asked for it."""
    check = DeadlineCheck()
    check.run_round()
    monkeypatch.setattr(deadlines, "_waiting_with_deadline", lambda: Job.objects.filter(deadline_at="no time"))
    with pytest.raises(ValidationError):
        check.run_round()
    assert check.pause_sec() == PAUSE_SEC


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
    job = executor.claim(enqueue(timedelta(minutes=1)))
    assert job.lease_token is not None
    finish.hand_back(job.pk, job.lease_token, actor=executor.WORKER, reason="shut down")
    set_deadline(job, LATE)
    assert skip_late_jobs() == 0
    executor.claim(job)


@pytest.mark.parametrize("held", [{"hold": True}, {"target": "book-1"}, {"not_before": timezone.now() + timedelta(1)}])
def test_whatever_it_waits_for_it_is_too_late(held: dict[str, Any]) -> None:
    late = enqueue(LATE, **held)
    assert skip_late_jobs() == 1
    assert status(late) == Status.SKIPPED


# ---------------------------------------------------------------------- retries


def test_a_retry_that_would_start_past_the_deadline_is_not_made() -> None:
    """The job stays the failed latest attempt, and blocks its target like any other."""
    job = executor.claim(enqueue(timedelta(seconds=60), target="book-1"))
    failed = executor.fail(job, retry_in=61)
    assert (failed.status, failed.permanently_failed, failed.blocks_target) == (Status.FAILED, True, True)
    assert [event.kind for event in list_events(job)][-1] == "FAILED"


def test_a_retry_that_starts_before_the_deadline_is_made_and_keeps_it() -> None:
    job = enqueue(timedelta(seconds=60))
    failed = executor.fail(executor.claim(job), retry_in=50)
    retry = Job.objects.get(retry_of=failed)
    assert retry.deadline_at == job.deadline_at
    set_deadline(retry, LATE)
    assert (skip_late_jobs(), status(retry), status(failed)) == (1, Status.SKIPPED, Status.FAILED)


def test_recovery_makes_no_retry_past_the_deadline() -> None:
    lost = executor.claim(enqueue(timedelta(seconds=5), max_retries=3))
    long_ago = {"lease_expires_at": timezone.now() - timedelta(days=1), "beat_clock": f"{read_boot_id()}/-99999"}
    Job.objects.filter(pk=lost.pk).update(**long_ago)
    assert recovery.LeaseReaper().run_round() == 1
    assert status(lost) == Status.FAILED
    assert not Job.objects.filter(retry_of=lost).exists()


def test_a_retry_by_a_person_drops_a_deadline_that_has_passed_and_keeps_another() -> None:
    job = enqueue(timedelta(seconds=60), time_sensitive=True)
    failed = executor.fail(executor.claim(job))
    in_time = job_services.retry(failed.pk)
    assert (in_time.deadline_at, in_time.time_sensitive) == (job.deadline_at, True)
    set_deadline(in_time, LATE)
    skip_late_jobs()
    retry = job_services.retry(job.pk)
    assert (retry.deadline_at, retry.time_sensitive, skip_late_jobs()) == (None, False, 0)
    executor.claim(retry)


def test_a_retry_in_backoff_that_a_person_starts_at_once_drops_a_deadline_that_has_passed() -> None:
    failed = executor.fail(executor.claim(enqueue(timedelta(seconds=60))), retry_in=50)
    waiting = set_deadline(Job.objects.get(retry_of=failed), LATE)
    assert job_services.retry(failed.pk).pk == waiting.pk
    assert skip_late_jobs() == 0
    executor.claim(waiting)


def test_places_that_a_persons_retry_brings_back_are_not_skipped_at_once() -> None:
    members = [{"job_type": TYPE, "deadline_at": timezone.now() + timedelta(days=1)}] * 2
    group = groups.create(members, mode="sequential")
    first = groups.get_latest_attempts(group.pk)[0]
    executor.fail(executor.claim(first))
    Job.objects.filter(group=group).update(deadline_at=timezone.now() + LATE)
    lifecycle.retry(first.pk, actor=executor.WORKER)
    assert skip_late_jobs() == 0
    assert [job.status for job in groups.get_latest_attempts(group.pk)] == [Status.QUEUED, Status.PENDING]
