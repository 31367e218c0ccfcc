"""The result of a job: one transaction, fenced by the lease, and the same when it is reported twice."""

from __future__ import annotations

from datetime import timedelta
from uuid import uuid4

import pytest

from jobs.actors import make_worker_actor
from jobs.engine import finish as ending
from jobs.engine.claim import Claimer, ServedJobs
from jobs.engine.finish import FinishStatus, JobResult
from jobs.engine.worker import turn
from jobs.models import ConcurrencyLimit, Job, JobEvent, JobMinute, LaneMark
from jobs.outcomes import Completed, Failed, Skipped
from jobs.states import TERMINAL, Cause, Status
from tests.factories import JobFactory
from tests.support.executor import WORKER, finish
from tests.support.snapshots import dump_tables, list_event_kinds, list_events

pytestmark = pytest.mark.django_db

BOOM = Failed(error="Traceback: boom", reason="boom", exit_code=3, artifacts={"half": 1}, cause=Cause.TIMEOUT)


def test_a_completed_job_has_everything_its_end_implies() -> None:
    job = JobFactory.create(running=True, in_lane=True)
    token = job.lease_token
    assert finish(job, Completed({"pages": 3})) == FinishStatus.DONE
    job.refresh_from_db()
    assert (job.status, job.status_reason, job.holds_lane) == (Status.COMPLETED, "", False)
    run = job.run
    assert (run.status, run.exit_code, run.error, run.artifacts) == ("COMPLETED", 0, "", {"pages": 3})
    assert run.finished_at is not None
    (event,) = list_events(job)
    assert (event.kind, event.token, event.actor_name) == ("COMPLETED", token, WORKER.name)
    assert LaneMark.objects.get().lane_id == job.lane_id
    minute = JobMinute.objects.get()
    assert (minute.jobs, minute.outcome, minute.worker) == (1, "COMPLETED", WORKER.name)
    assert minute.wait_bucket >= 0
    assert minute.run_bucket >= 0


def test_a_skipped_job_says_why() -> None:
    job = JobFactory.create(running=True)
    finish(job, Skipped("nothing new", {"seen": 0}))
    job.refresh_from_db()
    assert (job.status, job.status_reason) == (Status.SKIPPED, "nothing new")
    assert (job.run.status, job.run.exit_code, job.run.artifacts) == ("SKIPPED", 0, {"seen": 0})


def test_a_failed_job_keeps_its_error_and_shuts_its_lane() -> None:
    job = JobFactory.create(running=True, in_lane=True)
    finish(job, BOOM)
    job.refresh_from_db()
    assert (job.status, job.status_reason, job.holds_lane, job.blocks_target) == ("FAILED", "boom", True, True)
    assert (job.run.status, job.run.exit_code, job.run.error) == ("FAILED", 3, "Traceback: boom")
    assert job.run.artifacts == {"half": 1}
    assert list_events(job)[0].data == {"cause": "TIMEOUT"}
    assert job.permanently_failed


@pytest.mark.parametrize("outcome", [Completed(), Skipped("x"), BOOM])
def test_a_finish_with_the_wrong_token_is_lost_and_changes_nothing(outcome: Completed | Skipped | Failed) -> None:
    job = JobFactory.create(running=True)
    before = dump_tables()
    assert ending.finish([JobResult(job.pk, uuid4(), outcome)], actor=WORKER) == {job.pk: FinishStatus.LOST}
    assert dump_tables() == before


def test_a_finish_of_no_job_is_lost() -> None:
    stranger = uuid4()
    assert ending.finish([JobResult(stranger, uuid4(), Completed())], actor=WORKER) == {stranger: FinishStatus.LOST}


@pytest.mark.parametrize("outcome", [Completed({"n": 1}), Skipped("x"), BOOM, Failed("e", "r", retry_in=10)])
def test_a_replay_of_ones_own_finish_is_answered_as_done_before(outcome: Completed | Skipped | Failed) -> None:
    job = JobFactory.create(running=True)
    assert finish(job, outcome) == FinishStatus.DONE
    before = dump_tables()
    assert finish(job, outcome) == FinishStatus.REPLAY
    assert dump_tables() == before


