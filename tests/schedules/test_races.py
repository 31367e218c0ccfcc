"""Many schedulers, killed at any moment, fire each due time once; the check notices when they do not."""

from __future__ import annotations

import random

import pytest

from tests.chaos import schedulers
from tests.support.worker_processes import Fleet


@pytest.mark.timeout(240)
def test_four_schedulers_that_are_killed_fire_each_due_time_once(fleet: Fleet, chance: random.Random) -> None:
    verdict = schedulers.run(fleet, chance, schedules=20, minutes=40)
    print(verdict)
    assert not verdict.broken, str(verdict)


def test_the_check_notices_schedulers_without_locks(fleet: Fleet, chance: random.Random) -> None:
    verdict = schedulers.run(fleet, chance, schedules=10, minutes=15, sabotage=True)
    print(verdict)
    assert verdict.broken
