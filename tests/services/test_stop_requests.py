"""A stop that a person asked for is never forgotten, and a running job is never ended from outside."""

from __future__ import annotations

from uuid import uuid4

import pytest

from jobs.actors import Actor, ActorKind
from jobs.admin.formatting import format_initiator
from jobs.engine import finish as ending
from jobs.engine import lifecycle
from jobs.engine.finish import FinishStatus
from jobs.errors import WrongState
from jobs.models import Job
from jobs.outcomes import Completed, Failed, Skipped
from jobs.services import jobs as job_services
from jobs.states import STATUS_AFTER_STOP, Cause, Status, StopMode
from tests.factories import JobFactory
from tests.sample_app import job_types
from tests.support.api_client import ApiClient
from tests.support.executor import WORKER, claim, finish, offer
from tests.support.snapshots import dump_tables, list_event_kinds, list_events

pytestmark = pytest.mark.django_db


def _running(mode: StopMode | None = None, **fields: object) -> Job:
    job = JobFactory.create(running=True, **fields)
    if mode == StopMode.CANCEL:
        return job_services.cancel(job.pk, reason="enough")
    return job_services.pause(job.pk, reason="later") if mode == StopMode.PAUSE else job


def _expire(job: Job) -> None:
    over = (Cause.LEASE_EXPIRED, "lease expired")
    assert ending.expire([job], cause=over[0], error=over[1], describe=lambda _: {"pid": 1}, retry_in=lambda _: 10) == 1


def test_cancel_asks_a_running_job_and_leaves_it_running() -> None:
    job = _running(StopMode.CANCEL)
    assert (job.status, job.cancel_requested, job.cancel_mode) == (Status.RUNNING, True, "CANCEL")
    assert (job.status_reason, job.lease_token is not None) == ("enough", True)


def test_a_pause_has_a_reason_even_if_nobody_gave_one() -> None:
    job = job_services.pause(JobFactory.create(running=True).pk)
    assert job.status_reason == "Job was interrupted by user"
    assert job_services.pause(JobFactory.create().pk).status_reason == "Job was interrupted by user"


@pytest.mark.parametrize("mode", StopMode)
def test_a_repeated_request_is_no_new_event(mode: StopMode) -> None:
    job = _running(mode)
    before = dump_tables()
    again = job_services.cancel(job.pk, reason="again") if mode == StopMode.CANCEL else job_services.pause(job.pk)
    assert again.cancel_mode == mode
    assert dump_tables() == before


def test_a_cancel_upgrades_a_pause() -> None:
    job = job_services.cancel(_running(StopMode.PAUSE).pk, reason="no, for good")
    assert (job.cancel_mode, job.status_reason) == ("CANCEL", "no, for good")
    assert list_event_kinds(job) == ["PAUSE_REQUESTED", "CANCEL_REQUESTED"]


def test_a_pause_after_a_cancel_is_refused() -> None:
    job = _running(StopMode.CANCEL)
    before = dump_tables()
    with pytest.raises(WrongState) as refusal:
        job_services.pause(job.pk)
    assert refusal.value.status == Status.RUNNING
    assert "pause" not in refusal.value.allowed
    assert dump_tables() == before


@pytest.mark.parametrize(("mode", "status"), [(StopMode.CANCEL, Status.CANCELLED), (StopMode.PAUSE, Status.PAUSED)])
@pytest.mark.parametrize("way", ["stop", "hand back", "expire"])
def test_a_job_with_a_stop_request_ends_in_what_was_asked(mode: StopMode, status: Status, way: str) -> None:
    """Never in QUEUED, and never in a retry."""
    job = _running(mode, in_lane=True)
    assert job.lease_token is not None
    if way == "stop":
        assert ending.stop(job.pk, job.lease_token, actor=WORKER) == FinishStatus.DONE
    elif way == "hand back":
        assert ending.hand_back(job.pk, job.lease_token, actor=WORKER, reason="worker shut down") == FinishStatus.DONE
    else:
        _expire(job)
    job.refresh_from_db()
    assert job.status == status
    assert Job.objects.count() == 1
    assert job.run.status == (Status.CANCELLED if status == Status.CANCELLED else Status.RUNNING)
    assert job.holds_lane is (status == Status.PAUSED)
    assert list_event_kinds(job)[-1] == status


