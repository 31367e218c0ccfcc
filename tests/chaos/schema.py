"""schemathesis over the whole API: whatever the schema allows or forbids, the answer is one that the schema names.

A real server on this database, asked with a token that may do everything; all checks but positive_data_acceptance,
because a job that cannot be moved is no less a sensible request.
"""

from __future__ import annotations

import json
import random
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import urlopen
from uuid import uuid4

from jobs.registry import registry
from jobs.services import tokens
from jobs.states import Status
from tests import factories
from tests.chaos.report import SuiteReport
from tests.support.worker_processes import MANAGE, START_SEC, Fleet, wait_until

SERVER = [sys.executable, "-m", "waitress", "--threads=8", "jobscheduler.wsgi:application"]
NOT_ASKED = "positive_data_acceptance"
SLACK_SEC = 300


def run(fleet: Fleet, chance: random.Random, *, seconds: int) -> SuiteReport:
    verdict = SuiteReport()
    _, written = tokens.create(f"schemathesis {uuid4()}", tenant=None, scopes=["admin"])
    with server(fleet) as (url, log):
        document = fleet.home / "openapi.json"
        document.write_text(json.dumps(add_examples(read(f"{url}/api/openapi.json"))))
        output = ask(fleet, document, url, written, seconds, chance.randrange(2**31))
        errors = [line for line in log.read_text().splitlines() if "ERROR" in line or "Traceback" in line]
    verdict.require(output.returncode == 0, f"schemathesis says:\n{shorten(output.stdout + output.stderr)}")
    verdict.require(not errors, f"the server logged errors: {errors[:5]}")
    verdict.note(**count_cases(output.stdout))
    return verdict


def ask(
    fleet: Fleet, document: Path, url: str, written: str, seconds: int, seed: int
) -> subprocess.CompletedProcess[str]:
    command = [Path(sys.executable).parent / "st", "--no-color", "run", document, f"--url={url}", "--workers=1"]
    command += [f"--header=Authorization: Bearer {written}", "--checks=all", f"--exclude-checks={NOT_ASKED}"]
    command += [f"--max-time={seconds}", f"--seed={seed}", "--generation-database=none", "--suppress-health-check=all"]
    command += ["--warnings=off", "--request-timeout=60"]
    return subprocess.run(
        command, cwd=fleet.home, env=fleet.env, capture_output=True, text=True, check=False, timeout=seconds + SLACK_SEC
    )


def add_examples(document: dict[str, Any]) -> dict[str, Any]:
    """Chance alone would hardly ever name a job type or an id that exists."""
    known = [str(factories.job_in(status, target=f"lane {n}").pk) for n, status in enumerate(Status)]
    types = [name for name in registry.names() if name.startswith("sample.")]
    for schema in document["components"]["schemas"].values():
        if "job_type" in schema.get("properties", {}) and "params" in schema["properties"]:
            _suggest(schema["properties"]["job_type"], types)
    for methods in document["paths"].values():
        for operation in methods.values():
            for parameter in operation.get("parameters", ()):
                if parameter["in"] == "path" and parameter["name"] in ("job_id", "run_id"):
                    _suggest(parameter["schema"], known)
    return document


def _suggest(schema: dict[str, Any], values: list[str]) -> None:
    plain = {name: schema.pop(name) for name in list(schema) if name not in ("description", "title")}
    schema["anyOf"] = [{"type": "string", "enum": values}, plain]


@contextmanager
def server(fleet: Fleet) -> Iterator[tuple[str, Path]]:
    """Its address and its log."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    log = fleet.home / "server.log"
    with log.open("w") as out:
        command = [*SERVER[:-1], f"--listen=127.0.0.1:{port}", SERVER[-1]]
        env = {**fleet.env, "JOBSCHEDULER_API_RATE_LIMIT": "none"}  # its many wrong tokens shall all be 401
        process = subprocess.Popen(command, env=env, cwd=MANAGE.parent, stdout=out, stderr=subprocess.STDOUT)
    try:
        wait_until(lambda: _answers(port), START_SEC, log.read_text)
        yield f"http://127.0.0.1:{port}", log
    finally:
        process.terminate()
        process.wait(START_SEC)


def read(url: str) -> Any:
    with urlopen(url, timeout=START_SEC) as answer:
        return json.load(answer)


def shorten(text: str) -> str:
    """Its tracebacks quote whole modules in one line."""
    return "\n".join(line[:300] for line in text.splitlines())[-20_000:]


def count_cases(text: str) -> dict[str, object]:
    found = re.findall(r"(\d[\d,]*) (generated|passed|unique failures|operations)", text)
    return {name.replace(" ", "_"): int(number.replace(",", "")) for number, name in found}


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
