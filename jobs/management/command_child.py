"""The process of `system.command`: a management command that ends with the worker that started it."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from django.core.management import execute_from_command_line

PR_SET_PDEATHSIG = 1


def exit_with_parent(parent: int, signum: int) -> None:
    """Let the kernel send this process a signal when its parent ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signum)
    if os.getppid() != parent:  # the parent ended before the call
        os._exit(1)


def main() -> None:
    exit_with_parent(os.getppid(), signal.SIGKILL)
    execute_from_command_line(["manage.py", *sys.argv[1:]])


if __name__ == "__main__":
    main()
