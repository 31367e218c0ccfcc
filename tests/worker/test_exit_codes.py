"""A job whose result cannot be stored as reported ends all the same, and delays no other job."""

from __future__ import annotations

import pytest

from jobs.services import jobs as job_services
from jobs.states import Status
from tests.support.worker_processes import LONG_LEASE_SETTINGS, Fleet, wait_for_status


@pytest.mark.parametrize(("code", "kept"), [(2**31, 1), (-(2**31), -(2**31))])
def test_any_exit_code_is_an_end(fleet: Fleet, code: int, kept: int) -> None:
    fleet.start("--concurrency=2", settings=LONG_LEASE_SETTINGS)
    left = job_services.enqueue("sample.exit", {"code": code}, max_retries=0)
    others = [job_services.enqueue("sample.add", {"a": number, "b": 1}) for number in range(5)]
    assert wait_for_status(left.pk, Status.FAILED, fleet=fleet, seconds=10).run.exit_code == kept
    for other in others:
        wait_for_status(other.pk, Status.COMPLETED, fleet=fleet)