def test_a_replay_of_ones_own_hand_back_is_answered_as_done_before() -> None:
    job = JobFactory.create(running=True)
    assert _hand_back(job) == FinishStatus.DONE
    before = dump_tables()
    assert _hand_back(job) == FinishStatus.REPLAY
    assert dump_tables() == before


def _hand_back(job: Job) -> FinishStatus:
    """With the lease it had when it was read."""
    assert job.lease_token is not None
    return ending.hand_back(job.pk, job.lease_token, actor=WORKER, reason="bye")


def _expire_lease(job: Job, retry_in: float | None = None) -> None:
    over = (Cause.LEASE_EXPIRED, "lease expired")
    data = {"pid": 7}
    assert ending.expire([job], cause=over[0], error=over[1], describe=lambda _: data, retry_in=lambda _: retry_in)


@pytest.mark.parametrize("outcome", [Completed(), Skipped("x"), BOOM])
def test_a_stale_worker_cannot_finish_a_recovered_job(outcome: Completed | Skipped | Failed) -> None:
    """It must not believe that what it did was recorded, either: this is lost, not a replay."""
    job = JobFactory.create(running=True)
    _expire_lease(job, retry_in=10)
    before = dump_tables()
    assert finish(job, outcome, actor=make_worker_actor("the stale one")) == FinishStatus.LOST
    assert dump_tables() == before


def test_a_stale_worker_cannot_hand_back_a_recovered_job() -> None:
    job = JobFactory.create(running=True)
    _expire_lease(job)
    before = dump_tables()
    assert _hand_back(job) == FinishStatus.LOST
    assert dump_tables() == before


def test_a_worker_that_handed_a_job_back_cannot_complete_it_afterwards() -> None:
    job = JobFactory.create(running=True)
    _hand_back(job)
    before = dump_tables()
    assert finish(job, Completed()) == FinishStatus.LOST
    assert dump_tables() == before


def test_an_expired_job_says_how_its_holder_was_lost() -> None:
    job = JobFactory.create(running=True, in_lane=True)
    _expire_lease(job)
    job.refresh_from_db()
    assert (job.status, job.run.status, job.run.error) == (Status.FAILED, Status.FAILED, "lease expired")
    assert list_events(job)[0].data == {"pid": 7, "cause": "LEASE_EXPIRED"}
    assert list_events(job)[0].actor_kind == "scheduler"


def test_an_automatic_retry_is_made_in_the_same_step_as_the_failure() -> None:
    job = JobFactory.create(running=True, in_lane=True, checkpoint={"page": 7})
    finish(job, Failed(error="boom", reason="boom", retry_in=20))
    job.refresh_from_db()
    retry = job.retried_by
    assert (retry.status, retry.attempt, retry.checkpoint) == (Status.QUEUED, 2, {"page": 7})
    assert retry.not_before is not None
    assert job.run.finished_at is not None
    wait = retry.not_before - job.run.finished_at
    assert abs(wait - timedelta(seconds=20)) < timedelta(milliseconds=5)
    assert (job.holds_lane, retry.holds_lane) == (False, True)
    assert not job.permanently_failed
    assert list_event_kinds(job) == ["FAILED", "RETRY_CREATED"]
    assert list_events(job)[1].data == {"retried_by": str(retry.pk)}
    assert list_event_kinds(retry) == ["SUBMITTED"]


def test_many_ends_are_recorded_at_once_each_by_its_own_lease() -> None:
    jobs = JobFactory.create_batch(5, running=True)
    outcomes: list[Completed | Skipped | Failed] = [Completed(), Skipped("x"), BOOM, Failed("e", "r", retry_in=1)]
    finished = zip(jobs, outcomes, strict=False)
    ends = [JobResult(job.pk, job.lease_token or uuid4(), outcome) for job, outcome in finished]
    stale = JobResult(jobs[4].pk, uuid4(), Completed())
    verdicts = ending.finish([*ends, stale], actor=WORKER)
    assert [verdicts[job.pk] for job in jobs] == ["done", "done", "done", "done", "lost"]
    now = [Job.objects.get(pk=job.pk).status for job in jobs]
    assert now == ["COMPLETED", "SKIPPED", "FAILED", "FAILED", "RUNNING"]
    assert Job.objects.filter(retry_of__isnull=False).get().retry_of_id == jobs[3].pk


