"""Run management commands, in this process or in a child process, and return exit code and output."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from django.core.management import CommandError, call_command

CHECKOUT = Path(__file__).resolve().parents[2]
PATIENCE_SEC = 60


@dataclass(frozen=True)
class CommandResult:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


def call(*words: object) -> CommandResult:
    """Run a command in this process; a CommandError becomes its exit code and error text."""
    out, err = StringIO(), StringIO()
    try:
        call_command(*map(str, words), stdout=out, stderr=err)
    except CommandError as error:
        err.write(f"{error}\n")
        return CommandResult(error.returncode, out.getvalue(), err.getvalue())
    return CommandResult(0, out.getvalue(), err.getvalue())


def start_process(env: dict[str, str], *words: object, **streams: Any) -> subprocess.Popen[str]:
    command = [sys.executable, str(CHECKOUT / "manage.py"), *map(str, words)]
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams}
    return subprocess.Popen(command, env=env, cwd=CHECKOUT, text=True, **how)


def run_process(env: dict[str, str], *words: object) -> CommandResult:
    """Run a command in a child process and wait for its end."""
    process = start_process(env, *words)
    try:
        out, err = process.communicate(timeout=PATIENCE_SEC)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        raise
    return CommandResult(process.returncode, out, err)
