"""Idle workers learn of what became ready from those who made it so; the fallback poll is too rare to explain it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.db.backends.base.base import BaseDatabaseWrapper

from jobs import notifications
from jobs.models import Gate, Job
from jobs.services import jobs as job_services
from jobs.services import targets
from jobs.states import EventKind, Status
from tests.support.worker_processes import (
    LONG_LEASE_SETTINGS,
    Fleet,
    get_database_time,
    get_event,
    wait_for_status,
    wait_until,
)

SOON_SEC = 6.0  # less than the fallback poll of one that listens


def test_a_job_starts_at_once_or_when_its_time_has_come(fleet: Fleet) -> None:
    fleet.start(settings=LONG_LEASE_SETTINGS)
    for target in (None, "book-1"):
        made = job_services.enqueue("sample.noop", target=target)
        wait_for_status(made.pk, Status.COMPLETED, fleet=fleet)
        assert measure_wait(made) < SOON_SEC
    due = get_database_time() + timedelta(seconds=1)
    made = job_services.enqueue("sample.noop", not_before=due)
    wait_for_status(made.pk, Status.COMPLETED, fleet=fleet)
    late = (get_event(made.pk, EventKind.RUNNING).at - due).total_seconds()
    assert 0 <= late < SOON_SEC


OPENERS: dict[str, Callable[[Job], object]] = {
    "cancel": lambda head: job_services.cancel(head.pk),
    "resume": lambda head: job_services.resume(head.pk),
    "unpause": lambda head: (job_services.resume(head.pk), targets.unpause("unpause")),
}


def test_a_lane_that_a_person_opens_goes_on_at_once(fleet: Fleet) -> None:
    lanes = {way: [job_services.enqueue("sample.noop", target=way) for _ in range(2)] for way in OPENERS}
    for head, _ in lanes.values():
        job_services.pause(head.pk)
    targets.pause("unpause")
    fleet.start(settings=LONG_LEASE_SETTINGS)
    for way, (head, behind) in lanes.items():
        wait_for_status(job_services.enqueue("sample.noop").pk, Status.COMPLETED, fleet=fleet)
        opened_at = get_database_time()
        OPENERS[way](head)
        wait_for_status(behind.pk, Status.COMPLETED, fleet=fleet)
        assert (get_event(behind.pk, EventKind.RUNNING).at - opened_at).total_seconds() < SOON_SEC, way


def test_room_in_a_limit_is_noticed_by_a_worker_of_other_types(fleet: Fleet) -> None:
    """There is no notification for it: a worker without a claim polls every POLL_SEC."""
    settings = {**LONG_LEASE_SETTINGS, "LIMITS": {"global": 1}, "POLL_SEC": 0.5}
    fleet.start("--types=sample.sleepy", settings=settings)
    fleet.start("--types=sample.noop", settings=settings)
    first = job_services.enqueue("sample.sleepy", {"seconds": 1})
    wait_for_status(first.pk, Status.RUNNING, fleet=fleet)
    second = job_services.enqueue("sample.noop")
    wait_for_status(second.pk, Status.COMPLETED, fleet=fleet)
    waited_for = get_event(second.pk, EventKind.RUNNING).at - get_event(first.pk, EventKind.COMPLETED).at
    assert 0 <= waited_for.total_seconds() < 0.5 + SOON_SEC


@pytest.mark.parametrize("is_stopped", [False, True], ids=["serves other types", "is about to stop"])
def test_the_next_job_of_a_target_starts_elsewhere_if_this_worker_does_not_take_it(
    fleet: Fleet, is_stopped: bool
) -> None:
    """The fallback poll of the other worker comes after ten minutes."""
    settings = {**LONG_LEASE_SETTINGS, "POLL_SEC": 60, "SHUTDOWN_GRACE_SEC": 30}
    types = "--types=sample.sleepy,sample.noop" if is_stopped else "--types=sample.sleepy"
    first = job_services.enqueue("sample.sleepy", {"seconds": 2}, target="book-1")
    holder = fleet.start(types, "--no-housekeeping", settings=settings)
    wait_for_status(first.pk, Status.RUNNING, fleet=fleet)
    fleet.start("--types=sample.noop", "--no-housekeeping", settings=settings)
    wait_for_status(job_services.enqueue("sample.noop").pk, Status.COMPLETED, fleet=fleet)
    second = job_services.enqueue("sample.noop", target="book-1")
    if is_stopped:
        holder.signal(signal.SIGTERM)
    wait_for_status(first.pk, Status.COMPLETED, fleet=fleet)
    wait_for_status(second.pk, Status.COMPLETED, fleet=fleet)


@pytest.mark.sqlite_only
def test_on_sqlite_a_commit_of_another_process_wakes_an_idle_worker(fleet: Fleet) -> None:
    """Ready, behind a target, due in a moment; the fallback poll comes after ten minutes."""
    fleet.start("--no-housekeeping", settings={**LONG_LEASE_SETTINGS, "POLL_SEC": 600})
    wait_for_status(job_services.enqueue("sample.noop").pk, Status.COMPLETED, fleet=fleet)
    due = get_database_time() + timedelta(seconds=1)
    for fields in ({}, {"target": "book-1"}, {"target": "book-1"}, {"not_before": due}):
        made = job_services.enqueue("sample.noop", **fields)
        wait_for_status(made.pk, Status.COMPLETED, fleet=fleet)


@pytest.mark.pg_only
def test_a_job_that_somebody_had_in_hand_when_it_was_announced_is_not_forgotten(fleet: Fleet) -> None:
    """Nothing more is announced, and the fallback poll comes after ten minutes."""
    fleet.start("--no-housekeeping", settings={**LONG_LEASE_SETTINGS, "POLL_SEC": 60})
    wait_for_status(job_services.enqueue("sample.noop").pk, Status.COMPLETED, fleet=fleet)
    held = job_services.enqueue("sample.noop", not_before=get_database_time() + timedelta(hours=1))
    with transaction.atomic():
        Job.objects.select_for_update().filter(pk=held.pk).update(not_before=None, gate=Gate.READY)
    with closing(connection.copy()) as holder, transaction_on(holder) as cursor:
        cursor.execute("SELECT 1 FROM jobscheduler_job WHERE id = %s FOR UPDATE", [held.pk])
        announced_at = get_database_time()
        notifications.notify(notifications.READY)
        wait_until(lambda: looked_ahead_since(announced_at), what=fleet.logs)
    wait_for_status(held.pk, Status.COMPLETED, fleet=fleet)


@contextmanager
def transaction_on(holder: BaseDatabaseWrapper) -> Iterator[Any]:
    holder.set_autocommit(False)
    with holder.cursor() as cursor:
        yield cursor
    holder.rollback()


def looked_ahead_since(moment: datetime) -> bool:
    """Whether some worker has asked what comes next, and got its answer."""
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
            " AND state = 'idle' AND query LIKE '%%jobscheduler_lanemark%%' AND query_start > %s",
            [moment],
        )
        return bool(cursor.fetchone()[0])


def measure_wait(made: Job) -> float:
    return float(
        (get_event(made.pk, EventKind.RUNNING).at - get_event(made.pk, EventKind.SUBMITTED).at).total_seconds()
    )
