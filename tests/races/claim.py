"""Takes jobs as a worker does."""

from __future__ import annotations

from collections.abc import Sequence

from jobs.engine.claim import Claim, Claimer, ServedJobs
from tests.races import NOOP

LEASE_SEC = 600


class JobClaimer:
    def __init__(self, worker: str) -> None:
        self._claimer = Claimer(worker, ServedJobs(types=(NOOP,)))

    def take(self, slots: Sequence[int]) -> list[Claim]:
        return self._claimer.claim(slots, lease_sec=LEASE_SEC)
