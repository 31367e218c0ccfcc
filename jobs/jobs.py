"""Job types that every installation has: something to try a worker, a lane or a limit with.

With SYSTEM_JOB_TYPES also those that need no code: management commands here, HTTP calls in `webhooks.jobs`.
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
FORBIDDEN_OPTIONS = ("--settings", "--pythonpath")  # what would make the command run other code than the site's


@job("system.noop")
def noop() -> None:
    """Does nothing, and completes."""


@job("system.sleep")
def sleep(ctx: Any, seconds: Annotated[float, Field(ge=0, le=86_400)] = 10.0) -> dict[str, float]:
    """Sleeps, reports its progress, can be paused and goes on where it stopped."""
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
    """Its exit code is that of the job."""

    def __init__(self, command: str, code: int, last: str) -> None:
        super().__init__(code)
        self.told = f"{command} ended with {code}: {last}" if last else f"{command} ended with {code}"

    def __str__(self) -> str:
        return self.told


def _validate_command(name: str) -> str:
    if not conf.SYSTEM_JOB_TYPES or name not in conf.COMMAND_ALLOW:
        raise ValueError(_("is not one of the commands that COMMAND_ALLOW names"))
    return name


def _validate_argument(word: str) -> str:
    name = word.partition("=")[0]  # a command's own parser takes abbreviations, too
    if len(name) > 2 and any(option.startswith(name) for option in FORBIDDEN_OPTIONS):
        raise ValueError(_("may not say where the code is"))
    if "\0" in word:
        raise ValueError(_("contains a character that no argument can have"))
    return word


CommandName = Annotated[str, AfterValidator(_validate_command)]
CommandArgument = Annotated[str, Field(max_length=10_000), AfterValidator(_validate_argument)]


def command(
    ctx: Any,
    command: CommandName,
    args: Annotated[list[CommandArgument], Field(max_length=100)] = [],  # noqa: B006
) -> dict[str, Any]:
    """Runs a management command that COMMAND_ALLOW names. Its output is the job's log, its exit code the job's."""
    lines: list[str] = []
    # Under the settings of this process, from the same places, and never longer than it.
    if not os.environ.get("DJANGO_SETTINGS_MODULE"):
        raise NoRetry(_("the site has no settings module that a command could be told"))
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
        raise CommandFailed(command, process.returncode, lines[-1] if lines else "")
    return {"output": "\n".join(lines)}


def _copy_output(pipe: IO[str] | None, ctx: Any, lines: list[str]) -> None:
    with suppress(ValueError):  # closed under our hands
        for line in pipe or ():
            text = line.rstrip("\n")[:LINE_LENGTH]
            ctx.add_log_line("INFO", text)
            lines.append(text)
            del lines[:-TAIL_LINES]


def _terminate(process: subprocess.Popen[str]) -> None:
    """Politely, then not; with all that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is not None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_GRACE_SEC)


if read_settings(get_raw_settings())[
    0
].SYSTEM_JOB_TYPES:  # what is wrong with the settings is for the system checks to say
    job("system.command")(command)
