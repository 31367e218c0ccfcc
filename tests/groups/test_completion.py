"""What the end of one member means for the others and for the group, in the same transaction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from django.db import DatabaseError
from django.test import override_settings

from jobs.engine import finish
from jobs.engine.finish import FinishStatus
from jobs.errors import WrongState
from jobs.models import GroupMode, GroupStatus, Job, JobGroup
from jobs.outcomes import Failed, Skipped
from jobs.policies.groups import GroupFailureFacts
from jobs.services import jobs as job_services
from jobs.signals import group_finished
from jobs.states import TERMINAL, Cause, Status
from tests.factories import JobFactory, JobGroupFactory
from tests.sample_app import job_types
from tests.support import executor
from tests.support.signals import SignalRecorder
from tests.support.snapshots import dump_tables, list_event_kinds, list_events

pytestmark = pytest.mark.django_db

TYPE = job_types.note.name


class AlwaysContinue:
    def decide(self, facts: GroupFailureFacts) -> str:
        return "continue"


@pytest.fixture
def finished() -> Iterator[SignalRecorder]:
    received = SignalRecorder(group_finished)
    yield received
    received.disconnect()


def _sequence(places: int = 3, **fields: Any) -> list[Job]:
    """A sequential group: its first place waits in the queue, the others for their predecessor."""
    group = JobGroupFactory.create(sequential=True, **fields)
    first = JobFactory.create(group=group, group_index=0)
    rest = [JobFactory.create(group=group, group_index=index, pending=True, hold=False) for index in range(1, places)]
    return [first, *rest]


def _parallel(places: int = 3) -> list[Job]:
    group = JobGroupFactory.create(mode=GroupMode.PARALLEL)
    return [JobFactory.create(group=group, group_index=index) for index in range(places)]


def _tails(jobs: list[Job]) -> list[str]:
    tails = _group(jobs).jobs.latest_attempts().order_by("group_index")
    return [tail.status for tail in tails]


def _statuses(jobs: Sequence[Job]) -> list[str]:
    return [Job.objects.get(pk=job.pk).status for job in jobs]


def _group(jobs: Sequence[Job]) -> JobGroup:
    return JobGroup.objects.get(jobs=jobs[0])


@pytest.mark.parametrize("how", ["complete", "skip"])
def test_a_place_that_ended_well_lets_the_next_one_go(how: str) -> None:
    jobs = _sequence()
    running = executor.claim(jobs[0])
    if how == "complete":
        executor.complete(running)
    else:
        assert executor.finish(running, Skipped("nothing to do")) == FinishStatus.DONE
    assert _statuses(jobs)[1:] == ["QUEUED", "PENDING"]
    released = list_events(jobs[1])[-1]
    assert (released.kind, released.reason, released.actor_kind) == ("RELEASED", "predecessor ended", "scheduler")


def test_the_next_place_waits_for_the_whole_retry_chain() -> None:
    jobs = _sequence()
    failed = executor.fail(executor.claim(jobs[0]), retry_in=3600)
    assert _statuses(jobs) == ["FAILED", "PENDING", "PENDING"]
    assert not _group(jobs).is_terminal
    retry = job_services.retry(failed.pk)
    executor.complete(executor.claim(retry))
    assert _statuses(jobs) == ["FAILED", "QUEUED", "PENDING"]


def test_a_sequence_runs_through_in_order(finished: SignalRecorder) -> None:
    jobs = _sequence()
    for job in jobs:
        assert finished() == []
        executor.complete(executor.claim(job))
    group = _group(jobs)
    assert (group.status, group.finished_at is not None) == (GroupStatus.COMPLETED, True)
    assert finished("group_id", "status", "tenant", "round") == [(group.pk, "COMPLETED", "default", 1)]


@pytest.mark.parametrize(
    ("on_failure", "rest", "status"),
    [
        ("stop", ["CANCELLED", "CANCELLED"], "PARTIAL"),
        ("skip", ["SKIPPED", "SKIPPED"], "PARTIAL"),
        ("continue", ["QUEUED", "PENDING"], "RUNNING"),
    ],
)
def test_a_failed_place_does_to_the_rest_what_the_group_says(on_failure: str, rest: list[str], status: str) -> None:
    jobs = _sequence(on_failure=on_failure)
    executor.fail(executor.claim(jobs[0]))
    assert _statuses(jobs) == ["FAILED", *rest]
    assert _group(jobs).status == status
    if on_failure != "continue":
        assert [event.reason for event in list_events(jobs[2])] == ["predecessor failed"]
        assert not hasattr(jobs[2], "run")


def test_a_cancelled_place_ends_the_rest_and_says_so() -> None:
    jobs = _sequence()
    job_services.cancel(jobs[0].pk)
    assert _statuses(jobs) == ["CANCELLED", "CANCELLED", "CANCELLED"]
    assert Job.objects.get(pk=jobs[2].pk).status_reason == "predecessor cancelled"
    assert _group(jobs).status == GroupStatus.CANCELLED


def test_a_running_place_that_obeys_a_cancel_ends_the_rest() -> None:
    jobs = _sequence()
    running = executor.claim(jobs[0])
    job_services.cancel(running.pk)
    assert _statuses(jobs) == ["RUNNING", "PENDING", "PENDING"]
    assert running.lease_token is not None
    finish.stop(running.pk, running.lease_token, actor=executor.WORKER)
    assert _statuses(jobs) == ["CANCELLED", "CANCELLED", "CANCELLED"]


def test_an_expired_place_ends_the_rest_like_any_failure() -> None:
    jobs = _sequence()
    running = executor.claim(jobs[0])
    over = (Cause.LEASE_EXPIRED, "lease expired")
    finish.expire([running], cause=over[0], error=over[1], describe=lambda _: {}, retry_in=lambda _: None)
    assert _statuses(jobs) == ["FAILED", "CANCELLED", "CANCELLED"]


def test_a_sequence_that_goes_on_after_failures_is_partial() -> None:
    jobs = _sequence(on_failure="continue")
    executor.fail(executor.claim(jobs[0]))
    executor.complete(executor.claim(jobs[1]))
    executor.fail(executor.claim(jobs[2]))
    assert _group(jobs).status == GroupStatus.PARTIAL


def test_a_group_whose_members_all_failed_has_failed() -> None:
    jobs = _sequence(places=2, on_failure="continue")
    for job in jobs:
        executor.fail(executor.claim(job))
    assert _group(jobs).status == GroupStatus.FAILED


def test_members_of_a_parallel_group_do_not_mind_each_other(finished: SignalRecorder) -> None:
    jobs = _parallel()
    executor.fail(executor.claim(jobs[0]))
    job_services.cancel(jobs[1].pk)
    assert _statuses(jobs) == ["FAILED", "CANCELLED", "QUEUED"]
    assert _group(jobs).status == GroupStatus.RUNNING
    executor.complete(executor.claim(jobs[2]))
    assert _group(jobs).status == GroupStatus.PARTIAL
    assert finished("status") == ["PARTIAL"]


def test_a_group_that_a_person_cancelled_is_cancelled_even_if_some_had_completed() -> None:
    jobs = _parallel(places=2)
    executor.complete(executor.claim(jobs[0]))
    JobGroup.objects.update(cancel_requested=True)
    job_services.cancel(jobs[1].pk)
    assert _group(jobs).status == GroupStatus.CANCELLED


@override_settings(JOBSCHEDULER={"GROUP_FAILURE_POLICY": "tests.groups.test_completion.AlwaysContinue"})
def test_the_policy_on_failure_can_be_replaced() -> None:
    jobs = _sequence(on_failure="stop")
    executor.fail(executor.claim(jobs[0]))
    assert _statuses(jobs) == ["FAILED", "QUEUED", "PENDING"]


def test_a_held_place_waits_for_the_person_who_holds_it() -> None:
    jobs = _sequence(places=2)
    Job.objects.filter(pk=jobs[1].pk).update(hold=True)
    with pytest.raises(WrongState, match="another member") as refusal:
        job_services.release(jobs[1].pk)
    assert refusal.value.status == Status.PENDING
    executor.complete(executor.claim(jobs[0]))
    assert _statuses(jobs) == ["COMPLETED", "PENDING"]
    assert job_services.release(jobs[1].pk).status == Status.QUEUED


def test_a_person_cannot_release_a_place_before_its_turn() -> None:
    jobs = _sequence()
    before = dump_tables()
    with pytest.raises(WrongState):
        job_services.release(jobs[2].pk)
    assert dump_tables() == before


def test_a_cancelled_place_further_on_leaves_those_before_it_alone() -> None:
    jobs = _sequence(on_failure="continue")
    job_services.cancel(jobs[1].pk)
    assert _statuses(jobs) == ["QUEUED", "CANCELLED", "PENDING"]
    executor.complete(executor.claim(jobs[0]))
    assert _statuses(jobs) == ["COMPLETED", "CANCELLED", "QUEUED"]


@pytest.mark.parametrize("verb", [job_services.retry, job_services.resume])
def test_a_retry_reopens_a_group_that_had_ended(verb: Any, finished: SignalRecorder) -> None:
    jobs = _sequence()
    failed = executor.fail(executor.claim(jobs[0]))
    retry = verb(failed.pk)
    group = _group(jobs)
    assert (group.status, group.round, group.finished_at) == (GroupStatus.RUNNING, 2, None)
    tails = list(group.jobs.latest_attempts().order_by("group_index"))
    assert [tail.status for tail in tails] == ["QUEUED", "PENDING", "PENDING"]
    assert [tail.retry_of_id for tail in tails] == [job.pk for job in jobs]
    assert tails[0] == retry
    for tail in tails:
        executor.complete(executor.claim(tail))
    assert _group(jobs).status == GroupStatus.COMPLETED
    assert finished("status", "round") == [("PARTIAL", 1), ("COMPLETED", 2)]


def test_a_place_that_is_brought_back_says_so_in_the_trail_of_the_one_it_follows() -> None:
    jobs = _sequence(places=2)
    failed = executor.fail(executor.claim(jobs[0]))
    job_services.retry(failed.pk)
    follower = jobs[1].retried_by
    assert list_event_kinds(jobs[1]) == ["CANCELLED", "RETRY_CREATED"]
    assert list_events(jobs[1])[-1].data == {"retried_by": str(follower.pk)}
    assert list_event_kinds(follower) == ["SUBMITTED", "HELD"]


def test_what_ended_because_of_another_place_is_not_brought_back_by_this_one() -> None:
    jobs = _sequence()
    job_services.cancel(jobs[1].pk, reason="not that one")
    assert _statuses(jobs) == ["QUEUED", "CANCELLED", "CANCELLED"]
    failed = executor.fail(executor.claim(jobs[0]))
    job_services.retry(failed.pk)
    assert _tails(jobs) == ["QUEUED", "CANCELLED", "CANCELLED"]


def test_a_place_that_ended_well_and_is_retried_leaves_the_failure_behind_it_alone() -> None:
    jobs = _sequence()
    executor.complete(executor.claim(jobs[0]))
    executor.fail(executor.claim(jobs[1]))
    job_services.retry(jobs[0].pk)
    assert _tails(jobs) == ["QUEUED", "FAILED", "CANCELLED"]


def test_a_held_place_cannot_be_released_beside_a_later_one_that_is_at_work() -> None:
    group = JobGroupFactory.create(sequential=True, on_failure="continue")
    held = JobFactory.create(group=group, group_index=0, pending=True, hold=True)
    JobFactory.create(group=group, group_index=1, running=True)
    with pytest.raises(WrongState, match="another member"):
        job_services.release(held.pk)


def test_a_later_place_that_is_retried_waits_for_an_earlier_one_that_is_live_again() -> None:
    """Even in one lane: the failure that is retried lets its predecessor through."""
    group = JobGroupFactory.create(sequential=True, on_failure="continue")
    first = JobFactory.create(group=group, group_index=0, completed=True, target="book-1")
    second = JobFactory.create(group=group, group_index=1, failed=True, target="book-1")
    again = job_services.retry(first.pk)
    assert again.status == Status.QUEUED
    waiting = job_services.retry(second.pk)
    assert (waiting.status, waiting.holds_lane) == (Status.PENDING, False)
    assert list_event_kinds(waiting) == ["SUBMITTED", "HELD"]
    executor.complete(executor.claim(again))
    executor.complete(executor.claim(waiting))
    group.refresh_from_db()
    assert group.status == GroupStatus.COMPLETED


def test_a_group_has_ended_only_when_its_last_member_has() -> None:
    jobs = _parallel(places=4)
    outcomes = [executor.complete, executor.fail, executor.complete, executor.complete]
    for job, end in zip(jobs, outcomes, strict=True):
        assert not _group(jobs).is_terminal
        end(executor.claim(job))
    assert _group(jobs).is_terminal
    assert set(_statuses(jobs)) <= TERMINAL


def test_the_end_of_a_member_and_of_its_group_are_one_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the group's end cannot be written, the member did not end."""
    jobs = _parallel(places=1)
    running = executor.claim(jobs[0])

    def refuse(group: JobGroup) -> GroupStatus:
        raise DatabaseError("disk full")

    monkeypatch.setattr("jobs.engine.groups._final_status", refuse)
    before = dump_tables()
    with pytest.raises(DatabaseError):
        executor.finish(running, Failed(error="boom", reason="boom"))
    assert dump_tables() == before