def test_a_paused_job_has_no_request_left_on_it() -> None:
    job = _running(StopMode.PAUSE)
    assert job.lease_token is not None
    ending.stop(job.pk, job.lease_token, actor=WORKER)
    job.refresh_from_db()
    assert (job.cancel_requested, job.cancel_mode) == (False, "")
    assert job.status_reason == "later"


@pytest.mark.parametrize("mode", StopMode)
@pytest.mark.parametrize("way", ["stop", "hand back", "expire"])
def test_the_event_of_a_stop_names_who_asked_for_it_and_the_request_is_gone(mode: StopMode, way: str) -> None:
    ada, bob = Actor(ActorKind.USER, "ada"), Actor(ActorKind.TOKEN, "bob")
    job = JobFactory.create(running=True)
    job_services.pause(job.pk, actor=bob)
    if mode == StopMode.CANCEL:
        job_services.cancel(job.pk, actor=ada)
    job.refresh_from_db()
    assert job.lease_token is not None
    if way == "stop":
        ending.stop(job.pk, job.lease_token, actor=WORKER)
    elif way == "hand back":
        ending.hand_back(job.pk, job.lease_token, actor=WORKER, reason="worker shut down")
    else:
        _expire(job)
    asked = {"kind": "user", "name": "ada"} if mode == StopMode.CANCEL else {"kind": "token", "name": "bob"}
    last = ApiClient("read").get(f"/jobs/{job.pk}/events").json()["items"][-1]
    assert (last["kind"], last["data"]["requested_by"]) == (STATUS_AFTER_STOP[mode], asked)
    assert format_initiator(list_events(job)[-1]) == ("ada" if mode == StopMode.CANCEL else "bob (API token)")
    job.refresh_from_db()
    assert (job.cancel_requested, job.cancel_mode) == (False, "")


@pytest.mark.parametrize(
    "outcome", [Completed({}), Failed(error="no", reason="no", retry_in=5)], ids=["done", "failed"]
)
@pytest.mark.parametrize("mode", StopMode)
def test_a_job_that_ends_otherwise_has_no_request_left_and_no_retry(
    mode: StopMode, outcome: Completed | Failed
) -> None:
    job = _running(mode)
    assert finish(job, outcome) == FinishStatus.DONE
    (ended,) = Job.objects.all()
    assert (ended.is_terminal, ended.cancel_requested, ended.cancel_mode) == (True, False, "")


def test_of_two_pauses_the_last_asker_is_named() -> None:
    job = JobFactory.create(paused=True, job_type=job_types.note.name)
    for name in ("ada", "bob"):
        job_services.resume(job.pk)
        taken = claim(job)
        assert taken.lease_token is not None
        job_services.pause(job.pk, actor=Actor(ActorKind.USER, name))
        ending.stop(job.pk, taken.lease_token, actor=WORKER)
        data = list_events(job)[-1].data
        assert data is not None
        assert data["requested_by"]["name"] == name


def test_a_hand_back_that_meets_a_stop_request_is_a_stop_and_its_replay_is_known() -> None:
    job = _running(StopMode.CANCEL)
    assert job.lease_token is not None
    for verdict in (FinishStatus.DONE, FinishStatus.REPLAY):
        assert ending.hand_back(job.pk, job.lease_token, actor=WORKER, reason="worker shut down") == verdict
    assert ending.stop(job.pk, job.lease_token, actor=WORKER) == FinishStatus.REPLAY
    assert list_event_kinds(job) == ["CANCEL_REQUESTED", "CANCELLED"]
    assert list_events(job)[-1].reason == "enough"


def test_a_stop_is_no_replay_of_a_hand_back() -> None:
    job = _running()
    assert job.lease_token is not None
    assert ending.hand_back(job.pk, job.lease_token, actor=WORKER, reason="worker shut down") == FinishStatus.DONE
    assert ending.stop(job.pk, job.lease_token, actor=WORKER) == FinishStatus.LOST
    assert list_event_kinds(job) == ["HANDED_BACK"]


