"""Real processes of the product, and proof that none of them is left."""

from __future__ import annotations

import subprocess
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

MARK = "HOUSE_TEST_MARK"


def mark_environment(env: dict[str, str]) -> tuple[dict[str, str], str]:
    """An environment that every descendant inherits, so that also an orphan can be found."""
    mark = uuid.uuid4().hex
    return {**env, MARK: mark}, mark


def left_over(mark: str) -> list[str]:
    wanted = f"{MARK}={mark}".encode()
    return [_name(entry) for entry in Path("/proc").iterdir() if entry.name.isdigit() and wanted in _environ(entry)]


def until(condition: Callable[[], bool], seconds: float, process: subprocess.Popen[str] | None = None) -> bool:
    """Asks again and again; ends early when the process that should make it true has died."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline or (process and process.poll() is not None):
            return condition()
        time.sleep(0.05)
    return True


def _environ(entry: Path) -> list[bytes]:
    try:
        return (entry / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _name(entry: Path) -> str:
    try:
        return f"{entry.name}: {(entry / 'cmdline').read_bytes().replace(bytes(1), b' ').decode()}"
    except OSError:
        return entry.name


def run(command: list[object], **options: Any) -> str:
    """What it printed; it must end well."""
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False, **options)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}\n{done.stderr}"
    return done.stdout
