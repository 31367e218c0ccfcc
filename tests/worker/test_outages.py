"""The database goes away and comes back, which takes a server of its own, hence a process of its own; or is busy."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from django.db import connection, transaction

from jobs.services import jobs as job_services
from jobs.states import Status
from tests.conftest import database_url
from tests.support.worker_processes import MANAGE, Fleet, wait_for_status, wait_until


@pytest.mark.pg_only
@pytest.mark.timeout(240)
def test_the_same_workers_go_on_after_crashes_cuts_and_a_dead_wire() -> None:
    command = [sys.executable, "-m", "tests.chaos", "--short", "--here=outages", "--database=postgres"]
    env = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    ended = subprocess.run(command, cwd=MANAGE.parent, env=env, capture_output=True, text=True, check=False)
    print(ended.stdout, ended.stderr)
    assert ended.returncode == 0, ended.stdout


@pytest.mark.sqlite_only
def test_a_worker_that_finds_the_only_writer_busy_waits_for_its_turn(fleet: Fleet) -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("UPDATE jobscheduler_job SET fence = fence")  # from here on, no other connection can write
        worker = fleet.start(wait=False, env={"DATABASE_URL": f"{database_url()}?timeout=1"})
        wait_until(lambda: "locked" in worker.output or not worker.alive, what=fleet.logs)
        assert worker.alive, worker.output
    fleet.wait_until_started(worker)
    wait_for_status(job_services.enqueue("sample.noop").pk, Status.COMPLETED, fleet=fleet)
