"""kill -9: another worker of the host sees that the process is gone, recovers its jobs at once, and runs the retry."""

from __future__ import annotations

import pytest

from jobs.models import Job, Worker
from jobs.services import jobs as job_services
from jobs.states import Cause, EventKind, Status
from tests.support.worker_processes import (
    FAST_SETTINGS,
    Fleet,
    WorkerProcess,
    get_event,
    get_job,
    get_retry,
    wait_for_status,
    wait_until,
)

PATIENT = {**FAST_SETTINGS, "LEASE_SEC": 600, "GRACE_SEC": 600}  # longer than any test: no lease runs out


@pytest.mark.parametrize("row", ["kept", "deleted"])
def test_a_killed_worker_s_job_is_recovered_retried_and_completed(fleet: Fleet, row: str) -> None:
    doomed = fleet.start("--name=doomed", "--no-housekeeping", settings=PATIENT)
    first = job_services.enqueue("sample.long_once", {"seconds": 600})
    wait_until(lambda: fleet.ledger.read_job_lines(first.pk, "start"))
    fleet.start("--name=heir", settings=PATIENT)
    if row == "deleted":
        Worker.objects.filter(name="doomed").delete()
    doomed.kill()
    require_recovery(fleet, first, doomed)


@pytest.mark.parametrize("names", [("phoenix", "phoenix"), ("one", "two")], ids=["same name", "another name"])
def test_a_worker_recovers_at_its_start_what_a_killed_process_held(fleet: Fleet, names: tuple[str, str]) -> None:
    former = fleet.start(f"--name={names[0]}", settings=PATIENT)
    first = job_services.enqueue("sample.long_once", {"seconds": 600})
    wait_until(lambda: fleet.ledger.read_job_lines(first.pk, "start"))
    former.kill()
    fleet.start(f"--name={names[1]}", "--no-housekeeping", settings=PATIENT)
    require_recovery(fleet, first, former)


def require_recovery(fleet: Fleet, first: Job, killed: WorkerProcess) -> None:
    wait_for_status(first.pk, Status.FAILED, fleet=fleet)
    wait_for_status(get_retry(first.pk).pk, Status.COMPLETED, fleet=fleet)
    ended = get_event(first.pk, EventKind.FAILED)
    assert ended.data["cause"] == Cause.CRASH_RECOVERY
    assert ended.data["pid"] == killed.pid
    assert (get_job(first.pk).run.status, get_job(first.pk).run.error) == (Status.FAILED, "Scheduler crash recovery")
    assert [call.attempt for call in fleet.ledger.list_calls()] == [1, 2]
