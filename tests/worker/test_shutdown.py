"""SIGTERM: stop claiming, keep beating, wait, ask, hand back; another one, a second later, ends at once."""

from __future__ import annotations

import random
import time
from uuid import UUID

import pytest

from jobs.engine.worker.worker import REPEAT_SEC
from jobs.models import Worker, WorkerState
from jobs.services import jobs as job_services
from jobs.states import EventKind, Status
from tests.chaos import shutdowns
from tests.support.snapshots import list_event_kinds
from tests.support.worker_processes import (
    FAST_SETTINGS,
    LONG_LEASE_SETTINGS,
    Fleet,
    WorkerProcess,
    get_event,
    get_job,
    is_running,
    wait_for_status,
    wait_until,
)

LEASE = FAST_SETTINGS["LEASE_SEC"]
HOUR_SEC = 3600


@pytest.mark.timeout(240)
def test_sigterm_at_random_moments_costs_no_job_an_attempt(fleet: Fleet, chance: random.Random) -> None:
    verdict = shutdowns.run(fleet, chance, rounds=5)
    print(verdict)
    assert not verdict.broken, str(verdict)


def test_con_003_integration_a_job_that_stops_is_handed_back_and_goes_on_elsewhere_in_the_same_run(
    fleet: Fleet,
) -> None:
    leaving = fleet.start("--name=leaving", settings={**LONG_LEASE_SETTINGS, "SHUTDOWN_GRACE_SEC": 0.2})
    counted = job_services.enqueue("sample.count", {"upto": 80, "pace": 0.02}, target="book-1")
    wait_until(lambda: len(fleet.ledger.read_job_lines(counted.pk, "step")) >= 3)
    leaving.terminate()
    assert leaving.wait_for_end() == 0

    back = get_job(counted.pk)
    assert (back.status, back.attempt, back.run.status, back.holds_lane) == (Status.QUEUED, 1, Status.RUNNING, True)
    assert back.checkpoint == len(fleet.ledger.read_job_lines(counted.pk, "step"))
    gone = Worker.objects.get(name="leaving")
    assert (gone.state, gone.busy) == (WorkerState.STOPPED, 0)
    fleet.start("--name=next", settings=LONG_LEASE_SETTINGS)
    done = wait_for_status(counted.pk, Status.COMPLETED, fleet=fleet)
    assert [line["number"] for line in fleet.ledger.read_job_lines(counted.pk, "step")] == list(range(1, 81))
    assert list_event_kinds(done) == ["SUBMITTED", "RUNNING", "HANDED_BACK", "RUNNING", "COMPLETED"]


def test_a_job_whose_process_is_long_in_coming_is_handed_back_and_never_begun(fleet: Fleet) -> None:
    hasty = {**LONG_LEASE_SETTINGS, "SHUTDOWN_GRACE_SEC": 0.2}
    leaving = fleet.start("--executor=process", settings=hasty, sabotage="delay_forkserver")
    made = job_services.enqueue("sample.noop")
    wait_for_status(made.pk, Status.RUNNING, fleet=fleet)
    leaving.terminate()
    assert leaving.wait_for_end() == 0
    assert (get_job(made.pk).status, get_job(made.pk).attempt, fleet.ledger.read_job_lines(made.pk, "start")) == (
        Status.QUEUED,
        1,
        [],
    )
    fleet.start("--executor=process", settings=LONG_LEASE_SETTINGS)
    wait_for_status(made.pk, Status.COMPLETED, fleet=fleet)
    assert len(fleet.ledger.read_job_lines(made.pk, "start")) == 1


def test_con_003_integration_heartbeats_go_on_until_the_last_handler_has_ended(fleet: Fleet) -> None:
    leaving, held = leave_for_longer_than_a_lease(fleet)

    done = wait_for_status(held, Status.COMPLETED, Status.FAILED, fleet=fleet)

    assert (done.status, done.run.worker) == (Status.COMPLETED, "leaving")
    assert leaving.wait_for_end() == 0


def test_a_worker_whose_heartbeats_stop_with_the_signal_loses_its_job(fleet: Fleet) -> None:
    _, held = leave_for_longer_than_a_lease(fleet, sabotage="stop_heartbeats_early")
    assert wait_for_status(held, Status.COMPLETED, Status.FAILED, fleet=fleet).status == Status.FAILED


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_con_003_error_a_second_signal_ends_at_once_and_what_was_running_is_recovered(
    fleet: Fleet, executor: str
) -> None:
    settings = {**LONG_LEASE_SETTINGS, "SHUTDOWN_GRACE_SEC": HOUR_SEC}  # the lease does not expire meanwhile
    leaving = fleet.start("--name=leaving", "--no-housekeeping", f"--executor={executor}", settings=settings)
    fleet.start("--name=sweeper", "--types=sample.add", settings=settings)
    held = job_services.enqueue("sample.sleepy", {"seconds": HOUR_SEC}, max_retries=0)
    wait_until(lambda: fleet.ledger.read_job_lines(held.pk, "start"))
    leaving.terminate()
    wait_until(lambda: "shutdown begun" in leaving.output)
    time.sleep(1.1 * REPEAT_SEC)  # signals within this time are one
    leaving.terminate()
    assert leaving.wait_for_end() == 0
    wait_for_status(held.pk, Status.FAILED, fleet=fleet)
    assert not [line for line in fleet.ledger.read_job_lines(held.pk, "start") if is_running(line["pid"])]
    assert get_event(held.pk, EventKind.FAILED).reason == "Scheduler crash recovery"


def leave_for_longer_than_a_lease(fleet: Fleet, sabotage: str = "") -> tuple[WorkerProcess, UUID]:
    settings = {**FAST_SETTINGS, "SHUTDOWN_GRACE_SEC": 10 * LEASE}
    leaving = fleet.start("--name=leaving", "--no-housekeeping", settings=settings, sabotage=sabotage)
    fleet.start("--name=sweeper", "--types=sample.add")
    held = job_services.enqueue("sample.sleepy", {"seconds": 2 * LEASE}, max_retries=0)
    wait_until(lambda: fleet.ledger.read_job_lines(held.pk, "start"))
    leaving.terminate()
    return leaving, held.pk
