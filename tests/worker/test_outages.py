"""The database goes away and comes back. It takes a server of its own, hence a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.worker.harness import MANAGE


@pytest.mark.pg_only
@pytest.mark.timeout(240)
def test_the_same_workers_go_on_after_crashes_cuts_and_a_dead_wire() -> None:
    command = [sys.executable, "-m", "tests.chaos", "--short", "--here=outages", "--database=postgres"]
    env = {name: value for name, value in os.environ.items() if name != "DATABASE_URL"}
    ended = subprocess.run(command, cwd=MANAGE.parent, env=env, capture_output=True, text=True, check=False)
    print(ended.stdout, ended.stderr)
    assert ended.returncode == 0, ended.stdout
