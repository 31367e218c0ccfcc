"""The secrets of a job's params reach neither its stored texts nor the log of its worker."""

from __future__ import annotations

import pytest

from jobs.log_formats import TRACEBACK_MARK
from jobs.models import JobLog
from jobs.redaction import MASK
from jobs.services import jobs as job_services
from jobs.states import Status
from tests.support.worker_processes import LONG_LEASE_SETTINGS, Fleet, wait_for_status


@pytest.mark.parametrize(("executor", "style"), [("thread", "human"), ("process", "json")])
def test_a_handler_that_quotes_its_secret_does_not_publish_it(fleet: Fleet, executor: str, style: str) -> None:
    worker = fleet.start(f"--executor={executor}", f"--log-format={style}", settings=LONG_LEASE_SETTINGS)
    params = {"text": "QUOTED", "password": "hunter2hunter2"}
    job = job_services.enqueue("sample.quote", params, max_retries=0)
    failed = wait_for_status(job.pk, Status.FAILED, fleet=fleet)
    lines = list(JobLog.objects.values_list("message", flat=True))
    stored = [failed.status_reason, failed.progress_message, failed.run.error, *lines]
    assert all("QUOTED" in text and MASK in text for text in stored), stored
    published = "".join([*stored, fleet.logs()])
    assert ("QUOTED" in fleet.logs(), "hunter2" in published) == (True, False)
    lines = worker.output.splitlines() if style == "human" else []
    assert [line for line in lines if f"[{worker.name}] " not in line and not line.startswith(TRACEBACK_MARK)] == []
