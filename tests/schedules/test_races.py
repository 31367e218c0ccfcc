"""Many schedulers, killed at any moment: each due time is fired once; and judges that notice when it is not."""

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


def test_schedulers_without_guards_are_noticed(fleet: Fleet, chance: random.Random) -> None:
    verdict = schedulers.run(fleet, chance, schedules=10, minutes=15, sabotage=True)
    print(verdict)
    assert verdict.broken
