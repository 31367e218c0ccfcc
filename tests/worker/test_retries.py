"""Four executions, growing delays, and a lane that is held all the while."""

from __future__ import annotations

import pytest

from jobs.models import Gate, Job
from jobs.services import jobs as job_services
from jobs.states import EventKind, Status
from tests.support.worker_processes import (
    LONG_LEASE_SETTINGS,
    Fleet,
    get_event,
    get_job,
    list_attempts,
    wait_for_status,
    wait_until,
)

BASE_SEC = 0.4
LATE_SEC = 0.5  # a retry may start so much after its time on a busy machine
SLOW = {**LONG_LEASE_SETTINGS, "RETRY_BASE_SEC": BASE_SEC}


def test_a_failing_job_runs_four_times_and_blocks_its_lane_until_resolved(fleet: Fleet) -> None:
    first, waiting = exhaust(fleet)
    assert get_job(waiting.pk).gate == Gate.LANE

    job_services.resolve(list_attempts(first.pk)[-1].pk)

    wait_for_status(waiting.pk, Status.COMPLETED, fleet=fleet)


def test_a_resumed_failure_goes_before_what_waits_in_its_lane(fleet: Fleet) -> None:
    first, waiting = exhaust(fleet, times=4)

    again = job_services.resume(list_attempts(first.pk)[-1].pk)

    wait_for_status(waiting.pk, Status.COMPLETED, fleet=fleet)
    assert get_job(again.pk).status == Status.COMPLETED
    assert get_event(again.pk, EventKind.COMPLETED).at <= get_event(waiting.pk, EventKind.RUNNING).at


def exhaust(fleet: Fleet, times: int = 1_000_000) -> tuple[Job, Job]:
    """Let a job fail until it is not retried any more, with another one behind it in its lane."""
    fleet.start("--concurrency=4", settings=SLOW)
    first = job_services.enqueue("sample.fail", {"lane": "book-1", "times": times}, target="book-1")
    waiting = job_services.enqueue("sample.work", {"lane": "book-1"}, target="book-1")
    wait_until(
        lambda: len(list_attempts(first.pk)) == 4 and list_attempts(first.pk)[-1].status == Status.FAILED,
        what=fleet.logs,
    )

    jobs = list_attempts(first.pk)
    starts = [get_event(job.pk, EventKind.RUNNING).at for job in jobs]
    ends = [get_event(job.pk, EventKind.FAILED).at for job in jobs]
    waits = [(start - end).total_seconds() for end, start in zip(ends, starts[1:], strict=False)]
    print(f"waited {', '.join(f'{item:.2f}' for item in waits)} s with a base of {BASE_SEC} s")
    for waited, delay in zip(waits, (BASE_SEC, 2 * BASE_SEC, 4 * BASE_SEC), strict=True):
        assert delay <= waited <= delay + LATE_SEC
    assert jobs[-1].permanently_failed
    assert jobs[-1].blocks_target
    assert [job.blocks_target for job in jobs[:-1]] == [False] * 3
    assert (get_job(waiting.pk).status, fleet.ledger.read_job_lines(waiting.pk)) == (Status.QUEUED, [])
    return first, waiting


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_no_retry_and_exhausted_tokens_end_a_chain_at_once(fleet: Fleet, executor: str) -> None:
    fleet.start("--concurrency=4", f"--executor={executor}", settings=LONG_LEASE_SETTINGS)
    hopeless = job_services.enqueue("sample.hopeless")
    spent = job_services.enqueue("sample.tokens", {"amount": 40, "times": 5}, token_limit=100)
    within = job_services.enqueue("sample.tokens", {"amount": 20, "times": 5}, token_limit=100)

    wait_for_status(hopeless.pk, Status.FAILED, fleet=fleet)
    over = wait_for_status(spent.pk, Status.FAILED, fleet=fleet)
    fine = wait_for_status(within.pk, Status.COMPLETED, fleet=fleet)

    assert (over.status_reason, over.run.error, over.tokens_used) == ("token limit exceeded",) * 2 + (120,)
    assert get_event(spent.pk, EventKind.FAILED).data["cause"] == "TOKEN_LIMIT"
    assert fine.tokens_used == 100
    assert not Job.objects.filter(retry_of__in=[hopeless.pk, spent.pk]).exists()
