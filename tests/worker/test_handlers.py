"""What a handler can say, seen from the database, in threads and in processes alike."""

from __future__ import annotations

import pytest

from jobs.models import Job
from jobs.services import jobs as job_services
from jobs.states import Status
from tests.support.worker_processes import LONG_LEASE_SETTINGS, Fleet, wait_for_status


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_results_skips_failures_logs_and_artifacts_are_kept(fleet: Fleet, executor: str) -> None:
    fleet.start("--concurrency=4", f"--executor={executor}", settings=LONG_LEASE_SETTINGS)
    sums = job_services.enqueue("sample.add", {"a": 2, "b": 3})
    skipped = job_services.enqueue("sample.nothing_to_do")
    failed = job_services.enqueue("sample.fail", max_retries=0)
    talked = job_services.enqueue("sample.talk", {"lines": 3})
    napped = job_services.enqueue("sample.nap", {"seconds": 0})
    answered = job_services.enqueue("sample.answer")
    counted = job_services.enqueue("sample.count", {"upto": 3})

    assert wait_for_status(sums.pk, Status.COMPLETED, fleet=fleet).run.artifacts == {"result": 5}
    assert wait_for_status(skipped.pk, Status.SKIPPED, fleet=fleet).status_reason == "nothing to do"
    assert "RuntimeError: attempt 1 failed" in wait_for_status(failed.pk, Status.FAILED, fleet=fleet).run.error
    assert wait_for_status(napped.pk, Status.COMPLETED, fleet=fleet).run.exit_code == 0
    heard = wait_for_status(talked.pk, Status.COMPLETED, fleet=fleet)
    assert list_log_lines(heard) == ["line 0", "line 1", "line 2", "that was all"]
    assert heard.run.artifacts == {"lines": 3}
    odd = wait_for_status(answered.pk, Status.COMPLETED, fleet=fleet)
    assert odd.run.artifacts == {"result": {"answer": "Answer(value='42')"}}
    (warning,) = list_log_lines(odd)
    assert warning.startswith("result.answer: ")
    assert "model_dump" in warning
    far = wait_for_status(counted.pk, Status.COMPLETED, fleet=fleet)
    assert (far.progress, far.progress_message, far.checkpoint) == (1.0, "3 of 3", 3)


def list_log_lines(done: Job) -> list[str]:
    return list(done.logs.order_by("id").values_list("message", flat=True))
