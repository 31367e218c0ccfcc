"""kill -9: what was running is recovered from its lease alone, and the retry completes in time."""

from __future__ import annotations

import pytest

from jobs.models import Worker
from jobs.services import jobs as job_services
from jobs.states import Cause, EventKind, Status
from tests.support.worker_processes import (
    FAST_SETTINGS,
    Fleet,
    get_database_time,
    get_event,
    get_job,
    get_retry,
    wait_for_status,
    wait_until,
)

RECOVERED_SEC = FAST_SETTINGS["LEASE_SEC"] + FAST_SETTINGS["GRACE_SEC"] + FAST_SETTINGS["RECOVERY_SEC"] + 1


@pytest.mark.parametrize("row", ["kept", "deleted"])
def test_a_killed_worker_s_job_is_recovered_retried_and_completed(fleet: Fleet, row: str) -> None:
    doomed = fleet.start("--name=doomed", "--no-housekeeping")
    first = job_services.enqueue("sample.long_once", {"seconds": 600})
    wait_until(lambda: fleet.ledger.read_job_lines(first.pk, "start"))
    fleet.start("--name=heir")
    if row == "deleted":
        Worker.objects.filter(name="doomed").delete()
    killed_at = get_database_time()
    doomed.kill()

    wait_for_status(first.pk, Status.FAILED, fleet=fleet)
    second = get_retry(first.pk)
    wait_for_status(second.pk, Status.COMPLETED, fleet=fleet)

    took = (get_event(second.pk, EventKind.COMPLETED).at - killed_at).total_seconds()
    print(f"completed {took:.2f} s after the kill, {RECOVERED_SEC:.1f} s allowed")
    ended = get_event(first.pk, EventKind.FAILED)
    assert ended.data["cause"] == Cause.LEASE_EXPIRED
    assert (ended.data["worker"], ended.data["pid"]) == ("doomed", doomed.pid)
    assert (get_job(first.pk).run.status, get_job(first.pk).run.error) == (Status.FAILED, "lease expired")
    assert [call.attempt for call in fleet.ledger.list_calls()] == [1, 2]


def test_a_worker_back_under_its_name_recovers_its_former_life_at_once(fleet: Fleet) -> None:
    patient = {**FAST_SETTINGS, "LEASE_SEC": 600, "GRACE_SEC": 600}
    former = fleet.start("--name=phoenix", settings=patient)
    first = job_services.enqueue("sample.long_once", {"seconds": 600})
    wait_until(lambda: fleet.ledger.read_job_lines(first.pk, "start"))
    former.kill()

    fleet.start("--name=phoenix", settings=patient)

    wait_for_status(first.pk, Status.FAILED, fleet=fleet)
    wait_for_status(get_retry(first.pk).pk, Status.COMPLETED, fleet=fleet)
    assert get_job(first.pk).run.error == "Scheduler crash recovery"
    assert get_event(first.pk, EventKind.FAILED).data["cause"] == Cause.CRASH_RECOVERY


def test_a_worker_of_another_name_leaves_a_live_lease_alone(fleet: Fleet) -> None:
    patient = {**FAST_SETTINGS, "LEASE_SEC": 600, "GRACE_SEC": 600}
    former = fleet.start("--name=one", settings=patient)
    first = job_services.enqueue("sample.long_once", {"seconds": 600})
    wait_until(lambda: fleet.ledger.read_job_lines(first.pk, "start"))
    former.kill()

    fleet.start("--name=two", settings=patient)
    other = job_services.enqueue("sample.noop")

    wait_for_status(other.pk, Status.COMPLETED, fleet=fleet)
    assert get_job(first.pk).status == Status.RUNNING
