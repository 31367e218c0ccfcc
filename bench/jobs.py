"""The jobs that are measured: they do nothing, so that only the scheduler's own work is seen."""

from __future__ import annotations

from jobs import job

NOOP = "bench.noop"


@job(NOOP)
def noop(number: int = 0, name: str = "") -> None:
    return None