def test_every_ended_job_has_exactly_one_terminal_event() -> None:
    jobs = JobFactory.create_batch(3, running=True)
    outcomes: list[Completed | Skipped | Failed] = [Completed(), BOOM, Skipped("x")]
    for job, outcome in zip(jobs, outcomes, strict=True):
        finish(job, outcome)
        finish(job, outcome)
    for job in jobs:
        assert JobEvent.objects.filter(job_id=job.pk, kind__in=sorted(TERMINAL)).count() == 1


def test_counts_of_one_minute_add_up() -> None:
    for job in JobFactory.create_batch(3, running=True):
        finish(job, Completed())
    assert sum(minute.jobs for minute in JobMinute.objects.all()) == 3


@pytest.mark.pg_only
@pytest.mark.parametrize("others", [0, 2])
def test_a_result_that_shares_its_turn_with_a_claim_is_fenced_alike(others: int) -> None:
    """What is not ours is not done, and we are told why."""
    ConcurrencyLimit.objects.all().delete()
    good, stolen, fields = (JobFactory.create(running=True) for _ in range(3))
    extra = [JobFactory.create(running=True) for _ in range(others)]
    waiting = JobFactory.create(queued=True)
    earlier_result = JobResult(fields.pk, fields.lease_token, Completed())
    assert ending.finish([earlier_result], actor=WORKER) == {fields.pk: FinishStatus.DONE}
    stolen_end = JobResult(stolen.pk, uuid4(), Completed({"forged": True}))
    claimer = Claimer("worker-2", ServedJobs((waiting.job_type,)), process_key=f"worker-2@{uuid4()}")
    claimer._has_limits = False

    for ends, verdict in (([earlier_result], FinishStatus.REPLAY), ([stolen_end], FinishStatus.LOST)):
        before = list_events(stolen), list_events(fields)
        Job.objects.filter(pk=waiting.pk).update(gate=1)  # nothing to claim
        verdicts, claims = turn.take_plain_turn(claimer, ends, [0], actor=WORKER, lease_sec=30)
        assert (verdicts, claims) == ({ends[0].job_id: verdict}, [])
        assert (list_events(stolen), list_events(fields)) == before
    Job.objects.filter(pk=waiting.pk).update(gate=3)

    ends = [JobResult(job.pk, job.lease_token, Completed()) for job in (good, *extra)]
    if others:
        ends += [stolen_end, earlier_result]
    verdicts, claims = turn.take_plain_turn(claimer, ends, [0], actor=WORKER, lease_sec=30)
    expected = {job.pk: FinishStatus.DONE for job in (good, *extra)}
    assert verdicts == expected | ({stolen.pk: FinishStatus.LOST, fields.pk: FinishStatus.REPLAY} if others else {})
    (claimed,) = claims
    assert (claimed.id, claimed.params, claimed.lease_owner.rpartition("#")[2]) == (waiting.pk, waiting.params, "0")
    (started,) = list_events(waiting)
    assert (started.kind, started.from_status, started.token, started.actor_name) == (
        "RUNNING",
        "QUEUED",
        None,
        "worker-2",
    )
    (ended,) = list_events(good)
    assert (ended.kind, ended.from_status, ended.token, ended.actor_name) == (
        "COMPLETED",
        "RUNNING",
        good.lease_token,
        WORKER.name,
    )
    assert sum(JobMinute.objects.values_list("jobs", flat=True)) == 2 + others
    stolen.refresh_from_db()
    assert (stolen.status, stolen.run.artifacts) == (Status.RUNNING, {})
