"""`manage.py schedulerinfo` prints the state of the queue within 80 columns."""

from __future__ import annotations

import signal
from datetime import timedelta
from typing import Any

import pytest

from jobs import clock
from jobs.process_identity import ProcessIdentity
from jobs.states import Status
from tests.factories import JobFactory, JobMinuteFactory, TargetFactory, WorkerFactory
from tests.support.commands import PATIENCE_SEC, call, run_process, start_process

pytestmark = pytest.mark.django_db


def get_section(output: str, title: str) -> list[str]:
    """Return the lines under a heading."""
    (lines,) = [block.splitlines() for block in output.split("\n\n") if block.startswith(title)]
    return lines[1:]


def test_it_shows_jobs_limits_workers_and_blocked_targets(settings: Any) -> None:
    settings.JOBSCHEDULER = {"LIMITS": {"global": 4, "job_type": {"tests.note": None}}}
    owner = ProcessIdentity.current("big-worker").slot_owner(3)
    running = JobFactory.create(running=True, lease_owner=owner, progress=0.25)
    oldest = JobFactory.create(created_at=clock.now() - timedelta(minutes=5))
    failed = JobFactory.create(failed=True, target="book-1")
    TargetFactory.create(key="book-2", paused=True, paused_by="ann", reason="reindexing")
    JobMinuteFactory.create(outcome=Status.COMPLETED, jobs=1234)
    WorkerFactory.create(name="big-worker", busy=1, slots=4)
    WorkerFactory.create(name="lost-worker", heartbeat_at=clock.now() - timedelta(minutes=10))
    WorkerFactory.create(name="former-worker", state="STOPPED")

    output = call("schedulerinfo").out

    assert get_section(output, "Live:") == ["  PENDING 0  QUEUED 1  DISPATCHING 0  RUNNING 1  PAUSED 0"]
    assert get_section(output, "Finished") == ["  COMPLETED 1234  FAILED 0  SKIPPED 0  CANCELLED 0"]
    assert get_section(output, "Oldest waiting:") == [f"  {oldest.pk}  5m 0s  tests.note"]
    (row,) = get_section(output, "Running:")[1:]
    assert row.split() == [str(running.pk), "0s", "tests.note", "big-worker", "25%"]
    assert get_section(output, "Limits in use:")[1].split() == ["global", "1/4"]
    big, lost = (line.split() for line in get_section(output, "Workers:")[1:])
    assert big[:3] == ["big-worker", "RUNNING", "1/4"]
    assert lost[:2] + lost[3:5] == ["lost-worker", "silent", "10m", "0s"]
    blocked = get_section(output, "Blocked targets:")
    assert blocked[1].split() == ["book-1", "FAILED", str(failed.pk), "boom"]
    assert blocked[2].split() == ["book-2", "target", "paused", "ann", "reindexing"]


def test_an_empty_queue_is_a_short_screen() -> None:
    output = call("schedulerinfo").out

    assert get_section(output, "Workers:") == ["  none is running"]
    assert "Running:" not in output
    assert "Blocked targets:" not in output


def test_it_fits_80_columns_and_one_screen_whatever_the_names_are() -> None:
    long = "x" * 200
    for number in range(15):
        JobFactory.create(
            running=True, job_type=long, progress_message=long, progress=0.5, target=f"{number}{long[9:]}"
        )
        JobFactory.create(failed=True, status_reason=long + "\x1b[2J\n", target=f"failed {number}{long[20:]}")
        WorkerFactory.create(name=f"{number}{long[9:]}", host=long)

    output = call("schedulerinfo").out

    assert max(map(len, output.splitlines())) <= 80
    assert len(get_section(output, "Running:")) == 12
    assert get_section(output, "Running:")[-1] == "  … and more"
    assert "\x1b" not in output


def test_watch_repeats_until_ctrl_c_and_exits_0(process_env: dict[str, str]) -> None:
    process = start_process({**process_env, "PYTHONUNBUFFERED": "1"}, "schedulerinfo", "--watch")
    assert process.stdout is not None
    screens = 0
    while screens < 2:
        line = process.stdout.readline()
        assert line, "it ended by itself"
        assert "\x1b" not in line
        screens += line.startswith("Job scheduler")

    process.send_signal(signal.SIGINT)

    _, err = process.communicate(timeout=PATIENCE_SEC)
    assert (process.returncode, err) == (0, "")


def test_as_a_process_it_prints_one_screen_without_colours(process_env: dict[str, str]) -> None:
    result = run_process(process_env, "schedulerinfo")

    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("Job scheduler  ")
    assert "\x1b" not in result.out
