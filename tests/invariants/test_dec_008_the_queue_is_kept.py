"""DEC-008: the queue survives a restart in its order; what ran in a process that is gone has failed."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import PosixPath
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from jobs import process_identity
from jobs.engine.maintenance import recovery
from jobs.models import Job
from jobs.process_identity import Liveness, ProcessIdentity
from jobs.services import jobs as job_services
from jobs.states import Status
from jobs.time_text import format_time
from tests.factories import JobFactory
from tests.sample_app import job_types
from tests.support import executor
from tests.support.snapshots import dump_tables, list_events

TYPE = job_types.anything.name
ME = ProcessIdentity.current("worker-1")
GONE = replace(ME, started="1")  # a process with our pid that began at another time cannot live any more


def test_dec_008_unit_a_former_life_is_told_from_a_live_one() -> None:
    assert (ME.liveness(), GONE.liveness()) == (Liveness.ALIVE, Liveness.GONE)
    assert replace(ME, namespace="1").liveness() == Liveness.UNKNOWN
    assert ProcessIdentity.parse_owner(GONE.slot_owner(0)) == GONE


def test_dec_008_unit_a_process_that_proc_hides_is_not_taken_for_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE) as process:
        monkeypatch.setattr(process_identity, "Path", HiddenPath)
        neighbour = replace(ME, name="worker-2", pid=process.pid)
        assert neighbour.liveness() == Liveness.UNKNOWN
        process.communicate(b"")
    assert neighbour.liveness() == Liveness.GONE


class HiddenPath(PosixPath):
    """A path of a /proc that shows a process nothing but itself."""

    def read_text(self, *args: Any, **options: Any) -> str:
        if self.name == "stat" and self.parent.name != str(os.getpid()):
            raise FileNotFoundError(self)
        return super().read_text(*args, **options)


@pytest.mark.django_db(transaction=True)
def test_dec_008_integration_the_queue_and_its_order_survive() -> None:
    ids = job_services.enqueue_many([{"job_type": TYPE, "priority": n % 2} for n in range(6)])
    job_services.move(ids[4], to="top")
    lost = JobFactory.create(running=True, job_type=TYPE, lease_owner=GONE.slot_owner(0))
    before, times = list(Job.objects.queued().in_dispatch_order()), (lost.heartbeat_at, lost.lease_expires_at)
    connection.close()
    assert recovery.recover_dead_processes(ME) == 1
    waiting = Job.objects.queued().exclude(retry_of=lost)
    assert list(waiting.in_dispatch_order()) == before
    lost.refresh_from_db()
    assert (lost.status, lost.run.error) == (Status.FAILED, "Scheduler crash recovery")
    data = list_events(lost)[0].data or {}
    assert data["cause"] == "CRASH_RECOVERY"
    assert (data["last_beat_at"], data["lease_expires_at"]) == tuple(map(format_time, times))
    assert (lost.retried_by.status, lost.retried_by.attempt) == (Status.QUEUED, 2)
    assert executor.claim_next() == before[0]


@pytest.mark.django_db
@pytest.mark.parametrize(
    "owner",
    [
        ME,
        replace(GONE, host="elsewhere"),
        replace(GONE, name="worker-2", boot_id="another"),
        replace(GONE, namespace="1"),
    ],
    ids=["alive", "elsewhere", "of another boot", "in another namespace"],
)
def test_dec_008_error_what_is_not_proven_gone_is_left_alone(owner: ProcessIdentity) -> None:
    JobFactory.create(running=True, lease_owner=owner.slot_owner(0))
    before = dump_tables()
    assert recovery.recover_dead_processes(ME) == 0
    assert recovery.recover_dead_processes() == 0
    assert dump_tables() == before


@pytest.mark.django_db
@pytest.mark.parametrize("is_sweep", [False, True], ids=["the start of a worker", "a sweep"])
def test_dec_008_integration_a_process_that_is_gone_is_recovered_whatever_its_name(is_sweep: bool) -> None:
    lost = JobFactory.create(running=True, job_type=TYPE, lease_owner=replace(GONE, name="worker-2").slot_owner(0))
    assert (recovery.LeaseReaper().run_round() if is_sweep else recovery.recover_dead_processes(ME)) == 1
    lost.refresh_from_db()
    assert (lost.status, lost.run.error) == (Status.FAILED, "Scheduler crash recovery")


@pytest.mark.django_db
def test_dec_008_integration_of_a_process_that_is_gone_the_expired_lease_is_not_named() -> None:
    past = timezone.now() - timedelta(hours=1)
    lost = JobFactory.create(running=True, job_type=TYPE, lease_owner=GONE.slot_owner(0), lease_expires_at=past)
    assert recovery.LeaseReaper().run_round() == 1
    lost.refresh_from_db()
    assert (lost.status, lost.run.error) == (Status.FAILED, "Scheduler crash recovery")


@pytest.mark.django_db
def test_dec_008_integration_the_previous_boot_is_recovered_under_the_same_name() -> None:
    JobFactory.create(running=True, job_type=TYPE, lease_owner=replace(GONE, boot_id="another").slot_owner(0))
    assert (recovery.recover_dead_processes(), recovery.recover_dead_processes(ME)) == (0, 1)
