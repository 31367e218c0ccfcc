"""The log of a worker: whose line it is, which job it is about, and how each job ended."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from jobs.log_formats import JsonFormatter
from jobs.services import groups
from jobs.services import jobs as job_services
from jobs.states import Status
from tests.support.worker_processes import LONG_LEASE_SETTINGS, Fleet, wait_for_status


@pytest.mark.parametrize("executor", ["thread", "process"])
def test_json_lines_name_the_worker_and_the_job_and_every_end_has_one(fleet: Fleet, executor: str) -> None:
    options = ("--name=talker", "--log-format=json", "--concurrency=2", f"--executor={executor}")
    worker = fleet.start(*options, settings={**LONG_LEASE_SETTINGS, "CANCEL_TIMEOUT_SEC": 60})
    quoting = {"text": "QUOTED", "password": "hunter2hunter2"}
    exact = {"base_sec": 600.24, "jitter": 0}
    ended = {
        job_services.enqueue("sample.noop").pk: (Status.COMPLETED, "finished: completed"),
        job_services.enqueue("sample.quote", quoting, max_retries=0).pk: (Status.FAILED, "failed, not retried"),
        job_services.enqueue("sample.quote", quoting, retry_policy=exact).pk: (Status.FAILED, "retried in 600.2 s"),
    }
    for request, status, word in (
        (job_services.cancel, Status.CANCELLED, ": cancelled (talker): enough"),
        (job_services.pause, Status.PAUSED, ": paused (talker): enough"),
    ):
        job = job_services.enqueue("sample.sleepy", {"seconds": 600})
        wait_for_status(job.pk, Status.RUNNING, fleet=fleet)
        request(job.pk, reason="enough")
        ended[job.pk] = (status, word)
    for pk, (status, _word) in ended.items():
        wait_for_status(pk, status, fleet=fleet)
    worker.terminate()
    assert worker.wait_for_end() == 0, worker.output
    lines = [json.loads(line) for line in worker.output.splitlines()]
    assert {line["worker"] for line in lines} == {"talker"}
    for pk, (_status, word) in ended.items():
        [line] = [line for line in lines if line.get("job_id") == str(pk) and word in line["message"]]
        assert line["job_type"].startswith("sample.")
    handlers = {(line["logger"], line.get("job_type")) for line in lines if line["message"].startswith("QUOTED ")}
    assert handlers == {("jobs.run", "sample.quote"), ("tests.sample_app", "sample.quote")}
    is_warned = any("CANCEL_TIMEOUT_SEC has no effect" in line["message"] for line in lines)
    assert is_warned == (executor == "thread")


@pytest.mark.django_db
def test_jobs_that_end_without_a_worker_have_a_line_after_the_commit(
    caplog: pytest.LogCaptureFixture, django_capture_on_commit_callbacks: Any
) -> None:
    caplog.set_level(logging.INFO, "jobs.engine.transitions")
    job = job_services.enqueue("sample.noop")
    group = groups.create([{"job_type": "sample.noop"}] * 12, mode="parallel")
    with django_capture_on_commit_callbacks() as callbacks:
        job_services.cancel(job.pk, reason="a mistake")
        assert caplog.messages == []
    for callback in callbacks:
        callback()
    [line] = caplog.messages
    assert line == f"job {job.pk} (sample.noop): cancelled (python): a mistake"
    caplog.clear()
    with django_capture_on_commit_callbacks(execute=True):
        groups.cancel(group.pk)
    [record] = caplog.records
    assert record.getMessage().startswith("12 jobs, ")
    assert "and 2 more: cancelled" in record.getMessage()
    assert len(json.loads(JsonFormatter().format(record))["jobs"]) == 12