def test_stopping_keeps_what_the_handler_had_made_so_far() -> None:
    job = _running(StopMode.PAUSE)
    assert job.lease_token is not None
    ending.stop(job.pk, job.lease_token, actor=WORKER, artifacts={"half": 1})
    job.refresh_from_db()
    assert job.run.artifacts == {"half": 1}


def test_a_stop_that_nobody_asked_for_changes_nothing() -> None:
    job = _running()
    assert job.lease_token is not None
    before = dump_tables()
    assert ending.stop(job.pk, job.lease_token, actor=WORKER) == FinishStatus.LOST
    assert dump_tables() == before


@pytest.mark.parametrize("mode", StopMode)
def test_a_job_that_completes_before_it_notices_stays_completed(mode: StopMode) -> None:
    job = _running(mode)
    assert finish(job, Completed()) == FinishStatus.DONE
    job.refresh_from_db()
    assert (job.status, job.run.status) == (Status.COMPLETED, Status.COMPLETED)


@pytest.mark.parametrize("mode", StopMode)
def test_a_job_that_skips_before_it_notices_stays_skipped(mode: StopMode) -> None:
    job = _running(mode)
    assert finish(job, Skipped("nothing new")) == FinishStatus.DONE
    job.refresh_from_db()
    assert job.status == Status.SKIPPED


@pytest.mark.parametrize("mode", StopMode)
def test_a_failure_after_a_stop_request_is_not_retried(mode: StopMode) -> None:
    job = _running(mode, in_lane=True)
    assert finish(job, Failed(error="boom", reason="boom", retry_in=10)) == FinishStatus.DONE
    job.refresh_from_db()
    assert (job.status, job.holds_lane) == (Status.FAILED, True)
    assert Job.objects.count() == 1
    assert "RETRY_CREATED" not in list_event_kinds(job)


def test_a_hand_back_puts_the_job_back_with_its_run_open_and_no_attempt_used() -> None:
    job = JobFactory.create(running=True, in_lane=True, checkpoint={"page": 7})
    first = (job.run.started_at, job.run.worker)
    assert job.lease_token is not None
    assert ending.hand_back(job.pk, job.lease_token, actor=WORKER, reason="worker shut down") == FinishStatus.DONE
    job.refresh_from_db()
    assert (job.status, job.attempt, job.checkpoint) == (Status.QUEUED, 1, {"page": 7})
    assert (job.holds_lane, job.run.status) == (True, Status.RUNNING)
    assert (job.run.started_at, job.run.worker) == first
    assert list_event_kinds(job) == ["HANDED_BACK"]


def test_a_resumed_job_goes_on_with_the_same_run() -> None:
    job = JobFactory.create(paused=True, in_lane=True)
    started = job.run.started_at
    resumed = job_services.resume(job.pk)
    assert (resumed.pk, resumed.status, resumed.holds_lane) == (job.pk, Status.QUEUED, True)
    assert (resumed.run.started_at, resumed.run.status) == (started, Status.RUNNING)


def test_a_job_that_was_paused_before_it_ever_ran_holds_its_lane_only_while_it_is_paused() -> None:
    job = JobFactory.create(in_lane=True)
    assert job_services.pause(job.pk).holds_lane is True
    assert job_services.resume(job.pk).holds_lane is False


def test_a_cancelled_job_that_never_started_has_no_run() -> None:
    job = job_services.cancel(JobFactory.create().pk, reason="not wanted")
    assert (job.status, job.status_reason, hasattr(job, "run")) == (Status.CANCELLED, "not wanted", False)


def test_cancelling_a_paused_job_ends_its_run() -> None:
    job = job_services.cancel(JobFactory.create(paused=True, in_lane=True).pk, reason="not wanted")
    assert (job.run.status, job.run.error, job.holds_lane) == (Status.CANCELLED, "not wanted", False)


def test_a_reservation_that_was_withdrawn_can_be_made_again() -> None:
    job = JobFactory.create()
    first = offer(job.pk)
    assert lifecycle.withdraw(job.pk, actor=WORKER).status == Status.QUEUED
    second = offer(job.pk)
    assert second.dispatched_at == first.dispatched_at
    started = lifecycle.start(job.pk, actor=WORKER, owner="r#0", token=uuid4(), lease_sec=30)
    assert (started.status, started.reserved_until, started.run.worker) == (Status.RUNNING, None, "r#0")
