"""Every curl example of docs/remote-workers.md runs unchanged against a server."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from jobs.models import Job
from jobs.services import tokens
from jobs.states import Status
from tests.support.remote_workers import SHELL_TOOLS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "remote-workers.md"
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.M | re.S)


@pytest.mark.skipif(not all(map(shutil.which, SHELL_TOOLS)), reason="needs curl and jq")
@pytest.mark.django_db(transaction=True)
def test_the_examples_of_the_page_run_one_after_the_other(live_server: Any, tmp_path: Path) -> None:
    _, token_text = tokens.create("me", scopes=["read", "submit", "work", "operate"])
    script = "\n".join(["set -euo pipefail", *BLOCK.findall(PAGE.read_text())])
    env = {**os.environ, "URL": live_server.url, "TOKEN": token_text}
    result = subprocess.run(
        ["bash", "-c", script], env=env, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=90
    )
    assert result.returncode == 0, f"{result.stdout}\n{result.stderr}"
    assert all(f"{state}\n" in result.stdout for state in ("DONE", "CANCELED"))
    done, cancelled = Job.objects.order_by("pk")
    assert (done.status, done.run.artifacts, done.tokens_used) == (Status.COMPLETED, {"result": {"files": 12}}, 120)
    assert cancelled.status == Status.CANCELLED
