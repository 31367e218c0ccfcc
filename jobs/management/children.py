"""Child processes of one terminal: they never outlive their parent, and Ctrl-C reaches only the parent."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG = 1


class Child:
    """One of our own management commands, in a session of its own."""

    def __init__(self, name: str, *arguments: str, pass_fds: Sequence[int] = ()) -> None:
        self.name = name
        parent = os.getpid()
        self.process = subprocess.Popen(
            [*command_line(), *arguments],
            pass_fds=pass_fds,
            start_new_session=True,
            preexec_fn=lambda: _die_with(parent),
        )

    def wait(self) -> int:
        return self.process.wait()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    @property
    def ended_well(self) -> bool:
        """It ended by itself, or by our asking before it was ready to be asked nicely."""
        return self.process.returncode in (0, -signal.SIGTERM)

    def stop(self) -> None:
        if self.alive:
            self.process.terminate()

    def kill(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


def command_line() -> list[str]:
    """How this very command line was started: `python manage.py`, or `python -m django`."""
    spec = sys.modules["__main__"].__spec__
    if spec is not None and spec.parent:
        return [sys.executable, "-m", spec.parent]
    return [sys.executable, str(Path(sys.argv[0]).resolve())]


def _die_with(parent: int) -> None:
    """Runs in the child before its program: a parent that is killed outright takes its children along."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's `&` hands down an ignored SIGINT
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        os._exit(1)
