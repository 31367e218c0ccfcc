"""Processes of the benchmarks: waited for with a deadline, and stopped at the end."""

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
POLL_SEC = 0.02
EXIT_SEC = 10.0

Processes = list[subprocess.Popen[Any]]


@contextmanager
def run_processes(
    commands: Sequence[Sequence[str]], environment: Mapping[str, str], *, stderr: IO[bytes] | None = None
) -> Iterator[Processes]:
    """Start all commands, each in its own session; at the end stop those that still run."""
    running: Processes = []
    try:
        for command in commands:
            running.append(_start_process(command, environment, stderr))
        yield running
    finally:
        _stop_processes(running)


def wait_for_exit(processes: Processes, seconds: float) -> None:
    """Wait until all processes have exited successfully."""
    deadline = time.monotonic() + seconds
    while any(process.poll() is None for process in processes):
        raise_if_failed(processes)
        if time.monotonic() > deadline:
            raise RuntimeError(f"{processes[0].args} did not exit within {seconds:g} s")
        time.sleep(POLL_SEC)
    raise_if_failed(processes)


def raise_if_failed(processes: Processes) -> None:
    """Raise RuntimeError if a process has exited with an error."""
    for process in processes:
        if process.poll():
            raise RuntimeError(f"{process.args} exited with {process.returncode}")


def _start_process(
    command: Sequence[str], environment: Mapping[str, str], stderr: IO[bytes] | None
) -> subprocess.Popen[Any]:
    return subprocess.Popen(
        command,
        env=environment,
        cwd=CHECKOUT,
        stdin=subprocess.DEVNULL,
        stdout=sys.stderr,  # standard output of this process has the figures
        stderr=stderr,
        start_new_session=True,
        preexec_fn=_exit_with_parent,
    )


def _stop_processes(running: Processes) -> None:
    for process in running:
        if process.poll() is None:
            process.terminate()
    deadline = time.monotonic() + EXIT_SEC
    for process in running:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(deadline - time.monotonic(), 0.1))
        with suppress(ProcessLookupError):  # its own children, or a process that ignores SIGTERM
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _exit_with_parent() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)
