"""Processes that are measured: each waited for with a deadline, none left behind."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

CHECKOUT = Path(__file__).resolve().parent.parent
LOOK_SEC = 0.02
END_SEC = 10.0

Processes = list[subprocess.Popen[Any]]


@contextmanager
def started(
    commands: Sequence[Sequence[str]], environment: Mapping[str, str], *, stderr: IO[bytes] | None = None
) -> Iterator[Processes]:
    """All of them at once, each in a session of its own; what is left of them at the end is ended."""
    running: Processes = []
    try:
        for command in commands:
            running.append(_start(command, environment, stderr))
        yield running
    finally:
        _end(running)


def await_ends(processes: Processes, seconds: float) -> None:
    """Until all have ended well."""
    deadline = time.monotonic() + seconds
    while any(process.poll() is None for process in processes):
        require_sound(processes)
        if time.monotonic() > deadline:
            raise RuntimeError(f"waited {seconds:g} s in vain for {processes[0].args}")
        time.sleep(LOOK_SEC)
    require_sound(processes)


def require_sound(processes: Processes) -> None:
    for process in processes:
        if process.poll():
            raise RuntimeError(f"{process.args} ended with {process.returncode}")


def _start(command: Sequence[str], environment: Mapping[str, str], stderr: IO[bytes] | None) -> subprocess.Popen[Any]:
    return subprocess.Popen(
        command,
        env=environment,
        cwd=CHECKOUT,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,  # our own standard output carries the figures
        stderr=stderr,
        start_new_session=True,
        preexec_fn=_end_with_parent,
    )


def _end(running: Processes) -> None:
    for process in running:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + END_SEC
    for process in running:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(deadline - time.monotonic(), 0.1))
        with suppress(ProcessLookupError):  # what it started itself, or what is deaf
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _end_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)
