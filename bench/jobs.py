"""The jobs that are measured: they do nothing, so that only the scheduler's own work is seen."""

from __future__ import annotations

from jobs import job

NOOP = "bench.noop"
ASYNC_NOOP = "bench.async_noop"


@job(NOOP)
def noop(number: int = 0, name: str = "") -> None:
    return None


@job(ASYNC_NOOP)
async def async_noop(number: int = 0, name: str = "") -> None:
    return None
