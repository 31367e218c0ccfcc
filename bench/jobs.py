"""The job types of the benchmarks: they do almost nothing, so that only the scheduler's own work is measured."""

from __future__ import annotations

import time
from typing import Any

from jobs import job

NOOP = "bench.noop"
ASYNC_NOOP = "bench.async_noop"
SHORT = "bench.short"
PROGRESS = "bench.progress"
PAUSE = "bench.pause"


@job(NOOP)
def noop(number: int = 0, name: str = "") -> None:
    return None


@job(ASYNC_NOOP)
async def async_noop(number: int = 0, name: str = "") -> None:
    return None


@job(SHORT)
def wait_10_ms(number: int = 0) -> None:
    time.sleep(0.01)


@job(PAUSE)
def pause(seconds: float) -> None:
    time.sleep(seconds)


@job(PROGRESS, max_runtime_sec=3600)
def report_progress(ctx: Any) -> None:
    """Report progress twice a second until the worker ends."""
    steps = 0
    while not ctx.wait(0.5):
        steps += 1
        ctx.progress(steps % 1000, 1000)
