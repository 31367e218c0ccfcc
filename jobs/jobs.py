"""Job types that every installation has: something to try a worker, a lane or a limit with.

With SYSTEM_JOB_TYPES also those that need no code: management commands here, HTTP calls in `webhooks.jobs`.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from jobs.commanding import command
from jobs.conf import configured, read
from jobs.registry import job


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


if read(configured())[0].SYSTEM_JOB_TYPES:  # what is wrong with the settings is for the system checks to say
    job("system.command")(command)
