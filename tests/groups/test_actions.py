"""Cancelling and retrying whole groups: by Python, command, API and console, always the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from jobs.engine import finish
from jobs.errors import NotFound, WrongState
from jobs.models import GroupStatus, Job, JobGroup
from jobs.services import groups
from jobs.services import jobs as job_services
from jobs.signals import group_finished
from jobs.states import Status
from tests.support import executor
from tests.support.signals import SignalRecorder
from tests.support.snapshots import dump_tables

pytestmark = pytest.mark.django_db

ITEM = {"job_type": "sample.noop", "max_retries": 0}


@pytest.fixture
def finished() -> Iterator[SignalRecorder]:
    received = SignalRecorder(group_finished)
    yield received
    received.disconnect()


def sequence(places: int = 3, **options: Any) -> JobGroup:
    return groups.create([ITEM] * places, mode="sequential", **options)


def place(made: JobGroup, number: int) -> Job:
    return groups.get_latest_attempts(made.pk)[number]


def statuses(made: JobGroup) -> list[str]:
    return list(groups.get_latest_attempts(made.pk).values_list("status", flat=True))


def status(made: JobGroup) -> str:
    return JobGroup.objects.get(pk=made.pk).status


def test_cancelling_ends_what_waits_and_asks_what_runs(finished: SignalRecorder) -> None:
    made = groups.create([ITEM, {**ITEM, "hold": True}, ITEM, ITEM])
    running = executor.claim(place(made, 0))
    job_services.pause(place(made, 3).pk)
    groups.cancel(made.pk, reason="not needed")
    assert statuses(made) == ["RUNNING", "CANCELLED", "CANCELLED", "CANCELLED"]
    assert Job.objects.get(pk=running.pk).cancel_requested
    assert (status(made), finished()) == (GroupStatus.RUNNING, [])
    assert running.lease_token is not None
    finish.stop(running.pk, running.lease_token, actor=executor.WORKER)
    assert status(made) == GroupStatus.CANCELLED
    assert finished("group_id", "round") == [(made.pk, 1)]
    assert {job.status_reason for job in groups.get_latest_attempts(made.pk)} == {"not needed"}


def test_a_group_that_only_waited_is_cancelled_at_once_and_says_so_once(finished: SignalRecorder) -> None:
    made = sequence()
    assert groups.cancel(made.pk).status == GroupStatus.CANCELLED
    assert statuses(made) == ["CANCELLED"] * 3
    assert len(finished()) == 1


@pytest.mark.parametrize("on_failure", ["stop", "continue", "skip"])
def test_cancelling_a_sequence_lets_no_place_go(on_failure: str) -> None:
    made = sequence(on_failure=on_failure)
    running = executor.claim(place(made, 0))
    groups.cancel(made.pk)
    executor.complete(running)
    assert statuses(made) == ["COMPLETED", "CANCELLED", "CANCELLED"]
    assert status(made) == GroupStatus.CANCELLED


def test_cancelling_twice_changes_nothing_more() -> None:
    made = sequence()
    executor.claim(place(made, 0))
    groups.cancel(made.pk)
    before = dump_tables()
    groups.cancel(made.pk)
    assert dump_tables() == before


def test_an_ended_group_cannot_be_cancelled() -> None:
    made = sequence(places=1)
    executor.complete(executor.claim(place(made, 0)))
    before = dump_tables()
    with pytest.raises(WrongState) as refusal:
        groups.cancel(made.pk)
    assert (refusal.value.status, refusal.value.allowed) == (GroupStatus.COMPLETED, ["retry"])
    assert dump_tables() == before


def test_a_retry_runs_what_did_not_end_well_in_order(finished: SignalRecorder) -> None:
    made = sequence()
    executor.complete(executor.claim(place(made, 0)))
    executor.fail(executor.claim(place(made, 1)))
    assert (status(made), statuses(made)) == (GroupStatus.PARTIAL, ["COMPLETED", "FAILED", "CANCELLED"])
    again = groups.retry(made.pk, reason="disk was full")
    assert (again.status, again.round) == (GroupStatus.RUNNING, 2)
    assert statuses(made) == ["COMPLETED", "QUEUED", "PENDING"]
    executor.complete(executor.claim(place(made, 1)))
    executor.complete(executor.claim(place(made, 2)))
    assert status(made) == GroupStatus.COMPLETED
    assert finished("round") == [1, 2]


@pytest.mark.parametrize(("on_failure", "ended"), [("continue", "FAILED"), ("skip", "SKIPPED"), ("stop", "CANCELLED")])
def test_after_a_retry_the_places_take_turns_whatever_had_ended_them(on_failure: str, ended: str) -> None:
    made = sequence(on_failure=on_failure)
    executor.fail(executor.claim(place(made, 0)))
    while on_failure == "continue" and (
        waiting := groups.get_latest_attempts(made.pk).filter(status=Status.QUEUED).first()
    ):
        executor.fail(executor.claim(waiting))
    assert statuses(made) == ["FAILED", ended, ended]
    groups.retry(made.pk)
    for number in range(3):
        assert statuses(made) == ["COMPLETED"] * number + ["QUEUED"] + ["PENDING"] * (2 - number)
        executor.complete(executor.claim(place(made, number)))
    assert status(made) == GroupStatus.COMPLETED


def test_a_cancelled_group_can_be_run_after_all() -> None:
    made = groups.create([ITEM, ITEM])
    groups.cancel(made.pk)
    assert groups.retry(made.pk).status == GroupStatus.RUNNING
    for job in groups.get_latest_attempts(made.pk):
        executor.complete(executor.claim(job))
    assert status(made) == GroupStatus.COMPLETED


def test_what_still_runs_or_ended_well_is_left_alone_by_a_retry() -> None:
    made = groups.create([ITEM, ITEM, ITEM])
    executor.complete(executor.claim(place(made, 0)))
    executor.fail(executor.claim(place(made, 1)))
    executor.claim(place(made, 2))
    groups.retry(made.pk)
    assert statuses(made) == ["COMPLETED", "QUEUED", "RUNNING"]
    assert Job.objects.filter(group=made).count() == 4


@pytest.mark.parametrize("ended", [False, True])
def test_with_nothing_to_run_again_a_retry_is_refused(ended: bool) -> None:
    made = sequence(places=1)
    if ended:
        executor.complete(executor.claim(place(made, 0)))
    before = dump_tables()
    with pytest.raises(WrongState):
        groups.retry(made.pk)
    assert dump_tables() == before


@pytest.mark.parametrize("unknown", ["nonsense", "01a1e326-2d3f-7874-ad8c-79793630013e", ""])
def test_a_group_that_is_not_there_is_not_found(unknown: str) -> None:
    for verb in (groups.cancel, groups.retry, groups.get):
        with pytest.raises(NotFound):
            verb(unknown)
    made = sequence(tenant="acme")
    with pytest.raises(NotFound):
        groups.cancel(made.pk, tenant="default")
