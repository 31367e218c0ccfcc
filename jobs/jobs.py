"""Built-in job types, to try a worker, a target or a limit with.

With SYSTEM_JOB_TYPES also job types that need no code: management commands here, HTTP calls in `webhooks.jobs`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import IO, Annotated, Any

from django.utils.translation import gettext as _
from pydantic import AfterValidator, Field

from jobs.conf import conf, get_raw_settings, read_settings
from jobs.errors import NoRetry
from jobs.registry import job

POLL_SEC = 0.1
STOP_GRACE_SEC = 5.0
TAIL_LINES = 20
LINE_LENGTH = 10_000
FORBIDDEN_OPTIONS = ("--settings", "--pythonpath")  # they would make the command run code from outside of the site


@job("system.noop")
def noop() -> None:
    """Do nothing, and complete."""


@job("system.sleep")
def sleep(ctx: Any, seconds: Annotated[float, Field(ge=0, le=86_400)] = 10.0) -> dict[str, float]:
    """Sleep and report progress; after a pause, continue from the checkpoint."""
    slept = float(ctx.resume_from or 0)
    while slept < seconds:
        ctx.progress(slept, seconds, f"{slept:.0f} of {seconds:g} s")
        step = min(1.0, seconds - slept)
        ctx.wait(step)
        ctx.check_cancelled()
        slept += step
        ctx.checkpoint(slept)
    ctx.progress(1, 1, f"{slept:g} s")
    return {"slept": slept}


class CommandFailed(SystemExit):
    """A command failed. Its exit code becomes that of the job; what it printed is in the job's log alone."""

    def __str__(self) -> str:
        return f"the command ended with exit code {self.code}"


def _validate_command(name: str) -> str:
    if not conf.SYSTEM_JOB_TYPES or name not in conf.COMMAND_ALLOW:
        raise ValueError(_("is not one of the commands that COMMAND_ALLOW names"))
    return name


def _validate_argument(argument: str) -> str:
    name = argument.partition("=")[0]  # the parser of a command accepts abbreviations, too
    if len(name) > 2 and any(option.startswith(name) for option in FORBIDDEN_OPTIONS):
        raise ValueError(_("must not change the settings or the Python path"))
    if "\0" in argument:
        raise ValueError(_("contains a character that no argument can have"))
    return argument


CommandName = Annotated[str, AfterValidator(_validate_command)]
CommandArgument = Annotated[str, Field(max_length=10_000), AfterValidator(_validate_argument)]


def command(
    ctx: Any,
    command: CommandName,
    args: Annotated[list[CommandArgument], Field(max_length=100)] = [],  # noqa: B006
) -> dict[str, Any]:
    """Run a management command of COMMAND_ALLOW. Its output becomes the job's log, its exit code the job's."""
    lines: list[str] = []
    # The child uses the settings and the import path of this process, and does not outlive it.
    if not os.environ.get("DJANGO_SETTINGS_MODULE"):
        raise NoRetry(_("DJANGO_SETTINGS_MODULE is not set: a command needs it"))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    with subprocess.Popen(
        [sys.executable, "-m", "jobs.management.command_child", command, *args],
        env={**env, "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    ) as process:
        reader = threading.Thread(target=_copy_output, args=(process.stdout, ctx, lines), daemon=True)
        reader.start()
        try:
            while not ctx.cancelled and process.poll() is None:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(POLL_SEC)
        finally:
            _terminate(process)
        reader.join(STOP_GRACE_SEC)  # a grandchild may hold the pipe open
    ctx.check_cancelled()
    if process.returncode:
        raise CommandFailed(process.returncode)
    return {"output": "\n".join(lines)}


def _copy_output(pipe: IO[str] | None, ctx: Any, lines: list[str]) -> None:
    with suppress(ValueError):  # the pipe was closed meanwhile
        for line in pipe or ():
            text = line.rstrip("\n")[:LINE_LENGTH]
            ctx.add_log_line("INFO", text)
            lines.append(text)
            del lines[:-TAIL_LINES]


def _terminate(process: subprocess.Popen[str]) -> None:
    """Send SIGTERM, then SIGKILL, to the process and its children."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_GRACE_SEC)


if read_settings(get_raw_settings()).conf.SYSTEM_JOB_TYPES:  # the system checks report wrong settings
    job("system.command")(command)
