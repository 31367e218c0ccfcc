"""max_runtime_sec: what can be ended is ended and retried; what cannot leaves its job FAILED and its slot stuck."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest

from jobs.models import Job, Worker
from jobs.services import jobs as job_services
from jobs.states import Cause, EventKind, Status
from tests.support.worker_processes import (
    LONG_LEASE_SETTINGS,
    Fleet,
    get_event,
    get_job,
    get_retry,
    is_running,
    wait_for_status,
    wait_until,
)

QUICK = {**LONG_LEASE_SETTINGS, "RETRY_BASE_SEC": 0}


@pytest.mark.parametrize(
    ("executor", "kinds"), [("thread", ["sample.nap"]), ("process", ["sample.sleepy", "sample.hog"])]
)
def test_a_handler_past_its_time_is_ended_and_retried(fleet: Fleet, executor: str, kinds: list[str]) -> None:
    fleet.start("--concurrency=2", f"--executor={executor}", settings=QUICK)
    late = [job_services.enqueue(kind, {"seconds": 600}, max_runtime_sec=0.5, max_retries=1).pk for kind in kinds]
    for job_id in late:
        first = wait_for_status(job_id, Status.FAILED, fleet=fleet)
        second = wait_for_status(get_retry(job_id).pk, Status.FAILED, fleet=fleet)
        for job in (first, second):
            assert get_event(job.pk, EventKind.FAILED).data["cause"] == Cause.TIMEOUT
            assert job.run.error.startswith("timeout")
            took = (job.run.finished_at - job.run.started_at).total_seconds()
            print(f"{job.job_type} in a {executor}: ended after {took:.2f} s of 0.5 s")
        assert second.permanently_failed


def test_a_process_past_its_time_takes_its_own_children_along(fleet: Fleet) -> None:
    fleet.start("--executor=process", settings=QUICK)
    late = job_services.enqueue("sample.deaf_process", {"gate": "/nowhere"}, max_runtime_sec=1, max_retries=0)

    wait_for_status(late.pk, Status.FAILED, fleet=fleet)

    (line,) = fleet.ledger.read_job_lines(late.pk, "child")
    wait_until(lambda: not is_running(line["child"]) and not is_running(line["pid"]), 5, "the whole group is gone")


def test_a_deaf_thread_past_its_time_fails_without_a_retry_and_keeps_its_slot(fleet: Fleet, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    fleet.start("--name=stuck", "--concurrency=2", settings=QUICK)
    deaf = job_services.enqueue("sample.deaf", {"gate": str(gate)}, max_runtime_sec=0.5)

    wait_for_status(deaf.pk, Status.FAILED, fleet=fleet)

    assert get_event(deaf.pk, EventKind.FAILED).data["cause"] == Cause.TIMEOUT
    assert get_job(deaf.pk).permanently_failed
    wait_until(lambda: Worker.objects.filter(name="stuck", stuck=1).exists(), what="the worker shows a stuck slot")
    naps = [job_services.enqueue("sample.sleepy", {"seconds": 0.2}) for _ in range(3)]
    for nap in naps:
        wait_for_status(nap.pk, Status.COMPLETED, fleet=fleet)
    mine = [call for call in fleet.ledger.list_calls() if call.type == "sample.sleepy"]
    assert all(one.end <= two.start for one, two in pairwise(mine)), "only one slot is left"

    gate.touch()
    wait_until(lambda: Worker.objects.filter(name="stuck", stuck=0).exists(), what="its slot is free again")
    assert (get_job(deaf.pk).status, Job.objects.filter(retry_of=deaf).count()) == (Status.FAILED, 0)


def test_a_process_deaf_to_a_cancel_is_ended_after_the_cancel_timeout(fleet: Fleet) -> None:
    fleet.start("--executor=process", settings={**QUICK, "CANCEL_TIMEOUT_SEC": 0.5})
    deaf = job_services.enqueue("sample.deaf", {"gate": "/nowhere"})
    wait_until(lambda: fleet.ledger.read_job_lines(deaf.pk, "start"))
    job_services.cancel(deaf.pk)

    done = wait_for_status(deaf.pk, Status.CANCELLED, fleet=fleet)

    assert done.run.status == Status.CANCELLED
