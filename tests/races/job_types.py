"""The job type of the races. Imported by the crowds only: the test process itself knows no such handler."""

from __future__ import annotations

from jobs import job
from tests.races import NOOP


@job(NOOP)
def noop(number: int = 0) -> None:
    return None
