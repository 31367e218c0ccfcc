"""A real web process with eight threads: direct calls leave threads for probes, and never keep the queue waiting."""

from __future__ import annotations

from typing import Any

import pytest

from jobs import direct
from jobs.models import Lease
from jobs.services import jobs as job_services
from jobs.states import Status
from tests.support.web_process import DirectCall, WebProcess
from tests.support.worker_processes import LONG_LEASE_SETTINGS, START_SEC, Fleet, wait_for_status, wait_until

CALLS = 8  # as many as the web process has threads
ONE = {**LONG_LEASE_SETTINGS, "LIMITS": {"global": 1}}


def list_refusals(calls: list[DirectCall]) -> list[Any]:
    return [call.response for call in calls if call.response is not None]


@pytest.mark.parametrize(
    ("settings", "accepted", "limit"),
    [({}, 2, "DIRECT_"), ({"DIRECT_PER_TOKEN": 100}, 4, "DIRECT_MAX ")],  # of eight at once, either limit is hit
    ids=["per token", "per process"],
)
def test_a_probe_is_answered_while_direct_calls_run(
    fleet: Fleet, settings: dict[str, Any], accepted: int, limit: str
) -> None:
    gate = fleet.home / "gate"
    with WebProcess(fleet, {**LONG_LEASE_SETTINGS, **settings}) as web:
        calls = [web.call("sample.deaf", {"gate": str(gate)}) for _ in range(CALLS)]
        wait_until(lambda: len(list_refusals(calls)) >= CALLS - accepted, what="too many calls are refused")
        refusals = list_refusals(calls)
        assert web.is_healthy(), "the gate is closed: no call has returned"
        gate.touch()
        answers = [call.wait_for_response() for call in calls]
    assert len(refusals) == CALLS - accepted
    assert {(answer["status"], answer["code"]) for answer in refusals} == {(503, "no_slot")}
    assert all(limit in answer["detail"] for answer in refusals)
    assert sum("result" in answer for answer in answers) == accepted


def test_a_probe_is_answered_while_direct_calls_wait(fleet: Fleet) -> None:
    with direct.slot("sample.work", wait=0), WebProcess(fleet, {**ONE, "DIRECT_WAIT_SEC": 100}) as web:
        calls = [web.call("sample.work", {}) for _ in range(CALLS)]
        wait_until(lambda: len(list_refusals(calls)) >= CALLS - 2, what="too many calls are refused")
        assert web.is_healthy()
        assert Lease.objects.filter(ended_at=None, granted_at=None).count() == 2, "they still wait"


def test_a_direct_call_past_its_time_makes_room_for_a_job_of_another_tenant(fleet: Fleet) -> None:
    settings = {**ONE, "DIRECT_MAX_RUNTIME_SEC": 1}
    fleet.start(settings=settings)
    with WebProcess(fleet, settings) as web:
        answer = web.call("sample.deaf", {"gate": str(fleet.home / "never")}).wait_for_response()
        assert (answer["status"], answer["code"]) == (504, "handler_timed_out")
        job = job_services.enqueue("sample.noop", tenant="b")
        wait_for_status(job.pk, Status.COMPLETED, fleet=fleet)
        (handler,) = (line for line in fleet.ledger.read_lines("start") if line["type"] == "sample.deaf")
        assert not [line for line in fleet.ledger.read_lines("end") if line["type"] == "sample.deaf"], handler
        web.process.terminate()
        assert web.process.wait(START_SEC) == 0, "a handler that never returns keeps no process from stopping"


def test_a_client_that_hangs_up_changes_nothing_about_that(fleet: Fleet) -> None:
    settings = {**ONE, "DIRECT_MAX_RUNTIME_SEC": 1}
    fleet.start(settings=settings)
    with WebProcess(fleet, settings) as web:
        granted = Lease.objects.filter(granted_at__isnull=False)
        web.send_and_hang_up("sample.deaf", {"gate": str(fleet.home / "never")}, granted.exists)
        job = job_services.enqueue("sample.noop", tenant="b")
        wait_for_status(job.pk, Status.COMPLETED, fleet=fleet)
    assert Lease.objects.get().outcome == "exceeded 1 s"
