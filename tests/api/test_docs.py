"""Every curl example of docs/api.md runs unchanged against a server."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from jobs.models import Job
from jobs.services import tokens

PAGE = Path(__file__).resolve().parents[2] / "docs" / "api.md"
BLOCK = re.compile(r"^```sh\n(.*?)^```$", re.M | re.S)


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.django_db(transaction=True)
def test_the_examples_of_the_page_run(live_server: Any, tmp_path: Path) -> None:
    blocks = BLOCK.findall(PAGE.read_text())
    assert len(blocks) >= 9
    _, token_text = tokens.create("me", scopes=["read", "submit", "operate"])
    env = {**os.environ, "URL": live_server.url, "TOKEN": token_text}
    outputs = [run_script(script, env, tmp_path) for script in build_scripts(blocks)]
    assert outputs[0].startswith('{"items":')
    assert "Idempotent-Replayed: true" in outputs[2]
    assert '"count":2' in outputs[3]
    assert json.loads(outputs[5])["id"] in outputs[4], "the latest attempt of a job without retries is the job"
    assert outputs[6].strip() == "304"
    assert '"status":"CANCELLED"' in outputs[8]
    assert '"action":"job.cancel"' in outputs[9]
    assert [code in outputs[10] for code in ('"superseded"', '"body","priority"', '"unauthorized"')] == [True] * 3
    assert "Deprecation: @" in outputs[11]
    assert Job.objects.filter(idempotency_key="order-4711").count() == 1


def build_scripts(blocks: list[str]) -> list[str]:
    """Return one script per block, which loads the variables of the earlier blocks and saves its own."""
    save_variables = "declare -p JOB TAG 2>/dev/null >state || true\n"
    return [f"set -euo pipefail\n[ -f state ] && . ./state\n{block}\n{save_variables}" for block in blocks]


def run_script(script: str, env: dict[str, str], home: Path) -> str:
    result = subprocess.run(
        ["bash", "-c", script], env=env, cwd=home, capture_output=True, text=True, check=False, timeout=60
    )
    assert result.returncode == 0, f"{script}\n{result.stdout}\n{result.stderr}"
    return result.stdout
