"""A heartbeat that comes too late does not renew the lease of a handler that was stopped for it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from django.db import connection

from jobs import db
from jobs.engine.claim import Claimer, ServedJobs
from jobs.engine.worker.heartbeat import Heartbeat
from jobs.engine.worker.running_jobs import RunningJob, RunningJobs, make_context
from jobs.models import ConcurrencyLimit, Job
from jobs.services import jobs as job_services
from jobs.states import EventKind, Status
from tests.support.locks import is_lock_awaited
from tests.support.worker_processes import Fleet, get_event, wait_for_status, wait_until

LOCK = "BEGIN IMMEDIATE" if connection.vendor == "sqlite" else "LOCK TABLE jobscheduler_job IN ACCESS EXCLUSIVE MODE"
STOPPING = "may run out before they are renewed; stopping their handlers"


def test_after_an_outage_the_job_of_a_stopped_handler_is_recovered_though_the_handler_goes_on(
    fleet: Fleet, tmp_path: Path
) -> None:
    """The handler ignores its stop request, and its worker lives: its heartbeats must not hold the job."""
    worker = fleet.start("--concurrency=2")
    held = job_services.enqueue("sample.deaf", {"gate": str(tmp_path / "gate")}, max_retries=0)
    wait_until(lambda: fleet.ledger.read_job_lines(held.pk, "start"), what=fleet.logs)
    with hold_lock():
        wait_until(lambda: STOPPING in worker.output, what=fleet.logs)
    wait_for_status(held.pk, Status.FAILED, fleet=fleet)
    assert get_event(held.pk, EventKind.FAILED).reason == "lease expired"
    assert not fleet.ledger.read_job_lines(held.pk, "end")
    (tmp_path / "gate").touch()
    wait_until(lambda: "were not recorded: their leases were lost" in worker.output, what=fleet.logs)


@pytest.mark.parametrize("is_stopped", [True, False])
def test_a_renewal_that_the_database_executes_late_leaves_the_lease_of_a_stopped_handler_as_it_is(
    transactional_db: None, is_stopped: bool
) -> None:
    """It was sent in time, and waited for a lock until after the handler's deadline."""
    ConcurrencyLimit.objects.all().delete()
    made = job_services.enqueue("sample.noop")
    [claim] = Claimer("one", ServedJobs(("sample.noop",)), "one").claim([1], lease_sec=600)
    before = Job.objects.get(pk=made.pk).lease_expires_at
    deadline = time.monotonic() + (1.0 if is_stopped else 600.0)
    job = RunningJob(claim, make_context(claim), deadline)
    with hold_lock():
        heartbeat = threading.Thread(target=beat, args=[job])
        heartbeat.start()
        wait_until(is_lock_awaited)
        wait_until(lambda: not is_stopped or time.monotonic() > deadline)
    heartbeat.join()
    assert (Job.objects.get(pk=made.pk).lease_expires_at == before) is is_stopped


def test_the_lease_of_a_job_that_waits_to_be_recorded_is_renewed_however_late(transactional_db: None) -> None:
    """Its handler has returned: the result must not be lost to a recovery."""
    ConcurrencyLimit.objects.all().delete()
    made = job_services.enqueue("sample.noop")
    [claim] = Claimer("one", ServedJobs(("sample.noop",)), "one").claim([1], lease_sec=600)
    before = Job.objects.get(pk=made.pk).lease_expires_at
    beat(RunningJob(claim, make_context(claim), deadline=time.monotonic() - 1, returned=True))
    assert Job.objects.get(pk=made.pk).lease_expires_at != before


def beat(job: RunningJob) -> None:
    """Send one heartbeat, on the connection of the calling thread."""
    running = RunningJobs()
    running.add(job)
    try:
        Heartbeat(running)._beat()
    finally:
        if threading.current_thread() is not threading.main_thread():
            db.connection().close()


@contextmanager
def hold_lock() -> Iterator[None]:
    """Let no other connection write jobs; PostgreSQL does not let them read either."""
    with closing(connection.copy()) as holder:
        if connection.vendor != "sqlite":
            holder.set_autocommit(False)
        with holder.cursor() as cursor:
            cursor.execute(LOCK)
            yield
            cursor.execute("ROLLBACK")
