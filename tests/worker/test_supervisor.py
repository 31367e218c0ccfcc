"""A supervisor that is killed, alone or with its processes: no job waits for a lease, and no process is left."""

from __future__ import annotations

import os
import signal
from datetime import timedelta

from django.utils import timezone

from jobs.engine.worker import WorkerLoop, WorkerOptions
from jobs.engine.worker import worker as worker_module
from jobs.engine.worker.registration import Registration
from jobs.models import LeaseKind, Worker
from jobs.services import jobs as job_services
from jobs.states import Status
from tests.factories import LeaseFactory
from tests.packaging.processes import left_over
from tests.support.product import run_product
from tests.support.snapshots import list_event_kinds
from tests.support.worker_processes import (
    LONG_LEASE_SETTINGS,
    MANAGE,
    Fleet,
    get_job,
    get_retry,
    wait_for_status,
    wait_until,
)


def test_a_worker_whose_supervisor_was_killed_hands_back_its_job_and_no_process_is_left(fleet: Fleet) -> None:
    """The kernel sends the worker a signal for each thread of the supervisor: together they are one stop."""
    held = job_services.enqueue("sample.sleepy", {"seconds": 600})
    with run_product(fleet) as product:
        wait_for_status(held.pk, Status.RUNNING, fleet=fleet)
        product.process.kill()
        product.process.wait()
        wait_until(lambda: not left_over(product.mark), what=lambda: product.output)
    assert product.output.count("shutdown begun") == 1
    assert "shutdown finished, 0 jobs left running" in product.output
    handed_back = get_job(held.pk)
    assert (handed_back.status, handed_back.attempt) == (Status.QUEUED, 1)
    assert list_event_kinds(handed_back) == ["SUBMITTED", "RUNNING", "HANDED_BACK"]


def test_signals_that_a_dying_parent_causes_one_after_the_other_are_one_stop(fleet: Fleet) -> None:
    """The thread that started the worker ends, then the rest of the parent: the kernel sends a signal for both."""
    held = job_services.enqueue("sample.sleepy", {"seconds": 600})
    gate = fleet.home / "gate"
    with run_product(fleet, "-c", DYING_PARENT, str(MANAGE), str(gate)) as parent:
        wait_for_status(held.pk, Status.RUNNING, fleet=fleet)
        gate.touch()
        wait_until(lambda: not left_over(parent.mark), what=lambda: parent.output)
    assert (get_job(held.pk).status, get_job(held.pk).attempt) == (Status.QUEUED, 1)


DYING_PARENT = """
import os, pathlib, signal, sys, threading, time
sys.argv = sys.argv[1:]
from jobs.management.commands.runscheduler import Child

def start():
    Child("worker", "worker")
    while not pathlib.Path(sys.argv[1]).exists():
        time.sleep(0.01)

thread = threading.Thread(target=start)
thread.start()
thread.join()
time.sleep(0.2)  # two signals at the same moment would arrive as one
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_stop_that_reaches_supervisor_and_worker_at_once_is_one_stop(fleet: Fleet) -> None:
    """As systemd stops all processes of a unit: the supervisor also passes its signal on."""
    held = job_services.enqueue("sample.sleepy", {"seconds": 600})
    with run_product(fleet, str(MANAGE), "runscheduler", "--port=0", "--name=main") as product:
        wait_for_status(held.pk, Status.RUNNING, fleet=fleet)
        assert Worker.objects.get().name == "main"
        for pid in [int(line.partition(":")[0]) for line in left_over(product.mark)]:
            os.kill(pid, signal.SIGTERM)
        assert product.process.wait() == 0, product.output
        assert left_over(product.mark) == []
    assert get_job(held.pk).status == Status.QUEUED


def test_after_a_kill_of_all_its_processes_the_product_goes_on_at_once(fleet: Fleet) -> None:
    """With the default limit of one job, the killed job and a killed direct call would stop the queue for a lease."""
    settings = {**LONG_LEASE_SETTINGS, "LEASE_SEC": 600, "GRACE_SEC": 600, "LIMITS": {"global": 1}}
    lost = job_services.enqueue("sample.long_once", {"seconds": 600})
    with run_product(fleet, settings=settings) as product:
        wait_until(lambda: fleet.ledger.read_job_lines(lost.pk, "start"), what=lambda: product.output)
        killed = Worker.objects.get()
        product.kill()
    call = LeaseFactory.create(
        kind=LeaseKind.DIRECT,
        granted_at=timezone.now(),
        expires_at=timezone.now() + timedelta(hours=1),
        process=killed.identity.slot_owner(0),
    )
    with run_product(fleet, settings=settings) as product:
        wait_for_status(lost.pk, Status.FAILED, fleet=fleet)
        wait_for_status(get_retry(lost.pk).pk, Status.COMPLETED, fleet=fleet)
        assert "is recovered: Scheduler crash recovery" in product.output
    call.refresh_from_db()
    assert get_job(lost.pk).run.error == call.outcome == "Scheduler crash recovery"
    assert [worker.name for worker in Worker.objects.all()] == [f"{killed.host}-1"] * 2


def test_con_003_unit_signals_in_quick_succession_are_one_stop_and_a_later_one_ends_at_once() -> None:
    worker = WorkerLoop(Registration(WorkerOptions()))
    worker.stop()
    worker.stop()
    assert not worker._must_exit_now
    assert worker._stop_requested_at is not None
    worker._stop_requested_at -= 2 * worker_module.REPEAT_SEC
    worker.stop()
    assert worker._must_exit_now
