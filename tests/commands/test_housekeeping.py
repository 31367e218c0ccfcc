"""`manage.py recover` and `manage.py tick`: one round, as a worker does it."""

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
from jobs.states import Status
from tests.factories import JobFactory
from tests.support.commands import call, run_process

pytestmark = pytest.mark.django_db

ME = ProcessIdentity.current("a-worker")
GONE = replace(ME, started="1")


def create_expired_job(owner: ProcessIdentity, **fields: Any) -> Job:
    ago = clock.now() - timedelta(hours=1)
    lease = {"lease_owner": owner.slot_owner(0), "lease_expires_at": ago, "heartbeat_at": ago}
    return JobFactory.create(running=True, **lease, **fields)


def test_recover_ends_and_retries_what_a_dead_worker_left() -> None:
    job = create_expired_job(GONE)

    assert call("recover").out == "1 job recovered.\n"

    job.refresh_from_db()
    assert (job.status, job.status_reason) == (Status.FAILED, "lease expired")
    assert Job.objects.get(retry_of=job).status == Status.QUEUED
    assert call("recover").out == "0 jobs recovered.\n"


def test_recover_leaves_a_live_lease_alone() -> None:
    job = JobFactory.create(running=True)

    assert call("recover").out == "0 jobs recovered.\n"
    job.refresh_from_db()
    assert job.status == Status.RUNNING


@pytest.mark.sqlite_only
def test_recover_does_not_believe_the_wall_clock_while_the_steady_one_says_the_worker_beats() -> None:
    """On SQLite the database's clock is the host's, and it may have jumped."""
    boot = read_beat_clock().partition("/")[0]
    create_expired_job(ME, beat_clock=read_beat_clock())
    assert call("recover").out == "0 jobs recovered.\n"

    Job.objects.update(beat_clock=f"{boot}/-100000.000")
    assert call("recover").out == "1 job recovered.\n"


def test_as_a_process_recover_says_how_many(process_env: dict[str, str]) -> None:
    create_expired_job(GONE)

    assert run_process(process_env, "recover").out == "1 job recovered.\n"


def test_tick_runs_every_task_once_and_prints_its_result() -> None:
    create_expired_job(GONE)

    result = call("tick")

    assert result.code == 0
    words = dict(line.split(": ", 1) for line in result.out.splitlines())
    assert words.keys() >= {"recovery", "withdraw", "lanes", "retention"}
    assert words["withdraw"] == "0"
    assert words["retention"] == "off"


@pytest.fixture
def broken_task() -> Iterator[None]:
    def fail() -> None:
        raise OperationalError("the disk is full\nand more")

    runner.register_task("broken", fail, every_sec=lambda: 1.0)
    yield
    del runner._tasks["broken"]


def test_a_task_that_fails_is_one_line_and_exit_code_1_and_the_others_run(
    broken_task: None, caplog: pytest.LogCaptureFixture
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


def test_as_a_process_tick_prints_each_task_s_result(process_env: dict[str, str]) -> None:
    result = run_process({**process_env, "JOBSCHEDULER_RETENTION_DAYS": "30"}, "tick")

    assert result.code == 0
    assert "recovery: 0\n" in result.out
    assert "retention: 0 jobs, 0 groups" in result.out
