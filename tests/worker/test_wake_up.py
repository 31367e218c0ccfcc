"""Idle workers learn of what became ready from those who made it so; the fallback poll is too rare to explain it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

from jobs import services, targets
from jobs.models import Job
from jobs.states import EventKind, Status
from tests.worker.harness import STEADY, Fleet, await_status, database_now, event

SOON_SEC = 6.0  # less than the fallback poll of one that listens


def test_a_job_starts_at_once_or_when_its_time_has_come(fleet: Fleet) -> None:
    fleet.start(settings=STEADY)
    for target in (None, "book-1"):
        made = services.enqueue("sample.noop", target=target)
        await_status(made.pk, Status.COMPLETED, fleet=fleet)
        assert waited(made) < SOON_SEC
    due = database_now() + timedelta(seconds=1)
    made = services.enqueue("sample.noop", not_before=due)
    await_status(made.pk, Status.COMPLETED, fleet=fleet)
    late = (event(made.pk, EventKind.RUNNING).at - due).total_seconds()
    assert 0 <= late < SOON_SEC


OPENERS: dict[str, Callable[[Job], object]] = {
    "cancel": lambda head: services.cancel(head.pk),
    "resume": lambda head: services.resume(head.pk),
    "unpause": lambda head: (services.resume(head.pk), targets.unpause("unpause")),
}


def test_a_lane_that_a_person_opens_goes_on_at_once(fleet: Fleet) -> None:
    lanes = {way: [services.enqueue("sample.noop", target=way) for _ in range(2)] for way in OPENERS}
    for head, _ in lanes.values():
        services.pause(head.pk)
    targets.pause("unpause")
    fleet.start(settings=STEADY)
    for way, (head, behind) in lanes.items():
        await_status(services.enqueue("sample.noop").pk, Status.COMPLETED, fleet=fleet)
        opened_at = database_now()
        OPENERS[way](head)
        await_status(behind.pk, Status.COMPLETED, fleet=fleet)
        assert (event(behind.pk, EventKind.RUNNING).at - opened_at).total_seconds() < SOON_SEC, way


def test_room_in_a_limit_is_noticed_by_a_worker_of_other_types(fleet: Fleet) -> None:
    """Nobody announces it: who was refused looks again every POLL_SEC."""
    settings = {**STEADY, "LIMITS": {"global": 1}, "POLL_SEC": 0.5}
    fleet.start("--types=sample.sleepy", settings=settings)
    fleet.start("--types=sample.noop", settings=settings)
    first = services.enqueue("sample.sleepy", {"seconds": 1})
    await_status(first.pk, Status.RUNNING, fleet=fleet)
    second = services.enqueue("sample.noop")
    await_status(second.pk, Status.COMPLETED, fleet=fleet)
    waited_for = event(second.pk, EventKind.RUNNING).at - event(first.pk, EventKind.COMPLETED).at
    assert 0 <= waited_for.total_seconds() < 0.5 + SOON_SEC


def waited(made: Job) -> float:
    return float((event(made.pk, EventKind.RUNNING).at - event(made.pk, EventKind.SUBMITTED).at).total_seconds())
