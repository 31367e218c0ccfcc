"""Handlers and strangers that hold on to something for several leases: no other job may lose its lease by that."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from django.db import connection, transaction

from jobs.models import Job, JobEvent
from jobs.services import jobs as job_services
from jobs.states import EventKind, Status
from tests.support.worker_processes import FAST_SETTINGS, WAIT_SEC, Fleet, get_job, wait_for_status, wait_until

LEASE = FAST_SETTINGS["LEASE_SEC"]


def test_no_lease_is_lost_while_a_handler_holds_the_interpreter_in_c(fleet: Fleet) -> None:
    fleet.start("--executor=process", "--concurrency=3")
    hog = job_services.enqueue("sample.hog", {"seconds": 3 * LEASE})
    others = [job_services.enqueue("sample.sleepy", {"seconds": 3 * LEASE}) for _ in range(2)]
    all_complete_in_one_stretch(fleet, hog, *others)


def test_no_lease_is_lost_while_an_async_handler_blocks_its_event_loop(fleet: Fleet) -> None:
    fleet.start("--concurrency=4")
    blocker = job_services.enqueue("sample.block_loop", {"seconds": 3 * LEASE})
    others = [
        job_services.enqueue(kind, {"seconds": 3 * LEASE}) for kind in ("sample.nap", "sample.nap", "sample.sleepy")
    ]
    all_complete_in_one_stretch(fleet, blocker, *others)


@pytest.mark.pg_only
def test_a_row_that_somebody_locks_costs_no_other_job_its_lease(fleet: Fleet) -> None:
    fleet.start("--name=holder", "--concurrency=3", "--no-housekeeping")
    fleet.start("--name=sweeper", "--types=sample.add")
    locked = job_services.enqueue("sample.long_once", {"seconds": 600})
    others = [job_services.enqueue(kind, {"seconds": 5 * LEASE}) for kind in ("sample.nap", "sample.sleepy")]
    wait_until(lambda: len(fleet.ledger.read_lines("start")) == 3)

    with locked_by_a_stranger(locked):
        all_complete_in_one_stretch(fleet, *others)
        assert get_job(locked.pk).status == Status.RUNNING

    wait_for_status(locked.pk, Status.FAILED, fleet=fleet)
    assert "may run out before they are renewed" in fleet.workers[0].output, "its own handler was stopped in time"


def all_complete_in_one_stretch(fleet: Fleet, *jobs: Job) -> None:
    for job in jobs:
        wait_for_status(job.pk, Status.COMPLETED, Status.FAILED, seconds=5 * LEASE + WAIT_SEC, fleet=fleet)
    expired = JobEvent.objects.filter(kind=EventKind.FAILED, job_id__in=[job.pk for job in jobs])
    assert not expired.exists(), [job.data for job in expired]
    assert all(len(fleet.ledger.read_job_lines(job.pk, "start")) == 1 for job in jobs)


@contextmanager
def locked_by_a_stranger(held: Job) -> Iterator[None]:
    """A session of its own, as an operator's console would be."""
    locked, enough = threading.Event(), threading.Event()

    def hold() -> None:
        with transaction.atomic():
            Job.objects.select_for_update().get(pk=held.pk)
            locked.set()
            enough.wait()
        connection.close()

    stranger = threading.Thread(target=hold)
    stranger.start()
    assert locked.wait(WAIT_SEC)
    try:
        yield
    finally:
        enough.set()
        stranger.join()
