"""A snoozed job returns to the queue for a while: same attempt, same run, its target stays held."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import override_settings

from jobs import clock
from jobs.engine import finish, promoter
from jobs.engine.finish import FinishStatus
from jobs.errors import Snooze
from jobs.explain import explain
from jobs.models import Gate, Job, JobRun
from jobs.outcomes import Snoozed
from jobs.payload_visibility import get_public_event_reason, get_public_reason
from jobs.services import jobs as job_services
from jobs.states import EventKind, Status, StopMode
from jobs.testing import drain
from tests.factories import SAMPLE_TYPE
from tests.sample_app import job_types as job_types
from tests.support import executor
from tests.support.snapshots import list_event_kinds, list_events

pytestmark = pytest.mark.django_db
WAIT = Snoozed(300.0, "the file is not there yet", {"seen": 1})


def snooze(job: Job, outcome: Snoozed = WAIT) -> FinishStatus:
    assert job.lease_token is not None
    return finish.snooze(job.pk, job.lease_token, outcome, actor=executor.WORKER)


def travel() -> None:
    """Let the time of all snoozed jobs come."""
    Job.objects.filter(gate=Gate.TIME).update(not_before=clock.now() - timedelta(seconds=1))
    promoter.promote_due()


def claim(**fields: Any) -> Job:
    return executor.claim(job_services.enqueue(SAMPLE_TYPE, {"text": "sea"}, **fields))


def test_a_snoozed_job_waits_for_its_time_with_its_run_open_and_no_attempt_used() -> None:
    running = claim()

    assert snooze(running) == FinishStatus.DONE

    job = Job.objects.get(pk=running.pk)
    assert (job.status, job.gate, job.attempt, job.snooze_count) == (Status.QUEUED, Gate.TIME, 1, 1)
    assert job.not_before is not None
    assert timedelta(seconds=290) < job.not_before - clock.now() <= timedelta(seconds=300)
    run = JobRun.objects.get(pk=job.pk)
    assert (run.status, run.finished_at, run.artifacts) == (Status.RUNNING, None, {"seen": 1})
    assert list_event_kinds(job) == ["SUBMITTED", "RUNNING", "SNOOZED"]
    event = list_events(job)[-1]
    assert (event.from_status, event.to_status, event.reason) == ("RUNNING", "QUEUED", WAIT.reason)
    assert executor.claim_next() is None

    travel()
    executor.complete(executor.claim(job))
    assert list_event_kinds(job)[-2:] == ["RUNNING", "COMPLETED"]
    assert JobRun.objects.filter(pk=job.pk).count() == 1


def test_a_snoozed_job_holds_its_target() -> None:
    running = claim(target="book-1")
    waiting = job_services.enqueue(SAMPLE_TYPE, {"text": "next"}, target="book-1", priority="URGENT")

    snooze(running)

    assert Job.objects.get(pk=running.pk).holds_lane
    assert executor.claim_next() is None
    assert Job.objects.get(pk=waiting.pk).gate == Gate.LANE
    travel()
    executor.complete(executor.claim(running))
    executor.claim(waiting)


@pytest.mark.parametrize(("mode", "status"), [(StopMode.CANCEL, Status.CANCELLED), (StopMode.PAUSE, Status.PAUSED)])
def test_a_stop_request_wins_over_a_snooze(mode: StopMode, status: Status) -> None:
    running = claim()
    {StopMode.CANCEL: job_services.cancel, StopMode.PAUSE: job_services.pause}[mode](running.pk)

    assert snooze(running) == FinishStatus.DONE

    assert Job.objects.get(pk=running.pk).status == status
    assert "SNOOZED" not in list_event_kinds(running)


@override_settings(JOBSCHEDULER={"SNOOZE_MAX": 2})
@pytest.mark.parametrize("retry_in", [None, 10.0])
def test_a_job_that_snoozes_too_often_fails_and_the_retry_policy_decides(retry_in: float | None) -> None:
    running = claim()
    Job.objects.filter(pk=running.pk).update(snooze_count=2)

    snooze(running, Snoozed(300.0, retry_in=retry_in))

    job = Job.objects.get(pk=running.pk)
    assert (job.status, job.status_reason, job.snooze_count) == (Status.FAILED, "snoozed too often", 2)
    retry = Job.objects.filter(retry_of=job).first()
    assert (retry is None) == (retry_in is None)
    if retry is not None:
        assert retry.snooze_count == 0


def test_a_worker_that_lost_its_lease_cannot_snooze_and_a_lost_reply_is_a_replay() -> None:
    running = claim()
    stale = Job.objects.get(pk=running.pk)
    snooze(running)
    assert snooze(stale) == FinishStatus.REPLAY
    assert Job.objects.get(pk=running.pk).snooze_count == 1
    travel()
    executor.claim(running)
    assert finish.snooze(running.pk, running.pk, WAIT, actor=executor.WORKER) == FinishStatus.LOST


def test_a_retry_starts_its_own_count_of_snoozes() -> None:
    running = claim()
    Job.objects.filter(pk=running.pk).update(snooze_count=7)
    executor.fail(running, retry_in=0)
    assert Job.objects.get(retry_of=running).snooze_count == 0


def test_explain_says_until_when_a_job_is_snoozed() -> None:
    running = claim()
    snooze(running)
    (reason,) = [reason for reason in explain(running.pk).reasons if reason.code == "snoozed"]
    assert reason.until == Job.objects.get(pk=running.pk).not_before
    assert reason.message.startswith("snoozed by its handler until ")


def test_the_words_of_a_snooze_are_payload() -> None:
    running = claim()
    snooze(running)
    assert get_public_reason(Job.objects.get(pk=running.pk)) == ""
    assert get_public_event_reason(list_events(running)[-1]) == ""


def test_a_handler_snoozes_and_goes_on_from_its_checkpoint() -> None:
    job = job_services.enqueue("sample.snooze", {"times": 2, "seconds": 60})
    for count in (1, 2):
        drain()
        job.refresh_from_db()
        assert (job.status, job.snooze_count) == (Status.QUEUED, count)
        travel()
    drain(raise_failures=True)
    job.refresh_from_db()
    assert (job.status, job.run.artifacts) == (Status.COMPLETED, {"result": 2})
    assert [event.kind for event in list_events(job)].count(EventKind.SNOOZED) == 2


@pytest.mark.parametrize("after", [-1, float("nan"), float("inf"), timedelta(seconds=-1)])
def test_a_snooze_needs_a_time_to_come(after: Any) -> None:
    with pytest.raises(ValueError, match="Snooze: the delay must be 0 seconds or more"):
        Snooze(after)


@pytest.mark.parametrize("after", ["60", None, True])
def test_a_snooze_needs_a_number(after: Any) -> None:
    with pytest.raises(TypeError, match="Snooze: the delay must be a number of seconds or a timedelta"):
        Snooze(after)
