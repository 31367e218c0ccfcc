"""`manage.py recover` and `manage.py tick` run one round of maintenance as a worker does."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from django.db import OperationalError

from jobs import clock
from jobs.engine.maintenance import runner
from jobs.models import Job
from jobs.process_identity import ProcessIdentity, read_beat_clock
from jobs.states import CRASH_RECOVERY_REASON, Status
from tests.factories import JobFactory
from tests.support.commands import call, run_process

pytestmark = pytest.mark.django_db

OWN_PROCESS = ProcessIdentity.current("a-worker")
DEAD_PROCESS = replace(OWN_PROCESS, started="1")


def create_expired_job(owner: ProcessIdentity, **fields: Any) -> Job:
    hour_ago = clock.now() - timedelta(hours=1)
    lease = {"lease_owner": owner.slot_owner(0), "lease_expires_at": hour_ago, "heartbeat_at": hour_ago}
    return JobFactory.create(running=True, **lease, **fields)


def test_recover_ends_and_retries_the_jobs_of_a_dead_worker() -> None:
    job = create_expired_job(DEAD_PROCESS)

    assert call("recover").out == "1 job recovered.\n"

    job.refresh_from_db()
    assert (job.status, job.status_reason) == (Status.FAILED, CRASH_RECOVERY_REASON)
    assert Job.objects.get(retry_of=job).status == Status.QUEUED
    assert call("recover").out == "0 jobs recovered.\n"


def test_recover_leaves_a_live_lease_alone() -> None:
    job = JobFactory.create(running=True)

    assert call("recover").out == "0 jobs recovered.\n"
    job.refresh_from_db()
    assert job.status == Status.RUNNING


@pytest.mark.sqlite_only
def test_recover_trusts_the_monotonic_clock_of_the_heartbeat_over_the_wall_clock() -> None:
    """On SQLite the clock of the database is the host's, which may have jumped."""
    boot = read_beat_clock().partition("/")[0]
    create_expired_job(OWN_PROCESS, beat_clock=read_beat_clock())
    assert call("recover").out == "0 jobs recovered.\n"

    Job.objects.update(beat_clock=f"{boot}/-100000.000")
    assert call("recover").out == "1 job recovered.\n"


def test_as_a_process_recover_prints_the_count(process_env: dict[str, str]) -> None:
    create_expired_job(DEAD_PROCESS)

    assert run_process(process_env, "recover").out == "1 job recovered.\n"


def test_tick_runs_every_task_once_and_prints_its_result() -> None:
    create_expired_job(DEAD_PROCESS)

    result = call("tick")

    assert result.code == 0
    results = dict(line.split(": ", 1) for line in result.out.splitlines())
    assert results.keys() >= {"recovery", "withdraw", "lanes", "retention"}
    assert results["withdraw"] == "0"
    assert results["retention"] == "off"


@pytest.fixture
def failing_task() -> Iterator[None]:
    def fail() -> None:
        raise OperationalError("the disk is full\nand more")

    runner.register_task("broken", fail, every_sec=lambda: 1.0)
    yield
    del runner._tasks["broken"]


def test_a_failing_task_is_one_line_and_exit_code_1_and_the_others_run(
    failing_task: None, caplog: pytest.LogCaptureFixture
) -> None:
    job = JobFactory.create(dispatching=True, reserved_until=clock.now() - timedelta(minutes=1))

    with caplog.at_level(logging.INFO):
        result = call("tick")

    assert (result.code, result.err) == (1, "Failed: broken.\n")
    assert "broken: OperationalError: the disk is full\n" in result.out
    assert "withdraw: 1\n" in result.out
    assert not any(record.exc_info for record in caplog.records)
    job.refresh_from_db()
    assert job.status == Status.QUEUED


def test_as_a_process_tick_prints_the_result_of_each_task(process_env: dict[str, str]) -> None:
    result = run_process({**process_env, "JOBSCHEDULER_RETENTION_DAYS": "30"}, "tick")

    assert result.code == 0
    assert "recovery: 0\n" in result.out
    assert "retention: 0 jobs, 0 groups" in result.out
